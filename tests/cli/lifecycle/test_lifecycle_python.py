"""`import tianji`: policies that are loaded act as `tianji eval` lets them, and start no process."""

import copy
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from cli import skirmish
from cli.lifecycle.test_lifecycle_records import CONVOLUTIONS, HINTS
from cli.sessions import in_session, kill_session

import tianji

PENDULUM = {
    "experiment": {"name": "run", "stop": {"env_steps": 4096}, "eval_episodes": 0, "plots": False},
    "environment": {"type": "gym", "id": "Pendulum-v1", "num_envs": 8},
}


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loading and acting start no process; modules of a test are not the next one's."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(psutil.Process().children())
    yield
    sys.modules.pop("my_env", None)
    gymnasium.registry.pop("Mine-v0", None)
    assert set(psutil.Process().children()) <= before


def trained(workplace: Any, *changes: Any) -> Path:
    run = workplace.train(*changes)
    run.finish()
    path: Path = run.path
    return path


def returns_of_eval(workplace: Any, run: Path, episodes: int) -> list[float]:
    command = workplace.command("eval", str(run), "--episodes", str(episodes), "--seed", "5", "--json", "-")
    command.wait(0)
    found: list[float] = json.loads(command.stdout)["returns"]
    return found


def seed_of(number: int) -> int:
    """The seed that `tianji eval --seed 5` resets an environment with."""
    return int(np.random.SeedSequence((5, number)).generate_state(1)[0] >> 1)


def returns_of(policy: tianji.Policy, name: str, episodes: int) -> list[float]:
    """Play by hand what `tianji eval --seed 5` plays, an environment after another."""
    returns = []
    for number in range(episodes):
        environment = gymnasium.make(name)
        observation, _ = environment.reset(seed=seed_of(number))
        policy.reset()
        over, total = False, 0.0
        while not over:
            observation, reward, ended, cut, _ = environment.step(policy.act(observation))
            total, over = total + float(reward), ended or cut
        returns.append(total)
    return returns


@pytest.mark.parametrize(
    "model",
    [
        {"type": "mlp_actor_critic", "hidden": [16]},
        {"type": "recurrent_actor_critic", "encoder": "mlp", "hidden": [16], "core": "lstm", "width": 16},
    ],
    ids=["normalised", "recurrent"],
)
def test_a_policy_plays_as_tianji_eval_does(workplace: Any, model: Any) -> None:
    workplace.base = copy.deepcopy(workplace.base) | PENDULUM | {"model": model}
    normalised = {"training": {"normalize_observations": model["type"] == "mlp_actor_critic"}}
    run = trained(workplace, normalised)
    policy = tianji.load(run)
    played = returns_of(policy, "Pendulum-v1", 3)
    np.testing.assert_allclose(played, returns_of_eval(workplace, run, 3), rtol=1e-4)
    assert len(set(np.round(played, 3))) == 3


def test_a_number_that_is_none_of_a_discrete_observation_is_refused(workplace: Any) -> None:
    lake = {"environment": {"type": "gym", "id": "FrozenLake-v1", "num_envs": 8}}
    policy = tianji.load(trained(workplace, lake, {"environment": {"num_envs": 8}}))
    assert policy.act(15) in policy.action_space
    assert policy.act([0, 15, 3]).shape == (3,)
    for wrong in (99, -1, [0, 16]):
        with pytest.raises(tianji.ObservationError, match="is not in it"):
            policy.act(wrong)


def test_a_batch_is_what_its_observations_are_and_another_size_begins_anew(workplace: Any) -> None:
    run = trained(workplace)
    policy = tianji.load(run, "last")
    observations = np.random.default_rng(1).normal(size=(50, 4))
    actions = policy.act(observations)
    assert actions.shape == (50,)
    assert [policy.act(one) for one in observations] == list(actions)
    assert policy.act(list(observations[0])) == actions[0], "any sequence of numbers will do"
    assert set(actions) == {0, 1}
    kept = actions.copy()
    policy.act(-observations)
    assert list(actions) == list(kept), "actions are the caller's to keep"


def test_what_is_random_follows_from_the_seed(workplace: Any) -> None:
    run = trained(workplace)
    observation = np.zeros(4)

    def drawn(seed: int) -> list[int]:
        policy = tianji.load(run, seed=seed)
        return [int(policy.act(observation, deterministic=False)) for _ in range(40)]

    streams = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) == {0, 1}
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == streams, "a caller's own streams are left alone"


