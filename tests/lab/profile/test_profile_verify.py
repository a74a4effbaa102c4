"""Claims about proofs: what is trained, and which of its reports count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.errors import RunFailed
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_cli.telemetry.metrics import read_metrics
from tianji_cli.telemetry.progress import Progress
from tianji_lab.model.costs import Split
from tianji_lab.model.prediction import Prediction
from tianji_lab.profile import verify as verify_module
from tianji_lab.profile.search import Candidate
from tianji_lab.profile.settings import as_settings, split_of, split_values
from tianji_lab.profile.verify import CYCLES, MOST_S, SETTLES_S, WINDOW_S, Rates, rates_of, verify

DQN = "configs/dqn_cartpole.toml"


class Listening(Progress):
    """Progress that is kept."""

    def __init__(self) -> None:
        super().__init__(0, quiet=True)
        self.said: list[str] = []

    def begin(self, what: str) -> None:
        self.said.append(what)

    def done(self, result: str) -> None:
        self.said.append(result)


def candidate(config: str, split: Split | None = None, uses_per_s: float = 40_000.0) -> Candidate:
    split = split or split_of(load_config(config))
    steps, none = uses_per_s / 2, Bottleneck("balanced", "")
    prediction = Prediction(split, 2.0, steps, steps, uses_per_s, uses_per_s, {}, none)
    return Candidate(prediction, tuple(as_settings(split_values(split))), (), None)


# -- a real training -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize(
    ("learners", "groups"),
    [(1, 2), *(pytest.param(*one, marks=pytest.mark.soak) for one in ((1, 1), (2, 1)))],
)
def test_what_is_measured_is_what_a_training_says_of_itself(
    config: str, tmp_path: Path, learners: int, groups: int
) -> None:
    listening = Listening()
    split = Split(learners, learner_cores=1, actors=2 // groups, num_envs=4, groups=groups)
    wanted = candidate(config, split)
    place = tmp_path / "runs"
    (found,) = verify(config, (), [wanted], progress=listening, rounds=1, window_s=1.0, place=place)
    run = RunDirectory.find("split-1", place)
    summary = json.loads(run.summary.read_text())
    assert split_of(load_config(str(run.config))) == split
    assert summary["evaluation"] is None
    assert summary["time_to"] == {}
    assert found.prediction is wanted.prediction
    assert found.measured == rates_of(read_metrics(run.metrics), is_balanced=True).uses_per_s
    # The summary is of the whole training, its beginning and the machine's slow moments included.
    assert 0.2 < found.measured / summary["consumed_per_s"] < 5
    assert found.steps_per_s.median == pytest.approx(found.measured / summary["replay_ratio"]["target"])
    assert found.error == pytest.approx(found.predicted / found.measured - 1)
    assert len(listening.said) == 2
    assert split.name in listening.said[0]


# -- which reports count -------------------------------------------------------------------------------


def row(train_s: float, received: int, *, updates: int, consumed: int = 0) -> dict[str, Any]:
    return {
        "elapsed_s": train_s,
        "train_s": train_s,
        "env_steps": received,
        "updates": updates,
        "mean_100": None,
        "consumed": consumed,
        "replay_ratio_target": 4.0,
    }


ROWS = [
    row(0.0, 0, updates=0),
    row(0.2, 1000, updates=0),  # The time of the start ...
    row(0.5, 2000, updates=1, consumed=50),
    row(1.0, 3000, updates=10, consumed=7000),  # ... and of a rush after it
    row(SETTLES_S + 0.5, 10_000, updates=20, consumed=30_500),
    row(SETTLES_S + 1.5, 12_000, updates=30, consumed=41_000),
    row(SETTLES_S + 2.5, 14_000, updates=40, consumed=46_500),
    row(SETTLES_S + 2.7, 19_000, updates=44, consumed=47_000),  # what was left is counted at the end
    row(SETTLES_S + 2.7, 19_000, updates=44, consumed=47_000),
]


def test_neither_the_beginning_nor_the_end_nor_a_warm_up_counts() -> None:
    assert rates_of(ROWS, is_balanced=True) == Rates(8000.0, 2000.0)
    later = [one | {"train_s": one["train_s"] + 10.0} for one in ROWS]
    warming = [row(seconds, 100, updates=0) for seconds in (1.0, 5.0, 9.0)]
    assert rates_of([*warming, *later], is_balanced=True) == Rates(8000.0, 2000.0)
    # Uses are counted where nothing ties them to steps.
    assert rates_of(ROWS, is_balanced=False) == Rates(8000.0, 2000.0)
    ahead = [one | {"consumed": 2 * one["consumed"]} for one in ROWS]
    assert rates_of(ahead, is_balanced=False) == Rates(16_000.0, 2000.0)
    assert rates_of(ahead, is_balanced=True) == Rates(8000.0, 2000.0)


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS[:4], ROWS[:6], [ROWS[4]] * 5])
def test_a_training_that_was_too_slow_has_no_figures(rows: Sequence[dict[str, Any]]) -> None:
    with pytest.raises(RunFailed, match="too slow"):
        rates_of(rows, is_balanced=True)


# -- what is trained -----------------------------------------------------------------------------------


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    """Trainings that nobody makes; their names and settings, in their order."""
    asked: list[tuple[str, dict[str, str]]] = []

    def train_once(config: str, overrides: Sequence[str], *, name: str, place: Path) -> RunDirectory:
        load_config(config, overrides)
        settings = dict(override.split("=", 1) for override in overrides)
        asked.append((name, settings))
        run = RunDirectory.create(name, place)
        lost = settings.get("experiment.name") == "lossy"
        counts = {"produced": 100 + lost, "received": 90, "in_flight": 10, "dropped": 0}
        run.summary.write_text(json.dumps(counts))
        pace = len(asked)
        rows = [{**one, "produced": one["env_steps"], "env_steps": one["env_steps"] * pace} for one in ROWS]
        run.metrics.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
        assert read_metrics(run.metrics)
        return run

    monkeypatch.setattr(verify_module, "train_once", train_once)
    return asked


def test_splits_take_turns_and_the_median_of_their_runs_counts(
    config: str, trained: list[tuple[str, dict[str, str]]]
) -> None:
    few, many = (candidate(config, Split(1, 1, 1, num_envs)) for num_envs in (4, 16))
    found = verify(config, (), [few, many], progress=Listening(), rounds=3)
    assert [settings["environment.num_envs"] for _, settings in trained] == ["4", "16"] * 3
    assert [one.split.num_envs for one in found] == [4, 16]
    assert [one.uses_per_s.values for one in found] == [
        (8_000.0, 24_000.0, 40_000.0),
        (16_000.0, 32_000.0, 48_000.0),
    ]
    assert [one.measured for one in found] == [24_000.0, 32_000.0]
    assert [one.error for one in found] == pytest.approx([40 / 24 - 1, 40 / 32 - 1])


def test_a_training_is_long_enough_for_several_rollouts_or_balances_and_a_warm_up(
    config: str, trained: list[tuple[str, dict[str, str]]]
) -> None:
    def seconds(config: str, uses_per_s: float, *overrides: str) -> float:
        verify(config, overrides, [candidate(config, uses_per_s=uses_per_s)], progress=Listening(), rounds=1)
        return float(trained[-1][1]["experiment.stop"].strip("{ }").partition("=")[2])

    for uses_per_s, expected_s in ((1e6, WINDOW_S), (512.0, 2 * WINDOW_S), (1.0, MOST_S)):
        assert seconds(config, uses_per_s) == pytest.approx(SETTLES_S + expected_s)
    tolerances = [f"distribution.balance_tolerance={steps}" for steps in (4000, 6000)]
    less_s, more_s = (seconds(DQN, 8_000.0, tolerance) for tolerance in tolerances)
    assert more_s - less_s == pytest.approx(CYCLES * 2000 * 2.0 / 8_000.0)
    warmup_s = 2048 / 20_000.0
    assert seconds(DQN, 40_000.0) == pytest.approx(SETTLES_S + WINDOW_S + 2 * warmup_s, rel=1e-3)


def test_what_the_user_has_set_is_trained_with_and_a_training_that_lost_samples_has_no_figures(
    config: str, trained: list[tuple[str, dict[str, str]]]
) -> None:
    verify(config, ["training.gamma=0.5"], [candidate(config)], progress=Listening(), rounds=1)
    assert trained.pop()[1]["training.gamma"] == "0.5"
    with pytest.raises(RunFailed, match="misses 1 samples"):
        verify(config, ["experiment.name=lossy"], [candidate(config)], progress=Listening())
    assert len(trained) == 1
