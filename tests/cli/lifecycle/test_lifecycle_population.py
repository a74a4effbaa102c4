"""Populations through the command: members are compared, copied, killed, resumed; the accounts stay exact."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS

POPULATION: dict[str, Any] = {
    "distribution": {"groups": 2},
    "population": {
        "interval": 2000,
        "perturb": {"training.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}},
    },
}
FRAGMENT = 16 * 8
"""Env steps of a fragment."""
OF_DQN = {
    "agent": {"type": "dqn"},
    "model": {"type": "mlp_q", "hidden": [16]},
    "training": {"batch_size": 64, "replay_ratio": 1.0, "warmup_steps": 512, "publish_every": 8},
    "population": {"perturb": {"agent.epsilon_end": {"low": 0.01, "high": 0.5}}},
}
TOY = Path(__file__).parents[3] / "docs/examples/coefficients.toml"


def compared(run: Any, rounds: int) -> Any:
    """Wait until members were compared so often."""

    def done() -> bool:
        assert run.command.process.poll() is None, run.command.stdout + run.command.stderr
        found = run.rows[-1].get("population") if run.rows else None
        return found is not None and found["rounds"] >= rounds

    return done


def entries(run: Any) -> list[dict[str, Any]]:
    document = json.loads((run.path / "lineage.json").read_text())
    assert document["schema"] == 1
    found: list[dict[str, Any]] = document["entries"]
    return found


def member(run: Any, group: int) -> dict[str, Any]:
    """A member's entry in its last checkpoint."""
    place = run.path / "checkpoints" / (f"group-{group}" if group else "")
    found: dict[str, Any] = json.loads((place / "last/state.json").read_text())["member"]
    return found


@pytest.mark.parametrize(
    "transport", ["shm", *(pytest.param(one, marks=pytest.mark.soak) for one in ("zmq", "mpi", "ucx"))]
)
def test_members_are_compared_and_copied_over_every_engine(workplace: Any, transport: str) -> None:
    stop = {"experiment": {"stop": {"env_steps": 20_000}, "plots": True}}
    run = workplace.train(POPULATION, stop, {"distribution": {"transport": transport}})
    summary = run.finish()
    run.check_refusals()
    population = summary["population"]
    assert population["rounds"] >= 2
    rounds = [entry for entry in entries(run) if entry["kind"] == "round"]
    assert len(rounds) == population["rounds"]
    taken = [one for entry in rounds for one in entry["members"] if one["from"] is not None]
    assert len(taken) == sum(one["takeovers"] for one in population["members"]) >= 1
    assert summary["averaging"] is None
    assert population["best"] in {0, 1}
    for group in range(2):
        for one in member(run, group)["takeovers"]:
            assert one["from"] == 1 - group
    assert summary["received"] == summary["env_steps"]
    assert (run.path / "plots/lineage.png").stat().st_size > 1000


def test_fragments_of_a_policy_that_is_gone_are_dropped_and_counted(workplace: Any) -> None:
    often = {"population": {"interval": 600, "selection": "truncation"}}
    run = workplace.train(POPULATION, often, {"experiment": {"stop": {"env_steps": 40_000}}})
    summary = run.finish()
    assert summary["population"]["rounds"] > 5
    # Whole fragments, beside those that were begun when training ended.
    assert summary["dropped"] > 2 * FRAGMENT


def test_the_exploration_of_a_member_is_that_of_its_own_actor(workplace: Any) -> None:
    workplace.base = {key: value for key, value in workplace.base.items() if key != "training"}
    changes = OF_DQN, {"experiment": {"stop": {"env_steps": 30_000}}}
    summary = workplace.train(POPULATION, *changes).finish()
    assert summary["population"]["rounds"] >= 1
    for one in summary["population"]["members"]:
        assert 0.01 <= one["hyperparameters"]["agent.epsilon_end"] <= 0.5
        assert one["hyperparameters"].keys() == {"training.learning_rate", "agent.epsilon_end"}


