"""Environments and networks that draw from the global random streams of Python, numpy and torch."""

import hashlib
import json
import signal
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

DRAWING = """
import os, pathlib, random
import gymnasium, numpy, setproctitle, torch
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPActorCritic

PLACE = os.environ.get("DRAWS")

def drawn():
    # Of 2**53 values; of the 2**24 of a float32 some would be drawn twice.
    numbers = random.random(), numpy.random.rand(), torch.rand(1, dtype=torch.float64).item()
    if PLACE:
        title = setproctitle.getproctitle().replace("tianji: ", "").replace(" ", "-")
        with open(pathlib.Path(PLACE, f"{title}.{os.getpid()}"), "a") as file:
            print(*numbers, file=file)
    return sum(numbers)

drawn()  # As a module may that makes a table.

class Drawing(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
        self.length = 5 + int(10 * drawn())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), drawn() + float(action), self.left == 0, False, {}

class Noisy(MLPActorCritic):
    def forward(self, observation):
        policy, value = super().forward(observation)
        return policy + torch.randn(policy.shape), value

    executor = ActorCritic.executor
    backprop = ActorCritic.backprop

gymnasium.register("Drawing-v0", Drawing)
"""
CONFIG: dict[str, Any] = {
    "experiment": {"stop": {"env_steps": 3000}, "eval_episodes": 5},
    "environment": {"id": "my_env:Drawing-v0", "num_envs": 2},
    "model": {"type": "my_env:Noisy"},
    "training": {"rollout_steps": 256, "minibatch_size": 128},
}


@pytest.fixture
def draws(workplace: Any) -> Path:
    """A file for each process that draws, with what it drew: of Python, numpy and torch in columns."""
    workplace.module(DRAWING)
    place: Path = workplace.place / "draws"
    place.mkdir()
    workplace.environment["DRAWS"] = str(place)
    return place


def processes(place: Path, title: str) -> list[Path]:
    return sorted(place.glob(f"{title}*"))


@pytest.mark.timeout(300)
def test_no_two_workers_draw_the_same_numbers_and_none_repeats_one_before_it(
    workplace: Any, draws: Path
) -> None:
    two = {"groups": 2, "actor": {"num": 1, "send_size": 32}}
    endless = {"stop": {"env_steps": 10**9}, "eval_episodes": 0}
    run = workplace.train(CONFIG, {"experiment": endless, "distribution": two})
    run.train_until(200)
    run.command.kill("actor 1")
    workplace.until(lambda: len(processes(draws, "actor-1-")) == 2, "actor 1 is there again")
    run.train_until(run.env_steps + 200)
    run.command.signal_all(signal.SIGINT)
    reached = run.finish(130)["env_steps"]
    workplace.resume(run, "--set", f"experiment.stop.env_steps={reached + 200}").finish()
    assert len(processes(draws, "actor-")) == 2 + 1 + 2
    seen: dict[str, Path] = {}
    # The command and the first build, of which nothing comes, import the module, too.
    for file in [file for title in ("actor", "buffer") for file in processes(draws, title)]:
        for number in file.read_text().split():
            assert number not in seen, (number, file, seen.get(number))
            seen[number] = file
    assert len(seen) > 500


def outcome(workplace: Any, seed: int) -> tuple[Any, ...]:
    in_step = {"mode": "sync", "actor": {"num": 2, "send_size": 32}}
    run = workplace.train(CONFIG, {"experiment": {"seed": seed}, "distribution": in_step})
    summary = run.finish()
    model = (run.path / "checkpoints/last/model.safetensors").read_bytes()
    return hashlib.sha256(model).hexdigest(), str(summary["returns"]), str(summary["evaluation"])


def test_in_step_the_seed_decides_also_where_global_streams_are_drawn_from(
    workplace: Any, draws: Path
) -> None:
    first = outcome(workplace, 7)
    assert outcome(workplace, 7) == first
    assert outcome(workplace, 8)[1] != first[1]
    assert processes(draws, "actor-")


def test_an_evaluation_repeats_itself_by_its_seed_where_global_streams_are_drawn_from(
    workplace: Any, draws: Path
) -> None:
    pace = {"every_env_steps": 500, "episodes": 3}
    experiment = {"stop": {"evaluation": 0.0}, "eval_episodes": 3, "evaluation": pace}
    run = workplace.train(CONFIG, {"experiment": experiment})
    summary = run.finish()

    def returns(*options: str) -> list[float]:
        command = workplace.command("eval", str(run.path), "--episodes", "3", "--json", "-", *options)
        command.wait(0)
        found: list[float] = json.loads(command.stdout)["returns"]
        return found

    of_best = returns("--checkpoint", "best")
    assert returns() == of_best
    assert summary["evaluation"]["mean"] == pytest.approx(fmean(of_best))
    assert returns("--seed", "3") == returns("--seed", "3") != returns("--seed", "4")
    assert draws.is_dir()
