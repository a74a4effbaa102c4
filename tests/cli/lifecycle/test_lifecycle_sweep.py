"""`tianji sweep`: what it leaves, who takes part, what a killed one has lost, what it refuses."""

import csv
import json
import os
import re
import signal
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.lifecycle.conftest import Run
from cli.sessions import fill_disk, kill_session

SOURCE = """
import errno
import time

import gymnasium
import numpy as np


class Pays(gymnasium.Env):
    '''Pays each step the same, and takes its time if that is little.'''

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pay, step_s, slow_below) -> None:
        if pay == -2:
            raise OSError(errno.EROFS, "Read-only file system", "/data/of/its/own")
        if pay < 0:
            raise ValueError("it costs")
        self._pay, self._step_s = pay, step_s if pay < slow_below else 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(self._step_s)
        return np.zeros(1, np.float32), self._pay, True, False, {}


def make(pay: float = 0.0, step_s: float = 0.0, slow_below: float = 10.0) -> gymnasium.Env:
    return Pays(pay, step_s, slow_below)
"""
ONE_AT_ONCE = {
    "distribution": {"transport": "inproc", "learner": {"cores": len(os.sched_getaffinity(0))}},
}
BASE: dict[str, Any] = {
    "experiment": {"name": "run", "stop": {"env_steps": 512}, "eval_episodes": 0, "plots": False},
    "environment": {"type": "my_env:make", "num_envs": 4},
    "agent": {"type": "ppo"},
    "model": {"type": "mlp_actor_critic", "hidden": [16]},
    "training": {"rollout_steps": 256, "minibatch_size": 256, "epochs": 1},
    "distribution": {"transport": "inproc", "pin_cores": False, "actor": {"send_size": 16}},
}
SLOW = {"environment": {"options": {"step_s": 0.002}}}
SWEEP: dict[str, Any] = {
    "sweep": {
        "metric": "mean_100",
        "trials": 4,
        "parameters": {"environment": {"options": {"pay": {"low": 0.5, "high": 2.0}}}},
    }
}


class Swept:
    """A sweep's directory and its command."""

    def __init__(self, path: Path, command: Any) -> None:
        self.path = path
        self.command = command

    @property
    def rows(self) -> list[dict[str, str]]:
        with (self.path / "trials.csv").open() as file:
            return list(csv.DictReader(file))

    @property
    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return document

    @property
    def journal(self) -> list[dict[str, Any]]:
        journal = self.path / "journal.log"
        lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def ends(self) -> Counter[int]:
        """The number of times that each trial has ended, by its number."""
        return Counter(
            one["trial_id"] for one in self.journal if one["op_code"] == 6 and one["state"] in {1, 2, 3}
        )

    def trained(self, trial: int) -> bool:
        return Run(self.path / f"trials/{trial}/1", self.command).env_steps > 0


@pytest.fixture(autouse=True)
def pays(workplace: Any) -> None:
    workplace.module(SOURCE)
    workplace.base = BASE


def sweep(workplace: Any, *changes: dict[str, Any], options: tuple[str, ...] = ()) -> Swept:
    return again(workplace, workplace.config(SWEEP, *changes), *options)


def again(workplace: Any, config: Path | None = None, *options: str) -> Swept:
    config = config or workplace.place / "run.toml"
    return Swept(workplace.place / "sw", workplace.command("sweep", str(config), "--out", "sw", *options))


def test_a_sweep_leaves_its_trials_and_a_config_that_trains(workplace: Any) -> None:
    swept = sweep(workplace, {"sweep": {"seeds": 2, "trials": 3}}, options=("--json", "-"))
    swept.command.wait(0)
    summary = json.loads(swept.command.stdout)
    assert [summary[key] for key in ("status", "trials", "of", "pruned", "failed")] == [
        "finished",
        3,
        3,
        0,
        0,
    ]
    assert [row["trial"] for row in swept.rows] == ["0", "1", "2"]
    pays = [float(row["environment.options.pay"]) for row in swept.rows]
    assert [float(row["value"]) for row in swept.rows] == pytest.approx(pays, rel=1e-5)
    assert summary["best"]["value"] == pytest.approx(max(pays), rel=1e-5)
    assert summary["best"]["params"] == {"environment.options.pay": max(pays)}
    assert {path.name for path in (swept.path / "plots").iterdir()} >= {
        "history.png",
        "parallel_coordinates.png",
    }
    for trial in range(3):
        configs = [
            tomllib.loads((swept.path / f"trials/{trial}/{seed}/config.toml").read_text()) for seed in (1, 2)
        ]
        assert [one["experiment"]["seed"] for one in configs] == [1, 2]
        assert all("sweep" not in one for one in configs)
    best = tomllib.loads((swept.path / "best.toml").read_text())
    assert best["environment"]["options"]["pay"] == max(pays)
    workplace.command("train", "sw/best.toml", "--quiet", "--out", "out").wait(0)