def test_a_population_that_is_interrupted_goes_on_with_what_its_members_were(workplace: Any) -> None:
    run = workplace.train(POPULATION, ENDLESS)
    workplace.until(compared(run, 3), "three rounds")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    saved = [member(run, group) for group in range(2)]
    before = len([entry for entry in entries(run) if entry["kind"] == "round"])
    stop = f"experiment.stop.env_steps={summary['env_steps'] + 15_000}"
    again = workplace.resume(run, "--set", stop)
    after = again.finish()
    starts = [entry for entry in entries(run) if entry["kind"] == "start"]
    assert len(starts) == 2
    assert [one["hyperparameters"] for one in starts[1]["members"]] == [
        one["hyperparameters"] for one in saved
    ]
    assert after["population"]["rounds"] > before
    taken = [one for entry in entries(run) for one in entry["members"] if one.get("from") is not None]
    assert sum(one["takeovers"] for one in after["population"]["members"]) == len(taken)
    last = {one["group"]: one["from"] for one in taken}
    assert [one["parent"] for one in after["population"]["members"]] == [last.get(0), last.get(1)]
    assert after["env_steps"] == summary["env_steps"] + after["received"]
    for group in range(2):
        kept = saved[group]["takeovers"]
        assert member(run, group)["takeovers"][: len(kept)] == kept