def test_what_a_network_remembers_is_forgotten_where_it_is_told_so(workplace: Any) -> None:
    workplace.base = copy.deepcopy(workplace.base) | PENDULUM
    workplace.base["model"] = {"type": "recurrent_actor_critic", "encoder": "mlp", "hidden": [16]}
    policy = tianji.load(trained(workplace))
    same = np.ones((2, 3))
    first = policy.act(same)
    second = policy.act(same)
    assert not np.allclose(first, second)
    policy.reset(where=[True, False])
    third = policy.act(same)
    np.testing.assert_allclose(third[0], first[0])
    assert not np.allclose(third[1], first[1])
    policy.reset()
    np.testing.assert_allclose(policy.act(same), first)
    with pytest.raises(tianji.ObservationError, match="the last observations were 2"):
        policy.reset([True, False, False])


def test_dict_observations_with_images_are_taken_as_the_environment_gives_them(workplace: Any) -> None:
    workplace.module(HINTS)
    environment = {"type": "my_env:Hints", "id": "", "num_envs": 8, "options": {"camera": True}}
    model = {"type": "cnn_actor_critic", **CONVOLUTIONS}
    workplace.base = copy.deepcopy(workplace.base) | {"environment": environment, "model": model}
    policy = tianji.load(trained(workplace))
    assert set(policy.observation_space.spaces) == {"camera", "hint.0", "noise"}  # type: ignore[attr-defined]
    space = gymnasium.spaces.Dict(
        {
            "hint": gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(3), gymnasium.spaces.Text(4))),
            "noise": gymnasium.spaces.Box(-1.0, 1.0, (2,)),
            "camera": gymnasium.spaces.Box(0, 255, (20, 20), np.uint8),
        }
    )
    seen = [space.sample() for _ in range(5)]
    batch = {
        "hint": (np.array([one["hint"][0] for one in seen]), [one["hint"][1] for one in seen]),
        "noise": np.stack([one["noise"] for one in seen]),
        "camera": np.stack([one["camera"] for one in seen]),
    }
    assert [policy.act(one) for one in seen] == list(policy.act(batch))
    with pytest.raises(tianji.ObservationError, match="'noise' is of shape"):
        policy.act(batch | {"noise": batch["noise"][:3]})
    with pytest.raises(tianji.ObservationError, match="KeyError: 'camera'"):
        policy.act({"hint": (0, ""), "noise": [0.0, 0.0]})


def test_stacked_frames_are_one_observation(workplace: Any) -> None:
    workplace.base = copy.deepcopy(workplace.base) | {
        "environment": {"type": "atari", "id": "Pong", "num_envs": 2},
        "model": {"type": "cnn_actor_critic", "encoder": "impala_small", "hidden": 16},
        "training": {"rollout_steps": 64, "minibatch_size": 64},
    }
    policy = tianji.load(trained(workplace, {"experiment": {"stop": {"env_steps": 256}}}))
    assert policy.observation_space.shape == (4, 84, 84)
    frames = np.random.default_rng(1).integers(0, 255, (3, 4, 84, 84), np.uint8)
    assert [policy.act(one) for one in frames] == list(policy.act(frames))
    assert all(policy.action_space.contains(action) for action in policy.act(frames))


def test_a_team_acts_by_the_names_of_its_agents(workplace: Any) -> None:
    workplace.base = copy.deepcopy(workplace.base) | {
        "environment": {"type": "mpe", "id": "simple_spread", "num_envs": 4},
        "agent": {"type": "mappo"},
        "model": {"type": "team_actor_critic", "hidden": [16]},
    }
    run = trained(workplace)
    policy = tianji.load(run)
    from mpe2 import simple_spread_v3  # noqa: PLC0415 - pygame is slow to import

    totals = []
    for number in range(2):
        environment = simple_spread_v3.parallel_env()
        seen, _ = environment.reset(seed=seed_of(number))
        total = 0.0
        while environment.agents:
            actions = policy.act(seen)
            assert set(actions) == {"agent_0", "agent_1", "agent_2"}
            seen, rewards, *_ = environment.step(actions)
            total += sum(rewards.values())
        totals.append(total)
    np.testing.assert_allclose(totals, returns_of_eval(workplace, run, 2), rtol=1e-4)
    with pytest.raises(tianji.ObservationError, match="there is no agent 'agent_9'"):
        policy.act({"agent_9": seen["agent_0"]})


def test_a_team_without_names_is_shown_records(workplace: Any) -> None:
    workplace.module(Path(skirmish.__file__).read_text())
    workplace.base = copy.deepcopy(workplace.base) | {
        "environment": {"type": "my_env:SkirmishFactory", "id": "", "num_envs": 4},
        "agent": {"type": "mappo"},
        "model": {"type": "team_actor_critic", "hidden": [16]},
    }
    policy = tianji.load(trained(workplace))
    records = np.zeros(3, policy.observation_space.dtype)
    records["available"] = records["alive"] = True
    assert policy.act(records).shape == (3, *policy.action_space.shape)  # type: ignore[misc]
    assert policy.act(records[0]).shape == policy.action_space.shape