@pytest.mark.parametrize("with_its_host", [False, True])
def test_of_a_killed_sweep_no_trial_is_lost_or_counted_twice(workplace: Any, with_its_host: bool) -> None:
    swept = sweep(workplace, ONE_AT_ONCE, SLOW, {"sweep": {"trials": 3}})
    workplace.until(lambda: swept.ends[0] and swept.trained(1), "the first is over, the second trains")
    if with_its_host:
        kill_session(swept.command.pid)
    else:
        os.kill(swept.command.pid, signal.SIGKILL)
    swept.command.wait(-signal.SIGKILL)
    drawn = (swept.path / "trials/1/trial.toml").read_text()
    with (swept.path / "journal.log").open("a") as journal:
        journal.write('{"op_code":6,"wor')  # As if it had been killed while it wrote.

    resumed = again(workplace, None, "--resume")
    resumed.command.wait(0)
    assert [row["status"] for row in resumed.rows] == ["finished"] * 3
    assert resumed.ends == {0: 1, 1: 1, 2: 1}
    assert sum(one["op_code"] == 4 for one in resumed.journal) == 3
    assert (swept.path / "trials/1/trial.toml").read_text() == drawn
    assert not list((swept.path / "workers").iterdir()), "what the killed one left is cleared"
    assert not list((swept.path / "trials").glob("3*"))
    assert "trial 0" not in resumed.command.stderr, "it is not run once more"
    (value,) = re.findall(r"trial 2 finished: (\S+) \(", resumed.command.stderr)
    assert float(value) == pytest.approx(float(resumed.rows[2]["value"]), abs=0.005)
    assert resumed.command.stderr.count("(3/3 done)") == 1


def test_a_full_disk_fails_no_trial(workplace: Any, small_disk: Path) -> None:
    path = small_disk / "sw"
    config = str(workplace.config(SWEEP, ONE_AT_ONCE, SLOW, {"sweep": {"trials": 3}}))
    swept = Swept(path, workplace.command("sweep", config, "--out", "out/sw"))
    workplace.until(lambda: swept.ends[0] and swept.trained(1), "the first is over, the second trains")
    filler = fill_disk(small_disk)
    swept.command.wait(1)
    assert "No space left on device" in swept.command.last_words
    filler.unlink()
    resumed = Swept(path, workplace.command("sweep", config, "--out", "out/sw", "--resume"))
    resumed.command.wait(0)
    assert [row["status"] for row in resumed.rows] == ["finished"] * 3
    assert resumed.ends == {0: 1, 1: 1, 2: 1}


def test_ctrl_c_leaves_trials_that_go_on(workplace: Any) -> None:
    swept = sweep(workplace, ONE_AT_ONCE, SLOW, {"sweep": {"trials": 2}})
    workplace.until(lambda: swept.trained(0), "it trains")
    swept.command.signal_all(signal.SIGINT)
    swept.command.wait(130)
    assert swept.summary["status"] == "stopped"
    assert {row["status"] for row in swept.rows} == {"waiting"}
    assert (swept.path / "trials/0/1/checkpoints/last/state.json").exists()
    assert list((swept.path / "workers").iterdir()) == []
    resumed = again(workplace, None, "--resume", "--trials", "3")
    resumed.command.wait(0)
    assert [row["status"] for row in resumed.rows] == ["finished"] * 3


def test_two_commands_with_one_directory_share_its_trials(workplace: Any) -> None:
    swept = sweep(workplace, ONE_AT_ONCE, SLOW, {"sweep": {"trials": 6}})
    other = again(workplace)
    swept.command.wait(0)
    other.command.wait(0)
    assert [row["status"] for row in swept.rows] == ["finished"] * 6
    assert swept.ends == dict.fromkeys(range(6), 1)
    owners = [one["user_attr"]["worker"] for one in swept.journal if "worker" in one.get("user_attr", {})]
    assert len(owners) == 6
    assert len(set(owners)) == 2
    assert len({row["environment.options.pay"] for row in swept.rows}) == 6, "no draw is made twice"


