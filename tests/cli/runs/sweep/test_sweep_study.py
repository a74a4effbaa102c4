"""The trials in the journal: how they are drawn, that each is taken once, what is in the file."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState

from tianji_cli.config.source import read
from tianji_cli.runs.sweep.space import Plan, plan_sweep
from tianji_cli.runs.sweep.study import SweepStudy

PARAMETERS = """
training.learning_rate = { low = 1e-6, high = 1e-1, log = true, points = 3 }
training.epochs = { low = 1, high = 3 }
training.backend = { choices = ["torch", "numpy"] }
training.clip_range = { low = 0.1, high = 0.3, step = 0.1, when = { "training.backend" = "torch" } }
"""


def plan(place: Path, parameters: str = PARAMETERS, **sweep: Any) -> Plan:
    lines = "\n".join(
        f"{key} = {json.dumps(value)}" for key, value in {"metric": "mean_100", **sweep}.items()
    )
    config = place / "it.toml"
    config.write_text(
        f'extends = "configs/ppo_cartpole.toml"\n[sweep]\n{lines}\n[sweep.parameters]\n{parameters}'
    )
    return plan_sweep(read(str(config)), None)


def study_of(place: Path, of: Plan) -> SweepStudy:
    study = SweepStudy(place / "journal.log", of.sweep, of.space)
    study.ask_for(of.trials)
    return study


def run_all(study: SweepStudy, value: Any) -> list[dict[str, Any]]:
    """Run all trials with a function in the place of trainings."""
    found = []
    while (trial := study.take("me", lambda _: False)) is not None:
        values = study.values(trial)
        found.append(values)
        study.finish(trial, value(values))
    return found


def test_a_grid_has_every_combination_once_and_conditions_leave_out_what_does_not_matter(
    tmp_path: Path,
) -> None:
    study = study_of(tmp_path, plan(tmp_path, sampler="grid"))
    found = run_all(study, lambda values: values["training.epochs"])
    rates = {values["training.learning_rate"] for values in found}
    assert sorted(rates) == pytest.approx([1e-6, 10**-3.5, 1e-1])
    assert {values["training.epochs"] for values in found} == {1, 2, 3}
    keys = [json.dumps(values, sort_keys=True) for values in found]
    assert len(set(keys)) == len(keys) == 3 * 3 * (1 + 3)
    of_numpy = [values for values in found if values["training.backend"] == "numpy"]
    assert len(of_numpy) == 9
    assert not any("training.clip_range" in values for values in of_numpy)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_draws_follow_from_the_seed_and_stay_in_their_ranges(tmp_path: Path, sampler: str) -> None:
    found = []
    for place in (tmp_path / "a", tmp_path / "b"):
        place.mkdir()
        study = study_of(place, plan(place, sampler=sampler, trials=14))
        found.append(run_all(study, lambda values: -np.log(values["training.learning_rate"])))
    assert found[0] == found[1]
    assert len({values["training.learning_rate"] for values in found[0]}) == 14
    for values in found[0]:
        assert 1e-6 <= values["training.learning_rate"] <= 1e-1
        assert values["training.epochs"] in {1, 2, 3}
        assert isinstance(values["training.epochs"], int)
        assert ("training.clip_range" in values) == (values["training.backend"] == "torch")


def test_the_journal_has_plain_json_and_nothing_pickled(tmp_path: Path) -> None:
    study = study_of(tmp_path, plan(tmp_path, sampler="tpe", trials=20))
    run_all(study, lambda values: values["training.epochs"])

    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for item in value.values() for text in texts(item)]
        return [value] if isinstance(value, str) else []

    for line in (tmp_path / "journal.log").read_text().splitlines():
        for text in texts(json.loads(line)):
            assert not text.startswith("8004"), "bytes of a pickle, in hexadecimal digits"
            assert len(text) < 1000


def test_a_trial_is_taken_once_and_again_when_it_was_given_up(tmp_path: Path) -> None:
    of = plan(tmp_path, sampler="random", trials=2)
    one, other = study_of(tmp_path, of), study_of(tmp_path, of)
    first, second = one.take("one", lambda _: False), other.take("other", lambda _: False)
    assert first is not None
    assert second is not None
    assert {first.number, second.number} == {0, 1}
    assert other.take("other", lambda _: False) is None
    values = one.values(first)
    taken = other.take("other", lambda trial: trial.user_attrs["worker"] == "one")
    assert taken is not None
    assert taken.number == first.number
    assert other.values(taken) == values
    assert not one.is_owner(first.number, "one")
    assert other.is_owner(first.number, "other")


def test_a_line_that_one_was_killed_in_does_not_spoil_those_of_one_who_waited_for_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = plan(tmp_path, sampler="random", trials=2)
    study = study_of(tmp_path, of)
    trial = study.take("me", lambda _: False)
    assert trial is not None
    journal, lock = tmp_path / "journal.log", tmp_path / "journal.log.lock"
    lock.touch()  # Another process writes.

    def is_killed(_while_this_one_sleeps_s: float) -> None:
        with journal.open("a") as file:
            file.write('{"op_code":6,"wor')
        lock.unlink()

    monkeypatch.setattr("optuna.storages.journal._file.time.sleep", is_killed)
    study.finish(trial, 1.0)
    states = [one.state for one in study_of(tmp_path, of).trials]
    assert states == [TrialState.COMPLETE, TrialState.WAITING]


def test_a_trial_without_the_metric_is_not_the_best(tmp_path: Path) -> None:
    study = study_of(tmp_path, plan(tmp_path, sampler="random", trials=2))
    run_all(study, lambda _: -math.inf)
    assert study.best is None
    study.ask_for(3)
    run_all(study, lambda _: -7.0)
    assert study.best is not None
    assert study.best.number == 2


@pytest.mark.parametrize("high", ["3", "3.0"])
def test_ends_that_are_whole_are_whole_however_they_are_written(tmp_path: Path, high: str) -> None:
    (dimension,) = plan(tmp_path, f"training.epochs = {{ low = 1.0, high = {high} }}").space.dimensions
    assert dimension.whole
    assert [repr(value) for value in dimension.points()] == ["1", "2", "3"]