MODEL = '''
import torch
from pydantic import BaseModel
from tianji_algos.models.actor_critic import ActorCritic


class Nothing(BaseModel):
    """There is nothing to set."""


class Mine(ActorCritic):
    """One layer."""

    settings_type = Nothing

    def __init__(self, spaces, settings):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, observation):
        outputs = self.layer(observation)
        return outputs[:, :2], outputs[:, 2]
'''


def test_a_network_of_a_users_own_is_loaded_where_the_run_is(workplace: Any) -> None:
    workplace.module(MODEL)
    workplace.base = copy.deepcopy(workplace.base) | {"model": {"type": "my_env:Mine"}}
    run = trained(workplace)
    policy = tianji.load(run)
    observations = np.random.default_rng(1).normal(size=(30, 4))
    from safetensors.numpy import load_file  # noqa: PLC0415

    saved = load_file(run / "checkpoints/best/model.safetensors")
    mean, variance = (saved[f"normalizer.observations.{name}"] for name in ("mean", "variance"))
    seen = np.clip((observations - mean) / np.sqrt(variance + 1e-8), -10, 10)
    logits = seen @ saved["layer.weight"][:2].T + saved["layer.bias"][:2]
    assert list(policy.act(observations)) == list(logits.argmax(axis=1))


def test_what_cannot_be_loaded_or_seen_is_said(workplace: Any) -> None:
    run = trained(workplace)
    with pytest.raises(tianji.TianjiError, match="has no checkpoint '3'; there are best, last"):
        tianji.load(run, 3)
    with pytest.raises(tianji.TianjiError, match="no run"):
        tianji.load(workplace.place / "nowhere")
    (run / "metrics.jsonl").write_text("no JSON\n")
    with pytest.raises(tianji.TianjiError, match="line 1: not a JSON object"):
        _ = tianji.Run(run).metrics
    (run / "metrics.jsonl").unlink()
    assert tianji.Run(run).metrics == {}
    (run / "summary.json").write_text("{")
    with pytest.raises(tianji.TianjiError, match="cannot read"):
        _ = tianji.Run(run).summary
    policy = tianji.load(run)
    for wrong, said in (
        (np.zeros(3), r"\(4,\) would be right, or \(N, 4\)"),
        (np.zeros((0, 4)), r"of shape \(0, 4\)"),
        (np.zeros((2, 2, 4)), r"of shape \(2, 2, 4\)"),
        ("left", "float32 is wanted"),
        ({"x": 1.0}, "float32 is wanted"),
        ([[1.0], [2.0, 3.0]], "inhomogeneous"),
        ([np.nan] * 4, "not all numbers are finite"),
    ):
        with pytest.raises(tianji.ObservationError, match=said):
            policy.act(wrong)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_run_that_others_could_change_is_refused_and_one_that_a_group_could_is_warned_of(
    workplace: Any,
) -> None:
    run = trained(workplace)
    run.chmod(0o777)
    with pytest.raises(tianji.TianjiError, match="may be written to by all"):
        tianji.load(run)
    run.chmod(0o770)
    os.chown(run, -1, 12345)
    with pytest.warns(UserWarning, match="group"):
        tianji.load(run)