def test_a_trial_that_fails_ends_no_other_and_one_without_the_metric_is_the_worst(
    workplace: Any,
) -> None:
    options = {"pay": {"choices": [-2.0, -1.0, 1.0, 2.0]}}
    asked = {"metric": "time_to.1.5", "sampler": "grid"}
    parameters = {"parameters": {"environment": {"options": options}}}
    reached = {"experiment": {"thresholds": [1.5]}}
    swept = again(workplace, workplace.config(reached, {"sweep": {**asked, **parameters}}))
    swept.command.wait(0)
    rows = {row["environment.options.pay"]: row for row in swept.rows}
    assert {pay: row["status"] for pay, row in rows.items()} == {
        "-2.0": "failed",
        "-1.0": "failed",
        "1.0": "finished",
        "2.0": "finished",
    }
    assert "it costs" in rows["-1.0"]["reason"]
    assert "/data/of/its/own" in rows["-2.0"]["reason"], "no place of the sweep's is full"
    assert rows["1.0"]["value"] == "inf"
    summary = swept.summary
    assert summary["direction"] == "minimize"
    assert summary["best"]["params"] == {"environment.options.pay": 2.0}
    assert [summary[key] for key in ("trials", "failed")] == [4, 2]


def test_a_trial_that_hangs_fails_with_that_as_its_cause_and_is_not_taken_up_again(workplace: Any) -> None:
    options = {"pay": {"choices": [0.5, 2.0]}}
    asked = {"metric": "mean_100", "sampler": "grid", "parameters": {"environment": {"options": options}}}
    hangs = {"step_limit_s": 0.3, "options": {"step_s": 1e9, "slow_below": 1.0}}
    swept = again(workplace, workplace.config({"environment": hangs}, {"sweep": asked}))
    swept.command.wait(0)
    rows = {row["environment.options.pay"]: row for row in swept.rows}
    assert {pay: row["status"] for pay, row in rows.items()} == {"0.5": "failed", "2.0": "finished"}
    assert re.search(r"hung for \S+ s in a step, an action or a picture", rows["0.5"]["reason"])
    again(workplace, None, "--resume").command.wait(0)
    assert set(swept.ends.values()) == {1}


def test_where_no_trial_has_the_metric_there_is_no_best_one(workplace: Any) -> None:
    never = {"experiment": {"thresholds": [1234567.0]}, "sweep": {"metric": "time_to.1234567", "trials": 1}}
    swept = sweep(workplace, never, options=("--json", "-"))
    swept.command.wait(1)
    assert swept.command.last_words == "tianji: error: none of 1 trial has come to a time_to.1234567"
    assert json.loads(swept.command.stdout)["best"] is None
    assert [row["value"] for row in swept.rows] == ["inf"]
    assert not (swept.path / "best.toml").exists()


def test_a_trial_whose_evaluation_was_cut_off_has_failed_and_has_no_value(workplace: Any) -> None:
    cut_off = {"experiment": {"eval_episodes": 100, "eval_max_steps": 1}}
    swept = sweep(workplace, cut_off, {"sweep": {"metric": "evaluation", "trials": 1}})
    swept.command.wait(1)
    (row,) = swept.rows
    assert (row["status"], row["value"]) == ("failed", "")
    assert "of 100 episodes of its evaluation had not ended after" in row["reason"]
    assert row["reason"] in swept.command.last_words


