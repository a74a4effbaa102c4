"""Claims about what is made of the figures of `tianji bench staleness`: a table, JSON and a plot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli.quick import PNG
from lab.trainings import FOUND, LAG8, NEW, plan, trained

from tianji_lab.staleness.plots import draw
from tianji_lab.staleness.report import print_rows, result_of
from tianji_lab.staleness.study import Setting, cautions, rows_of


def test_rows_hold_interquartile_means_and_how_they_lie_to_the_first(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    new, lag8 = rows_of(FOUND, [])
    assert new.time_to_s.middle == pytest.approx(1.2)
    assert lag8.time_to_s.middle == pytest.approx(2.2)
    assert new.steps_to.middle == pytest.approx(1200)
    assert (new.staleness.middle, lag8.staleness.middle) == (1.0, 4.5)
    assert new.time_to_s.low < 1.2 < new.time_to_s.high
    assert lag8.times_the_first == pytest.approx(2.2 / 1.2)
    assert [row.overlaps_first for row in (new, lag8)] == [True, True]
    print_rows((new, lag8), plan(config, overrides=["training.rollout_steps=128"]))
    assert "# a rollout is one fragment, all new or all old" in capsys.readouterr().out


def test_intervals_apart_do_not_overlap(capsys: pytest.CaptureFixture[str], config: str) -> None:
    found = {
        NEW: [trained(seed, 1 + seed / 100) for seed in range(5)],
        LAG8: [trained(seed, 2 + seed / 100) for seed in range(5)],
    }
    rows = rows_of(found, [])
    assert rows[1].overlaps_first is False
    print_rows(rows, replace(plan(config), settings=(NEW, LAG8), threshold=300.0))
    said = capsys.readouterr().out
    assert "Lag8 took 1.98 times as long to 300 as New; the intervals do not overlap" in said
    assert "a rollout is one fragment" not in said
    assert cautions(found, 300.0) == []


@pytest.mark.parametrize(
    ("seeds", "width", "warnings", "why"),
    [
        (4, 0.01, [], "4 seeds, and 5 are the least"),
        (5, 0.01, ["this machine is too busy to measure"], "the header has warnings"),
        (5, 0.0, [], "the interval of New has no width"),
    ],
)
def test_no_verdict_is_drawn_from_few_seeds_a_warning_or_an_interval_of_no_width(
    capsys: pytest.CaptureFixture[str],
    config: str,
    seeds: int,
    width: float,
    warnings: list[str],
    why: str,
) -> None:
    found = {
        NEW: [trained(seed, 1 + seed * width) for seed in range(seeds)],
        LAG8: [trained(seed, 2 + seed / 100) for seed in range(seeds)],
    }
    rows = rows_of(found, warnings)
    assert [row.overlaps_first for row in rows] == [None, None]
    print_rows(rows, replace(plan(config), settings=(NEW, LAG8), threshold=300.0))
    said = capsys.readouterr().out
    assert f"times as long to 300 as New; no verdict: {why}" in said
    assert "overlap" not in said
    whole = result_of(plan(config), {}, warnings, rows).document
    assert [(row["overlaps_first"], row["no_verdict"]) for row in whole["rows"]] == [(None, why)] * 2


def test_trainings_that_never_reached_it_count_with_their_end_and_are_marked(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    poor = Setting("poor", 8, ("environment.num_envs=1",))
    found = {NEW: FOUND[NEW], poor: [trained(seed, 5.0, reached=seed > 1) for seed in range(5)]}
    (caution,) = cautions(found, 300.0)
    rows = rows_of(found, [caution])
    assert (rows[1].reached, rows[1].time_to_s.middle) == (3, 5.0)
    assert caution.startswith("2 of 5 trainings of Lag8 in the poor mapping did not reach 300")
    print_rows(rows, replace(plan(config), settings=(NEW, poor), threshold=300.0))
    said = capsys.readouterr().out
    assert ">= 5.00 [>= 5.00, ?]" in said
    assert "5.00]" not in said, "an interval without width would look exact"
    assert (
        "Lag8 in the poor mapping took at least 4.17 times as long to 300 as New; "
        "no verdict: the header has warnings" in said
    )
    assert "3/5" in said
    assert "# poor mapping: environment.num_envs=1" in said


def test_nothing_is_a_multiple_of_what_was_not_reached(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    found = {NEW: [trained(seed, 2.0, reached=False) for seed in range(5)], LAG8: FOUND[LAG8]}
    rows = rows_of(found, ["w"])
    assert [row.times_the_first for row in rows] == [None, None]
    print_rows(rows, replace(plan(config), settings=(NEW, LAG8), threshold=300.0))
    said = capsys.readouterr().out
    assert "how many times as long to 300 as New Lag8 took is not known" in said
    whole = result_of(plan(config), {"CPU": "x"}, ["w"], rows).document
    new, lag8 = json.loads(json.dumps(whole, allow_nan=False))["rows"]
    assert new["time_to_s"]["at_least"] is True
    assert lag8["time_to_s"]["iqm"] == pytest.approx(2.2)
    assert [(one["lag"], one["seed"]) for one in whole["trainings"]] == [
        (lag, seed) for lag in (1, 8) for seed in range(5)
    ]


@pytest.mark.parametrize("reached", [True, False])
def test_figures_are_drawn_for_lags_and_mappings(tmp_path: Path, reached: bool) -> None:
    poor = Setting("poor", 8, ("environment.num_envs=1",))
    found = {**FOUND, poor: [trained(seed, 3.0 + seed, reached=reached) for seed in range(5)]}
    draw(rows_of(found, []), 300.0, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)