@pytest.mark.parametrize("group", [1, pytest.param(0, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "transport", ["shm", *(pytest.param(one, marks=pytest.mark.soak) for one in ("zmq", "ucx"))]
)
def test_a_member_that_is_killed_comes_back_as_a_copy_of_a_living_one(
    workplace: Any, transport: str, group: int
) -> None:
    run = workplace.train(POPULATION, ENDLESS, {"distribution": {"transport": transport}})
    workplace.until(compared(run, 2), "two rounds")
    killed = run.command.kill(f"buffer and learner (group {group})")
    workplace.until(lambda: f"member {group} is there again" in run.log, "its successor")
    assert run.command.pid_of(f"buffer and learner (group {group})") != killed
    rounds = run.rows[-1]["population"]["rounds"]
    workplace.until(compared(run, rounds + 2), "rounds with it")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    (replaced,) = [entry for entry in entries(run) if entry["kind"] == "replaced"]
    assert (replaced["group"], replaced["from"]) == (group, 1 - group)
    assert summary["population"]["members"][group]["parent"] == 1 - group
    assert {role["restarts"] for role in summary["roles"] if role["group"] == group} == {1}
    # What the dead learner had counted still counts; what its buffer held then is lost.
    assert summary["received"] == summary["env_steps"]


def test_env_steps_of_a_member_that_is_there_again_count_before_it_has_learnt_anything(
    workplace: Any,
) -> None:
    run = workplace.train(POPULATION, ENDLESS, {"population": {"interval": 10**6}})
    workplace.until(lambda: run.rows and run.rows[-1]["env_steps"] > 20_000, "members that have come far")
    run.command.kill("buffer and learner (group 1)")
    workplace.until(lambda: "member 1 is there again" in run.log, "its successor")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["received"] == summary["env_steps"]
    saved = [json.loads(path.read_text()) for path in run.path.glob("checkpoints/**/last/state.json")]
    assert sum(one["progress"]["env_steps"] for one in saved) == summary["env_steps"]


def test_a_member_is_lost_when_it_may_not_be_started_anew_and_that_is_said(workplace: Any) -> None:
    run = workplace.train(POPULATION, ENDLESS, {"distribution": {"max_restarts_per_minute": 0}})
    workplace.until(compared(run, 1), "a round")
    run.command.kill("buffer and learner (group 1)")
    rounds = run.rows[-1]["population"]["rounds"]
    workplace.until(lambda: "group 1 is lost" in run.log, "its loss")
    assert "member 1 is not started anew: restarts are limited to 0 a minute" in run.log
    workplace.until(compared(run, rounds + 2), "rounds without it")
    run.command.signal_all(signal.SIGINT)
    assert "without group 1, lost on the way" in run.finish(130)["reason"]


def test_the_death_of_the_last_member_ends_the_job(workplace: Any) -> None:
    run = workplace.train(POPULATION, ENDLESS)
    workplace.until(compared(run, 1), "a round")
    pids = [run.command.pid_of(f"buffer and learner (group {group})") for group in range(2)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # So that neither is there again before the other is dead, too.
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert "was killed by SIGKILL" in run.finish(1)["reason"]


def test_an_exception_of_the_users_is_no_death_that_is_replaced(workplace: Any) -> None:
    workplace.module(
        "import gymnasium\n\n\ndef make():\n"
        "    class Breaks(gymnasium.Wrapper):\n"
        "        steps = 0\n\n"
        "        def step(self, action):\n"
        "            self.steps += 1\n"
        "            if self.steps > 300:\n"
        "                raise ValueError('that is enough')\n"
        "            return super().step(action)\n\n"
        "    return Breaks(gymnasium.make('CartPole-v1'))\n"
    )
    environment = {"environment": {"type": "my_env:make", "num_envs": 8}}
    workplace.base = {key: value for key, value in workplace.base.items() if key != "environment"}
    run = workplace.train(POPULATION, ENDLESS, environment)
    assert "that is enough" in run.finish(1)["reason"]
    assert "is started anew" not in run.log


def test_evaluations_judge_members_where_they_are_on(workplace: Any) -> None:
    evaluation = {"experiment": {"evaluation": {"every_s": 0.1, "episodes": 2}}}
    run = workplace.train(POPULATION, ENDLESS, evaluation)

    def judged() -> bool:
        found = run.rows[-1].get("population") if run.rows else None  # Rows of evaluations have none.
        return found is not None and any(one["score"] is not None for one in found["members"])

    workplace.until(judged, "a member that was evaluated")
    run.command.signal_all(signal.SIGINT)
    assert run.finish(130)["population"]["metric"] == "evaluation"


def test_jaderbergs_toy_reaches_its_maximum_and_members_by_themselves_do_not(workplace: Any) -> None:
    options = ("--quiet", "--out", "out", "--set", "experiment.plots=false")
    few = ("--set", "experiment.stop={mean_return=1.19,env_steps=100_000}")
    command = workplace.command("train", str(TOY), *options, *few)
    command.wait(0)
    place = workplace.place / "out/coefficients/1"
    summary = json.loads((place / "summary.json").read_text())
    assert summary["reason"].startswith("mean return of the last 100 episodes is 1.19")
    assert summary["evaluation"]["mean"] > 1.18
    lineage = json.loads((place / "lineage.json").read_text())["entries"]
    first = [one["hyperparameters"] for one in lineage[0]["members"]]
    assert first == [{"training.h0": 1.0, "training.h1": 0.0}, {"training.h0": 0.0, "training.h1": 1.0}]
    config = (place / "config.toml").read_text()
    alone = workplace.place / "alone.toml"
    alone.write_text(config[: config.index("[population]")].replace("groups = 2", "groups = 1"))
    own = (
        "--set",
        "experiment.stop={env_steps=4_000}",
        "--set",
        "training.h1=0.0",
        "--set",
        "experiment.name=alone",
    )
    command = workplace.command("train", str(alone), *options, *own)
    command.wait(0)
    summary = json.loads((workplace.place / "out/alone/1/summary.json").read_text())
    assert summary["returns"]["best_mean_100"] == pytest.approx(1.2 - 0.81, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distribution": {"groups": 1}}, "its members are groups, and there is one"),
        (
            {"population": {"perturb": {"environment.num_envs": {"low": 1, "high": 4}}}},
            "environment.num_envs: members cannot differ in it: it is part of the plan they share",
        ),
        (
            {"population": {"perturb": {"training.minibatch_size": {"low": 16, "high": 64}}}},
            "training.minibatch_size: 'ppo' cannot change it while it trains",
        ),
        (
            {"population": {"perturb": {"training.learning_rte": {"low": 1, "high": 2}}}},
            "training has no key 'learning_rte'; did you mean 'learning_rate'?",
        ),
        (
            {
                "training": {"normalize_rewards": False},
                "population": {"perturb": {"training.gamma": {"low": 0.5, "high": 1.5}}},
            },
            "training.gamma: 1.5 is out of its range",
        ),
        ({"population": {"metric": "evaluation"}}, "nothing is evaluated while training"),
        ({"population": {"interval": 2000}}, "it would end before they are compared"),
    ],
)
def test_what_could_be_no_population_is_refused_before_anything_starts(
    workplace: Any, changes: dict[str, Any], said: str
) -> None:
    few = {"experiment": {"stop": {"env_steps": 10**6}}} if "interval" not in str(changes) else {}
    command = workplace.command("train", str(workplace.config(POPULATION, few, changes)), "--out", "out")
    command.wait(2)
    assert said in command.stderr
    assert not (workplace.place / "out").exists()