def test_a_trial_that_is_worse_is_pruned(workplace: Any) -> None:
    options = {"pay": {"choices": [0.0, 0.1, 0.2, 1.0]}}
    # By this seed the order is 0.2, 1.0 and the others. Hyperband judges the last three together, and ends
    # all but a third of those that come to a point; the first is judged alone, by other points.
    asked = {"metric": "mean_100", "sampler": "grid", "pruner": "hyperband", "seed": 10}
    parameters = {"parameters": {"environment": {"options": options}}}
    slow = {"environment": {"options": {"step_s": 0.01, "slow_below": 0.15}}}
    longer = {"experiment": {"stop": {"env_steps": 5000}}}
    swept = again(workplace, workplace.config(ONE_AT_ONCE, slow, longer, {"sweep": {**asked, **parameters}}))
    swept.command.wait(0)
    assert [row["status"] for row in swept.rows] == ["finished", "finished", "pruned", "pruned"]
    assert swept.summary["pruned"] == 2
    assert swept.summary["best"]["params"] == {"environment.options.pay": 1.0}
    for row in swept.rows[2:]:
        run = json.loads((swept.path / f"trials/{row['trial']}/1/summary.json").read_text())
        assert run["status"] == "stopped"
        assert run["env_steps"] < 5000
        assert row["value"] == str(float(np.float32(float(row["environment.options.pay"]))))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("sweep.parameters={}",), "sweep.parameters: there are none"),
        (("sweep.parameters={training={gama={low=0.9,high=0.99}}}",), "did you mean 'gamma'?"),
        (
            ("sweep.parameters={training={gamma={low=0.9,high=1.99}}}",),
            "sweep.parameters.training.gamma: 1.99 is out",
        ),
        (("sweep.parameters={training={gamma={low=0.9,high=0.8}}}",), "low: 0.9 is not less than high"),
        (('sweep.parameters={model={type={choices=["mpl"]}}}',), "'mpl' is out of its range"),
        (("sweep.metric=evaluation",), "no trial has a metric 'evaluation'"),
        (("sweep.metric=mean_return",), "'best_mean_100' would be right"),
        (("sweep.metric=time_to.7",), "no trial has a metric 'time_to.7'"),
        (("sweep.sampler=tep",), "did you mean 'tpe'?"),
        (("sweep.pruner=median", "experiment.stop={wall_s=1}"), "set experiment.stop.env_steps"),
        (("sweep.sampler=grid",), "say how many: points = 5"),
        (("distribution.hosts=2", "distribution.transport=zmq"), "one host"),
        (("sweep.parameters={experiment={seed={low=1,high=9}}}",), "set sweep.seeds, how many a trial has"),
        (("sweep.parameters={sweep={trials={low=1,high=9}}}",), "a trial has no [sweep]"),
        (
            ("sweep.parameters={training={epochs={low=1,high=3,step=0.5}}}",),
            "sweep.parameters.training.epochs: 1.5 is out of its range",
        ),
        (("sweep.parameters={training={gamma={low=0.9,high=0.99,logg=true}}}",), "did you mean 'log'?"),
        (('sweep.parameters={training={gamma={low="a",high=0.9}}}',), 'gamma.low: "a" does not fit'),
        (("sweep.sampler=cmaes",), "CMA-ES is no sampler any more; 'tpe'"),
    ],
)
def test_what_cannot_be_swept_is_said_before_anything_is_made(
    workplace: Any, settings: tuple[str, ...], said: str
) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    swept = sweep(workplace, options=tuple(words))
    swept.command.wait(2)
    assert said in swept.command.stderr
    assert not swept.path.exists()
    assert not (workplace.place / "experiments").exists()


def test_a_config_without_a_sweep_is_refused_and_one_with_a_sweep_trains(workplace: Any) -> None:
    plain = again(workplace, workplace.config())
    plain.command.wait(2)
    assert "sweep: missing" in plain.command.last_words
    run = workplace.train(SWEEP)
    run.finish()
    assert "sweep" not in tomllib.loads((run.path / "config.toml").read_text())


def test_another_config_does_not_take_part_and_what_is_damaged_is_named(workplace: Any) -> None:
    swept = sweep(workplace, {"sweep": {"trials": 1}})
    swept.command.wait(0)
    other = again(workplace, workplace.config(SWEEP, {"training": {"gamma": 0.5}}))
    other.command.wait(2)
    assert "differs in [training]" in other.command.stderr
    kept = (swept.path / "sweep.toml").read_text()
    (swept.path / "sweep.toml").write_text(kept.replace("[sweep]", '[sweep]\nsampler = "cmaes"', 1))
    more = ("--trials", "2", "--set", "sweep.sampler=random")
    again(workplace, workplace.config(SWEEP), *more).command.wait(0)  # An earlier version began it.
    with (swept.path / "journal.log").open("a") as journal:
        journal.write("[1, 2]\n")
    damaged = again(workplace, workplace.config(SWEEP))
    damaged.command.wait(1)
    assert damaged.command.last_words.startswith("tianji: error: cannot read sw/journal.log: ")
    (swept.path / "sweep.toml").write_text("[experiment")
    damaged = again(workplace)
    damaged.command.wait(1)
    assert damaged.command.last_words.startswith("tianji: error: cannot read sw/sweep.toml: ")