def test_train_takes_settings_as_tables_and_tells_of_the_run(
    workplace: Any, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = workplace.place / "runs"
    run = tianji.train(
        workplace.config({"experiment": {"stop": {"mean_return": 1e6}}}),
        name="mine",
        out=out,
        experiment={"stop": {"env_steps": np.int64(60_000)}, "thresholds": (15.0, 20)},
        distribution={"actor": {"send_size": 8}},
        roles={},
    )
    assert capfd.readouterr() == ("", "")
    assert run.path == out / "mine/1"
    assert os.fspath(run) == str(run.path)
    assert run.config["experiment"]["stop"] == {"env_steps": 60_000}, "a key is replaced as a whole"
    assert run.config["experiment"]["thresholds"] == [15.0, 20.0]
    actor = run.config["distribution"]["actor"]
    assert (actor["send_size"], actor["num"]) == (8, 1), "keys of a section are set one by one"
    assert run.summary is not None
    assert run.summary["env_steps"] >= 60_000
    assert run.checkpoints[:2] == ("best", "last")
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    metrics = run.metrics
    assert list(metrics["env_steps"]) == [row["env_steps"] for row in rows]
    assert metrics["env_steps"].dtype == np.int64
    assert np.isnan(metrics["returns.mean_100"][0]), "there is none yet"
    with_losses = next(number for number, row in enumerate(rows) if row["losses"])
    assert metrics["losses.entropy"][with_losses] == rows[with_losses]["losses"]["entropy"]
    assert metrics["reached.env_steps"].shape == metrics["staleness.mean"].shape == (len(rows),)
    assert not metrics.keys() & {"losses", "staleness", "roles"}, "tables have columns of their own"
    again = tianji.Run("mine", out=out)
    assert (again.path, repr(again)) == (run.path, f"Run('{run.path}')")
    assert tianji.load(again).act(np.zeros(4)) in {0, 1}
    frame = run.frame
    assert list(frame.columns) == list(metrics)
    assert list(frame["env_steps"]) == list(metrics["env_steps"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tianji.TianjiError, match="pip install pandas"):
        _ = run.frame


def test_train_shows_what_the_command_shows(workplace: Any, capfd: Any) -> None:
    run = tianji.train(workplace.config(), out=workplace.place / "out", quiet=False)
    shown = capfd.readouterr()
    assert re.search(rf"run directory +{run.path}\n", shown.out)
    assert "env_steps" in shown.err


def test_train_says_what_is_wrong_and_what_failed(workplace: Any) -> None:
    config, out = workplace.config(), workplace.place / "out"
    with pytest.raises(tianji.TianjiError, match=r"--set: training.gama: .*gamma"):
        tianji.train(config, out=out, training={"gama": 0.9})
    with pytest.raises(tianji.TianjiError, match="no such file"):
        tianji.train("nothing.toml", out=out)
    with pytest.raises(tianji.TianjiError, match="a config has no NoneType"):
        tianji.train(config, out=out, training={"gamma": None})
    assert not out.exists()
    workplace.module("raise ImportError('on purpose')")
    with pytest.raises(tianji.TianjiError, match="on purpose"):
        tianji.train(config, out=out, environment={"type": "my_env:Env", "id": ""})


SCRIPT = """
import sys, tianji
try:
    tianji.train(sys.argv[1], out=sys.argv[2], experiment={"stop": {"wall_s": 600}})
except KeyboardInterrupt:
    print("interrupted", tianji.Run("run", sys.argv[2]).summary["status"])
"""


def test_an_interruption_of_train_leaves_a_checkpoint_and_goes_on_to_the_caller(workplace: Any) -> None:
    out = workplace.place / "out"
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(workplace.config()), str(out)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(workplace.place / "tmp")},
    )
    try:

        def learns() -> bool:
            files = [out / "run/1" / name for name in ("config.toml", "metrics.jsonl")]
            rows = tianji.Run("run", out).metrics if all(file.exists() for file in files) else {}
            return "updates" in rows and rows["updates"][-1] > 0

        workplace.until(learns, "updates")
        child.send_signal(signal.SIGINT)
        said, _ = child.communicate(timeout=120)
        assert said == "interrupted stopped\n"
        assert (out / "run/1/checkpoints/last/model.safetensors").is_file()
        workplace.until(lambda: not in_session(child.pid), "all of its processes end")
    finally:
        kill_session(child.pid)


SELF = """
import gymnasium, tianji
class Mine(gymnasium.Wrapper):
    def __init__(self, **options):
        super().__init__(gymnasium.make("CartPole-v1"))
gymnasium.register("Mine-v0", Mine)
tianji.train("run.toml", out="out")
"""


@pytest.mark.parametrize("given", [{"type": "my_env:Mine", "id": ""}, {"id": "my_env:Mine-v0"}])
def test_a_script_that_trains_as_it_is_imported_is_refused_with_the_guard(workplace: Any, given: Any) -> None:
    """Each training would import the script, which begins a training."""
    workplace.module(SELF)
    workplace.config({"environment": given})
    child = subprocess.Popen(
        [sys.executable, "my_env.py"],
        cwd=workplace.place,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(workplace.place / "tmp")},
    )
    try:
        _, said = child.communicate(timeout=120)
        assert child.returncode == 1
        assert "TianJi imports 'my_env'" in said
        assert 'call it under `if __name__ == "__main__":`' in said
        assert not (workplace.place / "out").exists()
        workplace.until(lambda: not in_session(child.pid), "all of its processes end")
    finally:
        kill_session(child.pid)


def test_a_run_whose_module_trains_as_it_is_imported_is_not_loaded(workplace: Any) -> None:
    workplace.module(SELF.partition("tianji.train")[0])
    path = trained(workplace, {"environment": {"type": "my_env:Mine", "id": ""}})
    workplace.module(SELF)
    with pytest.raises(tianji.TianjiError, match=r"'my_env' .* calls tianji\.train"):
        tianji.load(path)


def test_an_id_that_only_a_script_has_registered_is_named_as_such(workplace: Any) -> None:
    gymnasium.register("Mine-v0", lambda: gymnasium.make("CartPole-v1"))
    for given in ("Mine-v0", "__main__:Mine-v0"):
        config = workplace.config({"environment": {"id": given}})
        with pytest.raises(tianji.TianjiError, match=r"your own: 'module:ID'.* a script's are its alone"):
            tianji.train(config, out=workplace.place / "out")
