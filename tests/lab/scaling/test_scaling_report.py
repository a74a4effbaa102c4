"""Claims about what is made of the figures of `tianji bench scaling`: tables, JSON, CSV and plots."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.quick import PNG
from lab.scaling.scaled import A1, A2, FOUND, study_of, trained
from lab.trainings import left_run
from matplotlib.figure import Figure

from tianji_cli.errors import RunFailed
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.bottleneck import SAMPLE_BOUND
from tianji_lab.profile.model import Prediction
from tianji_lab.profile.split import Split
from tianji_lab.ranges import Range
from tianji_lab.scaling.plots import draw_into
from tianji_lab.scaling.prediction import Predicted, Predictions
from tianji_lab.scaling.report import cautions, print_all, result_of
from tianji_lab.scaling.rows import rows_of
from tianji_lab.scaling.study import Setting
from tianji_lab.training import Outcome, read_training, settled_rates

ENVIRONMENT = {"cores": "2 usable of 2"}
INF = float("inf")


def predicted(actors: int, rate: float, *extrapolated: str) -> Predicted:
    split = replace(A1.split, actors=actors)
    limits = {"production": 4 * rate, "reception": 40 * rate, "consumption": 8 * rate}
    found = Prediction(split, 4.0, limits, SAMPLE_BOUND, 100.0)
    return Predicted(found, 1, extrapolated)


PREDICTIONS = Predictions(
    (predicted(1, 900.0), predicted(2, 1500.0), predicted(64, 5000.0, "40 cores at work: as 2 did")),
    4.0,
    ("every role has a core of its own",),
)


def test_rows_hold_medians_and_how_far_trainings_lie_apart() -> None:
    one, two, four = rows_of(FOUND, 300.0)
    assert one.produced_per_s == Range(2000.0, 1000.0, 3000.0)
    assert one.consumed_per_s == Range(7200.0, 3600.0, 10800.0)
    assert one.time_to_s == Range(4.0, 3.0, 5.0)
    assert (one.reached, two.reached, four.reached) == (3, 1, 0)
    assert (four.repeats, four.produced_per_s, four.time_to_s) == (0, None, None)
    # A time that was never seen is beyond all others.
    assert two.time_to_s == Range(INF, 4.0, INF)
    some = {A2: Outcome([trained(1, 1.0, 4.0), trained(2, 1.0, None), trained(3, 1.0, 2.0)])}
    assert rows_of(some, 300.0)[0].time_to_s == Range(4.0, 2.0, INF)
    none = {A2: Outcome([trained(1, 1.0, None)])}
    assert rows_of(none, 300.0)[0].time_to_s == Range(INF, INF, INF)
    assert rows_of(none, None)[0].time_to_s is None


def test_table_1_has_the_columns_of_the_paper_and_a_line_for_each_training(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    study = replace(study_of(config, figure="table1"), threshold=300.0)
    print_all(study, rows_of(FOUND, 300.0), Predictions())
    said = capsys.readouterr().out.splitlines()
    heading = next(line for line in said if line.startswith("Setting"))
    assert heading.split("  ", 1)[1].split() == (
        ["Final", "Time(s)", "Production", "Throughput(steps/s)", "Consumption", "Throughput(steps/s)"]
    )
    of_a1 = [line.split() for line in said if line.startswith("L1A1")]
    assert of_a1[0] == ["L1A1", "3.00", "1000.00", "900.00"]
    assert of_a1[3] == ["L1A1", "median", "4.00", "[3.00,", "5.00]", "2000.00", "1800.00"]
    assert [line for line in said if line.startswith("L1A2*") and "not in 10 s" in line]


def test_the_table_keeps_what_was_predicted_apart_and_says_what_was_not_reached_or_extrapolated(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    print_all(replace(study_of(config), threshold=300.0), rows_of(FOUND, 300.0), PREDICTIONS)
    said = capsys.readouterr().out
    measured, _, below = said.partition("PREDICTED")
    lines = {line.split()[0]: line for line in measured.splitlines() if line.startswith("L1")}
    assert "4.00 [3.00, 5.00]" in measured
    assert lines["L1A2*"].endswith("not in 10 s (1 of 3 in 4.00)")
    assert lines["L1A4*"].count("no figures") == 3
    assert not {"L1A64", "L1A64~"} & lines.keys()
    names = [line.split()[0] for line in below.splitlines() if line.startswith("L1")]
    assert names[:3] == ["L1A1", "L1A2", "L1A64~"]
    beside = said.partition("measured / predicted")[2].splitlines()[1:]
    assert [line.split() for line in beside] == [["L1A1", "2.00"]], "L1A2 was oversubscribed"
    for words in (
        "every role has a core of its own",
        "sample-bound",
        "#   - 40 cores at work: as 2 did",
    ):
        assert words in below
    assert "# received: a rollout's steps count as its first update begins" in measured


GROUPS = Setting(Split(1, 1, 1, 8, groups=2), 4, oversubscribed=False)


def averaged(rounds: int) -> dict[str, Any]:
    return {"rounds": rounds, "missed": [0, 1], "lost": []}


def test_of_several_groups_the_time_is_the_firsts_and_it_is_said_if_they_were_never_averaged(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    found = {GROUPS: Outcome([trained(1, 1000.0, 4.0, averaged(3))])}
    study = replace(study_of(config, figure="6c"), threshold=1234567.5)
    rows = rows_of(found, 1234567.5)
    print_all(study, rows, Predictions())
    assert "s to 1234567.5 (first of G groups)" in capsys.readouterr().out
    written = result_of(study, ENVIRONMENT, [], rows, Predictions()).document
    assert written["rows"][0]["trainings"][0]["averaging"] == averaged(3)
    assert cautions(study, rows) == []
    found[GROUPS].trainings.append(trained(2, 1000.0, 4.0, averaged(0)))
    (said,) = cautions(study, rows_of(found, 300.0))
    assert said.startswith("the groups of 2 x L1A1 were never averaged in some trainings")


def test_warnings_name_crowded_refused_and_failed_points(config: str) -> None:
    study = study_of(config, actors=(1, 3), overrides=("distribution.mode='sync'",))
    study = replace(study, cores=2)
    crowded, refused, failed = cautions(study, rows_of(FOUND, 300.0))
    assert crowded.startswith("there are 2 cores, and L1A2, L1A4 ask for up to 5: roles take turns")
    assert refused.startswith("L1A3 was not trained: 3 actors in step")
    assert failed == "3 of 3 trainings of L1A4 gave no figures"


@pytest.mark.parametrize(
    ("figure", "files"),
    [
        ("6a", ["figure-6a.csv", "figure-6a.json", "figure-6a.png"]),
        ("4c", ["figure-4c.csv", "figure-4c.json", "figure-4c.png"]),
        ("12b", ["figure-12b.png", "table-1.csv", "table-1.json"]),
    ],
)
def test_files_hold_what_was_measured_and_what_was_predicted_apart(
    config: str, tmp_path: Path, figure: str, files: list[str]
) -> None:
    study = replace(study_of(config, figure=figure), threshold=300.0)
    rows = rows_of(FOUND, 300.0)
    out = tmp_path / "out"
    result_of(study, ENVIRONMENT, [], rows, PREDICTIONS).write(out)
    assert sorted(path.name for path in out.iterdir()) == files
    table = next(out.glob("*.csv")).read_text()
    kinds = [(row["kind"], row["setting"]) for row in csv.DictReader(table.splitlines())]
    assert kinds == [
        *(("measured", f"L1A{actors}") for actors in (1, 2, 4)),
        *(("predicted", f"L1A{actors}") for actors in (1, 2, 64)),
    ]
    written = json.loads(next(out.glob("*.json")).read_text())
    assert written["rows"][1]["time_to_s"] == {"median": None, "min": 4.0, "max": None}
    assert written["rows"][2]["failed"][0]["why"] == "misses 3 samples"
    assert written["predicted"][2]["consumed_per_s"] == 20_000.0
    assert written["predicted"][2]["extrapolated"] == ["40 cores at work: as 2 did"]
    assert written["rows"][0]["over_predicted"] == 2.0
    assert written["rows"][1]["over_predicted"] is None, "it wanted more cores than there are"
    assert next(out.glob("*.png")).read_bytes().startswith(PNG)


def test_plots_say_which_bars_end_at_no_time_and_what_was_predicted_or_took_turns(config: str) -> None:
    some = [trained(1, 1000.0, 4.0), trained(2, 1000.0, 5.0), trained(3, 1000.0, None)]
    most = [trained(1, 2000.0, 4.0), trained(2, 2000.0, None), trained(3, 2000.0, None)]
    figure = Figure()
    study = replace(study_of(config), threshold=300.0)
    draw_into(figure, study, rows_of({A1: Outcome(some), A2: Outcome(most)}, 300.0), PREDICTIONS)
    (legend,) = figure.legends
    labels = {text.get_text() for text in legend.get_texts()}
    assert {"so many did not reach it", "extrapolated", "too few cores"} <= labels
    throughput, times = figure.axes
    assert [text.get_text() for text in times.texts] == ["1 of 3", "2 of 3\nnot in\n10 s"]
    marked = [(np.asarray(line.get_xdata()).tolist(), line) for line in throughput.get_lines()]
    assert [line.get_linestyle() for xs, line in marked if xs == [1, 2, 64]] == ["--"]
    assert [xs for xs, line in marked if line.get_marker() == "x"] == [[64]]
    for actors, hollow in ((1, False), (2, True)):
        faces = {line.get_markerfacecolor() for xs, line in marked if xs[:1] == [actors] and xs == [actors]}
        assert ("white" in faces) is hollow


def test_rates_are_of_the_time_after_the_pipeline_has_filled() -> None:
    rows = [report(second, 1000 * second + 5000 * (second > 2), second) for second in range(11)]
    produced, received, consumed = settled_rates([*rows, report(20, 99_000, 10)], RunDirectory(Path("run")))
    assert (produced, received, consumed) == (1000.0, 1000.0, 4000.0)
    # Uses go on while the clock of receptions stands still.
    rows = [report(second, 1000 * second, second) for second in range(1, 22)]
    for row in rows:  # A rollout begins every 4 s, and is learned from all the time.
        row["train_s"] = row["wall_s"] // 4 * 4.0
        row["env_steps"] = 1000 * row["train_s"]
    assert settled_rates(rows, RunDirectory(Path("run"))) == (1000.0, 1000.0, 4000.0)


def report(second: int, steps: int, updates: int) -> dict[str, Any]:
    return {
        "wall_s": float(second),
        "train_s": second - 0.5,
        "env_steps": steps,
        "produced": steps,
        "consumed": 4 * steps,
        "updates": updates,
    }


def test_a_training_without_a_settled_time_has_no_rates() -> None:
    for rows in ([], [report(1, 10, 0)], [report(1, 10, 1), report(2, 20, 2)]):
        with pytest.raises(RunFailed, match="--seconds gives it longer"):
            settled_rates(rows, RunDirectory(Path("run")))


def test_a_training_that_ends_when_it_has_learned_has_the_rates_of_all_its_time(tmp_path: Path) -> None:
    found = read_training(left_run(tmp_path), 3, threshold=300.0)
    assert (found.produced_per_s, found.consumed_per_s, found.time_to_s) == (1025.0, 4000.0, 2.5)
    for settles, changes, said in (
        (True, {}, "--seconds gives it longer"),
        (False, {"averaging": {"rounds": 3, "missed": [0, 0], "lost": [1]}}, "lost its group 1"),
        (False, {"received": 3997, "lost": 3}, "misses 3 samples"),
    ):
        with pytest.raises(RunFailed, match=said):
            read_training(left_run(tmp_path, **changes), 3, threshold=300.0, settles=settles)
