"""A run's final and intermediate values for a sweep, read from its files."""

import json
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.runs.sweep.metrics import CutOffError, MetricCurve, final_value, means_at_points, points_of

EVALUATED = ("experiment.stop={env_steps=100_000}", "experiment.evaluation={every_env_steps=10_000}")


def run_with(place: Path, *rows: dict[str, Any], **summary: Any) -> RunDirectory:
    place.mkdir(exist_ok=True)
    run = RunDirectory.make(place / "1")
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.summary.write_text(json.dumps({"evaluation": None, "returns": {}, "time_to": {}, **summary}))
    return run


def evaluation(env_steps: int, mean: float | None, left_out: int = 0) -> dict[str, Any]:
    of = {"episodes": 10 - left_out, "left_out": left_out, "cut_off": "60.0 s" if left_out else None}
    return {"kind": "evaluation", "env_steps": env_steps, "mean": mean, **of}


def test_evaluations_that_a_resumed_run_makes_anew_replace_the_earlier_ones(tmp_path: Path) -> None:
    rows = [evaluation(100, 1.0), evaluation(200, 2.0), evaluation(300, None), evaluation(200, 5.0)]
    job = load_config("configs/ppo_cartpole.toml", EVALUATED)
    curve = MetricCurve(run_with(tmp_path, *rows), "evaluation", job)
    curve.look()
    assert curve.values == {1: 1.0, 2: 5.0}
    assert points_of("evaluation", job) == 10


def test_seeds_are_averaged_where_no_evaluation_was_cut_off(tmp_path: Path) -> None:
    job = load_config("configs/ppo_cartpole.toml", EVALUATED)
    whole = [evaluation(100, 1.0), evaluation(200, 2.0), evaluation(300, 3.0), evaluation(400, 4.0)]
    cut_off = [evaluation(100, 5.0), evaluation(200, 9.0, left_out=1), evaluation(300, 7.0)]
    curves = {
        seed: MetricCurve(run_with(tmp_path / str(seed), *rows), "evaluation", job)
        for seed, rows in enumerate((whole, cut_off))
    }
    for curve in curves.values():
        curve.look()
    assert means_at_points(curves, going={0, 1}) == {1: 3.0, 3: 5.0}
    assert means_at_points(curves, going={0}) == {1: 3.0, 3: 5.0, 4: 4.0}, "the other one is over"


def test_an_evaluation_that_was_cut_off_has_its_number_and_no_value(tmp_path: Path) -> None:
    rows = [evaluation(100, 1.0), evaluation(200, 99.0, left_out=1), evaluation(300, 3.0)]
    curve = MetricCurve(
        run_with(tmp_path, *rows), "evaluation", load_config("configs/ppo_cartpole.toml", EVALUATED)
    )
    curve.look()
    assert (curve.values, curve.passed) == ({1: 1.0, 3: 3.0}, 3)


def test_a_return_is_known_at_shares_of_the_env_steps(tmp_path: Path) -> None:
    means = {4_000: 1.0, 6_000: None, 16_000: 3.0, 19_000: 4.0, 110_000: 9.0}
    rows = [
        {"wall_s": 1.0, "env_steps": env_steps, "updates": 1, "returns.mean_100": mean}
        for env_steps, mean in means.items()
    ]
    job = load_config("configs/ppo_cartpole.toml", EVALUATED)
    curve = MetricCurve(run_with(tmp_path, *rows), "mean_100", job)
    curve.look()
    assert [curve.values[point] for point in (1, 2, 3, 4, 20)] == [3.0, 3.0, 3.0, 9.0, 9.0]
    assert max(curve.values) == 20


@pytest.mark.parametrize(
    ("metric", "value"),
    [("mean_100", 4.0), ("time_to.475", 1.5), ("time_to.300", None), ("success", 0.5), ("evaluation", 7.0)],
)
def test_a_value_is_read_from_the_summary(tmp_path: Path, metric: str, value: float | None) -> None:
    returns = {"mean_100": 4.0, "metrics": {"success": 0.5}}
    run = run_with(tmp_path, returns=returns, time_to={"475": 1.5, "300": None}, evaluation={"mean": 7.0})
    assert final_value(run, metric) == value


def test_without_a_final_evaluation_the_last_one_counts(tmp_path: Path) -> None:
    run = run_with(tmp_path, evaluation(100, 1.0), evaluation(200, 2.0), evaluation(300, None))
    assert final_value(run, "evaluation") == 2.0


def test_of_an_evaluation_that_was_cut_off_nothing_is_known(tmp_path: Path) -> None:
    cut_off = evaluation(300, 99.0, left_out=3)
    with pytest.raises(CutOffError, match=r"3 of 10 episodes .* after 60.0 s, .*experiment.eval_max_s"):
        final_value(run_with(tmp_path, evaluation(100, 1.0), evaluation=cut_off), "evaluation")
    whole = run_with(tmp_path / "whole", evaluation(200, 2.0), cut_off)
    assert final_value(whole, "evaluation") == 2.0
    with pytest.raises(CutOffError, match=r"experiment.evaluation.max_s may be larger"):
        final_value(run_with(tmp_path / "none", cut_off), "evaluation")
