"""`tianji compare` over runs that the writers of real ones have left: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli.quick import PNG
from cli.runs.comparison.left_runs import leave, rate, rises, several
from cli.warm import Tianji

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.main import main
from tianji_cli.telemetry.metrics import AppendOnlyFile
from tianji_cli.wire.reports import Evaluation

GOAL = {"experiment": {"stop": {"mean_return": 90.0, "env_steps": 50_000}}}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("experiments")


def compared(capsys: Capture, *words: object) -> dict[str, Any]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, words), "--json", "-"])
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def refused(capsys: Capture, *words: object, status: int = 2) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, words)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (status, "")
    assert 1 <= len(said.err.splitlines()) <= 5
    return said.err


# -- groups ----------------------------------------------------------------------------------------------


def test_runs_that_differ_in_their_seed_are_one_line_named_by_what_differs(
    place: Path, capsys: Capture
) -> None:
    several(place, [100, 101, 102, 103, 104], rate(1e-3))
    several(place, [200, 201, 202, 203, 204], rate(1e-4), name="slow")
    found = compared(capsys, "experiments")
    assert (found["schema"], found["environment"], found["by"]) == (1, "gym CartPole-v1", "steps")
    first, second = found["rows"]
    assert (first["name"], second["name"]) == (
        "training.learning_rate=0.001",
        "training.learning_rate=0.0001",
    )
    assert (first["runs"], second["runs"]) == (5, 5)
    assert [one["seed"] for one in first["of"]] == [1, 2, 3, 4, 5]
    assert first["final"]["iqm"] == pytest.approx(102)
    assert 100 <= first["final"]["low"] < 102 < first["final"]["high"] <= 104
    assert first["better"] is None
    assert second["better"]["final"] == {
        "p": 1.0,
        "low": 1.0,
        "high": 1.0,
        "verdict": "better",
        "no_verdict": "",
    }
    assert second["better"]["area"]["verdict"] == "better"
    assert found["warnings"] == []
    # The first group that was named is the one that the others lie to.
    turned = compared(capsys, "experiments/slow", "experiments/quick")
    assert turned["reference"] == "training.learning_rate=0.0001"
    assert turned["rows"][1]["better"]["final"]["verdict"] == "worse"


def test_what_only_a_place_or_a_version_differs_in_makes_no_other_group(place: Path, capsys: Capture) -> None:
    plain = leave(place, rises(100))
    other = leave(
        place,
        rises(110),
        {"experiment": {"thresholds": [50.0], "keep_checkpoints": 9}, "distribution": {"pin_cores": True}},
        name="elsewhere",
        seed=2,
    )
    # As an earlier version wrote it, which did not know these keys.
    kept = [
        line
        for line in other.config.read_text().splitlines()
        if not line.startswith(("eval_max_steps", "gae_lambda"))
    ]
    assert len(kept) == len(other.config.read_text().splitlines()) - 2
    other.config.write_text("\n".join(kept))
    (row,) = compared(capsys, plain.path, other.path)["rows"]
    assert (row["name"], row["runs"]) == ("quick", 2)


def test_a_run_from_before_a_key_trained_as_the_key_says_for_it(place: Path, capsys: Capture) -> None:
    now, older = leave(place, rises(100)), leave(place, rises(110), seed=2)
    lines = older.config.read_text().splitlines()
    older.config.write_text("\n".join(line for line in lines if not line.startswith("scale_actions")))
    rows = compared(capsys, now.path, older.path)["rows"]
    assert [row["name"] for row in rows] == ["agent.scale_actions=true", "agent.scale_actions=false"]


def test_groups_that_differ_in_much_are_called_by_their_experiments(place: Path, capsys: Capture) -> None:
    changes = {
        "training": {"gamma": 0.9, "epochs": 3},
        "model": {"hidden": [8]},
        "environment": {"num_envs": 4},
    }
    leave(place, rises(100))
    leave(place, rises(100), changes, name="other")
    leave(place, rises(100), changes, rate(0.5), name="other")
    names = [row["name"] for row in compared(capsys, "experiments")["rows"]]
    assert names == ["other, learning_rate=0.0003", "other, learning_rate=0.5", "quick"]
    assert [row["name"] for row in compared(capsys, "quick", "other/1")["rows"]] == ["quick", "other"]


def test_groups_that_differ_in_much_and_have_one_name_are_called_by_where_they_are(
    place: Path, capsys: Capture
) -> None:
    changes = {"training": {"gamma": 0.9, "epochs": 3}, "model": {"hidden": [8]}}
    for number, changed in enumerate(({}, {**changes, "environment": {"num_envs": 4}}), 1):
        for seed in (1, 2):
            run = leave(place, rises(100), changed, seed=seed)
            run.path.parent.joinpath(f"seeds-{number}").mkdir(exist_ok=True)
            run.path.rename(place / f"quick/seeds-{number}/{seed}")
    away = leave(Path("away"), rises(100), {**changes, "environment": {"num_envs": 2}})
    found = compared(capsys, "experiments", Path("away").absolute())
    assert [row["name"] for row in found["rows"]] == ["quick/seeds-1", "quick/seeds-2", str(away.path)]
    (place / "quick/seeds-2/2").rename(place / "quick/2")  # There is no directory that has this group alone.
    found = compared(capsys, "experiments", "away")
    assert [row["name"] for row in found["rows"]] == ["quick/2", "quick/seeds-1/1", str(away.path)]


def test_a_word_is_a_path_a_name_a_number_or_a_directory_and_each_run_counts_once(
    place: Path, capsys: Capture
) -> None:
    for to in (1, 2, 3):
        leave(place, rises(to), seed=to)
    leave(place / "quick" / "seeds-1", rises(4), name="x", seed=4)
    (place / "quick/seeds-1/x/1").rename(place / "quick/seeds-1/4")
    waiting = RunDirectory.make(place / "quick/seeds-1/5")

    def seeds(*words: object) -> list[int]:
        (row,) = compared(capsys, *words)["rows"]
        return [one["seed"] for one in row["of"]]

    assert seeds("quick") == [3]
    assert seeds("quick/2", place / "quick/1", "experiments/quick/2") == [2, 1]
    assert seeds("quick/seeds-1") == [4]
    (place / "quick/seeds-1/base.toml").write_text("")  # Then commands that take one run ask which.
    assert seeds("quick/seeds-1") == [4]
    assert seeds("experiments/quick") == [1, 2, 3, 4]
    said = compared(capsys, "experiments/quick")["warnings"]
    assert said == ["not begun, and left out: experiments/quick/seeds-1/5"]
    assert waiting.path.is_dir()


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("config.toml", "experiment = 3"),
        ("config.toml", "training = []"),
        ("metrics.jsonl", "[1]"),
        ("metrics.jsonl", '{"env_steps": "many"}'),
        ("metrics.jsonl", '{"kind": "evaluation", "env_steps": null, "mean": 1.0}'),
    ],
)
def test_a_damaged_run_is_left_out_and_named(place: Path, capsys: Capture, file: str, line: str) -> None:
    leave(place, rises(100))
    damaged = leave(place, rises(100), seed=2)
    if file == "config.toml":
        damaged.config.write_text(line)
    else:
        with damaged.metrics.open("a") as rows:
            rows.write(f"{line}\n")
    found = compared(capsys, "experiments")
    (warning,) = found["warnings"]
    assert warning.startswith(f"damaged, and left out: cannot read {damaged.path / file}")
    assert [row["runs"] for row in found["rows"]] == [1]


def test_thresholds_that_are_no_list_are_none(place: Path, capsys: Capture) -> None:
    run = leave(place, rises(100))
    config = run.config.read_text()
    damaged = re.sub(r"thresholds = \[[^\]]*\]", "thresholds = -1", config)
    assert damaged != config
    run.config.write_text(damaged)
    assert len(compared(capsys, run.path)["rows"]) == 1


# -- what a number is of ---------------------------------------------------------------------------------


def test_final_returns_are_of_evaluations_only_where_all_runs_have_whole_ones(
    place: Path, capsys: Capture
) -> None:
    ours = leave(place, rises(100), evaluation=Evaluation(100, 190.0, 1.0))
    theirs = leave(place, rises(100), rate(0.5), evaluation=Evaluation(100, 180.0, 1.0))
    cut = leave(
        place, rises(100), rate(0.5), seed=2, evaluation=Evaluation(9, 20.0, 1.0, None, None, 91, "120 s")
    )
    found = compared(capsys, ours.path, theirs.path)
    assert found["final_of"] == "evaluation"
    assert [row["final"]["iqm"] for row in found["rows"]] == [190, 180]
    found = compared(capsys, ours.path, theirs.path, cut.path)
    assert found["final_of"] == "mean_100"
    assert [row["final"]["iqm"] for row in found["rows"]] == [100, 100]
    assert any("cut off" in said and "quick/3" in said for said in found["warnings"])


def test_curves_are_of_evaluations_while_training_where_all_runs_have_them(
    place: Path, capsys: Capture
) -> None:
    ours = leave(place, rises(100), evaluated={2: 5.0, 5: 6.0, 6: -99.0, 8: 9.0}, cut_off=[6])
    theirs = leave(place, rises(100), rate(0.5), evaluated={3: 1.0, 4: None, 9: 7.0})
    found = compared(capsys, ours.path, theirs.path)
    assert (found["curves_of"], found["area_between"]) == ("evaluation", [3000, 8000])
    curve = found["rows"][0]["curves"]["env_steps"]
    assert (curve["env_steps"][0], curve["env_steps"][-1]) == (2000, 8000)
    # One that was cut off is that of shorter episodes.
    assert (curve["iqm"][0], min(curve["iqm"]), curve["iqm"][-1]) == (5, 5, 9)
    assert compared(capsys, ours.path, leave(place, rises(1)).path)["curves_of"] == "mean_100"


def test_a_curve_goes_as_far_as_the_shortest_run(place: Path, capsys: Capture) -> None:
    ours = leave(place, rises(100), seconds=range(2, 11))
    short = leave(place, rises(100), seed=2, seconds=range(1, 7), ends="stopped")
    found = compared(capsys, ours.path, short.path, "--by", "time")
    assert (found["by"], found["area_between"]) == ("time", [2, 6])
    curve = found["rows"][0]["curves"]["train_s"]
    assert (curve["train_s"][0], curve["train_s"][-1], curve["kept_from"]) == (2, 6, None)
    assert found["rows"][0]["area"]["iqm"] == pytest.approx(40)
    assert "1 run stopped before the end: experiments/quick/2" in found["warnings"]


def test_a_run_that_has_reached_its_goal_is_no_shorter_failure(place: Path, capsys: Capture) -> None:
    fast = [
        leave(place, rises(95, 4), GOAL, seed=seed, seconds=range(1, end)).path
        for seed, end in enumerate((5, 6, 7, 8, 9), 1)
    ]
    spent = {"experiment": {"stop": {"mean_return": 90.0, "env_steps": 20_000}}}
    slow = several(place, [80, 82, 81, 80, 89], spent, rate(0.5), seconds=range(1, 21))
    found = compared(capsys, *fast, *(one.path for one in slow))
    ours, theirs = found["rows"]
    assert found["area_between"] == [1000, 20_000]
    assert theirs["curves"]["env_steps"]["kept_from"] is None
    held = ours["curves"]["env_steps"]
    assert (held["kept_from"], held["env_steps"][-1], held["iqm"][-1]) == (4000, 8000, 95)
    assert ours["area"]["iqm"] == pytest.approx((3 * (23.75 + 95) / 2 + 16 * 95) / 19)
    # Who stopped at 95 might have come further than 99: final returns tell nothing, areas do.
    assert theirs["better"]["area"]["verdict"] == "worse"
    assert theirs["better"]["final"]["verdict"] == "worse"
    more = [one.path for one in several(place, [99.0] * 5, spent, name="more", seconds=range(1, 21))]
    for words in ((*more, *fast), (*fast, *more)):
        final = compared(capsys, *words)["rows"][1]["better"]["final"]
        assert final["verdict"] is None
        assert "stopped at their goal" in final["no_verdict"]


def test_times_are_exact_where_all_have_looked_out_and_read_from_curves_elsewhere(
    place: Path, capsys: Capture
) -> None:
    of_15 = [leave(place, rises(100), seed=seed, time_to={15.0: 1.2 + seed / 10}).path for seed in (1, 2, 3)]
    found = compared(capsys, *of_15)
    (row,) = found["rows"]
    assert row["time_to"]["15"] == {
        "iqm": pytest.approx(1.4),
        "low": pytest.approx(1.3),
        "high": pytest.approx(1.5),
        "reached": 3,
        "of": 3,
    }
    assert row["steps_to"]["15"]["iqm"] == pytest.approx(1400)
    killed = leave(place, rises(100), seed=4, ends=None)
    (row,) = compared(capsys, *of_15, killed.path)["rows"]
    assert row["time_to"]["15"]["iqm"] == pytest.approx(1.5)


def test_a_time_is_known_while_those_not_there_are_among_the_slowest_quarter(
    place: Path, capsys: Capture
) -> None:
    most = several(place, [100, 100, 100, 10], time_to={})
    (row,) = compared(capsys, *(run.path for run in most))["rows"]
    assert (row["time_to"]["15"]["reached"], row["time_to"]["15"]["of"]) == (3, 4)
    assert row["time_to"]["15"]["iqm"] == pytest.approx(1.5)
    assert row["time_to"]["15"]["high"] is None
    few = several(place, [100, 10], name="few")
    (row,) = compared(capsys, *(run.path for run in few))["rows"]
    assert row["time_to"]["15"] == {"iqm": None, "low": 1.5, "high": None, "reached": 1, "of": 2}


def test_rows_that_a_resumed_run_has_gone_past_are_superseded(place: Path, capsys: Capture) -> None:
    run = leave(place, rises(100), seconds=(1, 2, 3, 4, 5, 2.5, 6))
    curve = compared(capsys, run.path)["rows"][0]["curves"]["env_steps"]
    at = dict(zip(curve["env_steps"], curve["iqm"], strict=True))
    # Straight from 2,500 steps to 6,000.
    assert (curve["env_steps"][0], curve["env_steps"][-1]) == (1000, 6000)
    assert all(mean == pytest.approx(steps / 100) for steps, mean in at.items())


def test_a_run_that_was_resumed_and_killed_has_left_the_summary_of_a_session_before(
    place: Path, capsys: Capture
) -> None:
    run = leave(place, rises(100))
    rows = run.metrics.read_text().splitlines()
    goes_on = {"env_steps": 12_000, "train_s": 12.0, "updates": 12_000, "returns.mean_100": 70.0}
    run.metrics.write_text("\n".join([*rows, json.dumps(json.loads(rows[-1]) | goes_on), ""]))
    found = compared(capsys, run.path)
    assert found["rows"][0]["final"]["iqm"] == 70
    assert found["rows"][0]["of"][0]["status"] == "killed"


# -- how sure it is --------------------------------------------------------------------------------------


def test_one_run_has_no_interval_and_few_have_no_verdict(place: Path, capsys: Capture) -> None:
    several(place, [100, 101, 102, 103])
    several(place, [200, 201, 202, 203, 204], rate(0.5), name="other")
    alone = leave(place, rises(50), rate(0.25), name="third")
    found = compared(capsys, "experiments/quick", "experiments/other", alone.path)
    _, other, third = found["rows"]
    assert third["final"] == {"iqm": 50.0, "low": None, "high": None}
    assert third["curves"]["env_steps"]["low"][0] is None
    assert third["better"]["final"] | {"p": 0} == {
        "p": 0,
        "low": None,
        "high": None,
        "verdict": None,
        "no_verdict": "1 run, and 5 are the least",
    }
    assert other["better"]["final"]["no_verdict"] == "4 runs, and 5 are the least"
    assert other["better"]["final"]["low"] == 1.0


def test_what_speaks_against_the_figures_is_said(place: Path, capsys: Capture) -> None:
    ours = leave(place, rises(100))
    again = leave(place, rises(100))
    going = leave(place, rises(100), seed=3, ends=None)
    dead = leave(place, rises(100), seed=4, ends=None)
    odd = leave(place, rises(100), {"environment": {"max_episode_steps": 50}}, seed=5)
    holder = AppendOnlyFile(going.metrics)
    try:
        found = compared(capsys, *(run.path for run in (ours, again, going, dead, odd)))
    finally:
        holder.close()
    said = "\n".join(found["warnings"])
    assert "1 run still running, counted by what there is so far: experiments/quick/3" in said
    assert "1 run ended without a result, counted by what was written: experiments/quick/4" in said
    assert "has runs of the same seed (1), which are not independent" in said
    assert "groups differ in environment.max_episode_steps: their returns need not mean the same" in said


# -- what it writes --------------------------------------------------------------------------------------


def test_a_table_is_for_people_and_files_for_everything_else(
    place: Path, tmp_path: Path, capsys: Capture
) -> None:
    several(place, [100, 101, 102, 103, 104], time_to={15.0: 1.5})
    several(place, [200, 201, 202, 203, 204], rate(0.5), name="other", time_to={15.0: 0.75})
    with pytest.raises(SystemExit) as ended:
        main(["compare", "experiments/quick", "experiments/other", "--by", "time", "--out", "figures"])
    said = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    heading = next(line for line in said if line.startswith("group"))
    assert heading.split("  ")[0] == "group"
    for column in ("runs", "final return", "area", "s to 15", "P(final better)", "P(area better)"):
        assert column in heading
    line = next(line for line in said if line.startswith("training.learning_rate=0.5"))
    assert "202.0 [" in line
    assert "0.750" in line
    assert "1.00 [1.00, 1.00]" in line
    rates = "training.learning_rate=0.5 is better than training.learning_rate=0.0003 in"
    assert said[-2:] == [f"{rates} final returns", f"{rates} areas"]
    out = tmp_path / "figures"
    figures = ("return_over_steps", "return_over_time", "performance_profile", "intervals")
    begins = {"png": PNG, "svg": b"<?xml", "pdf": b"%PDF"}
    assert {path.name for path in out.iterdir()} == {
        *("compare.json", "compare.csv", "curves.csv"),
        *(f"{name}.{kind}" for name in figures for kind in begins),
    }
    for name in figures:
        for kind, head in begins.items():
            assert (out / f"{name}.{kind}").read_bytes().startswith(head)
    assert "learning_rate=0.5" in (out / "return_over_steps.svg").read_text()
    found = json.loads((out / "compare.json").read_text())
    with (out / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["final_iqm"]) for row in rows] == [row["final"]["iqm"] for row in found["rows"]]
    assert rows[1]["better_final_verdict"] == "better"
    with (out / "curves.csv").open() as file:
        points = list(csv.DictReader(file))
    assert len(points) == 2 * 2 * 200
    assert {point["over"] for point in points} == {"env_steps", "train_s"}


def test_figures_of_many_groups_of_one_run_and_held_curves_are_drawn(place: Path, tmp_path: Path) -> None:
    for number in range(9):
        leave(place, rises(95, 4), GOAL, rate((1 + number) / 10), seed=number, seconds=range(1, 5 + number))
    leave(place, rises(50, 4), GOAL, {"model": {"hidden": [4] * 30}}, seconds=[3])
    with pytest.raises(SystemExit) as ended:
        main(["compare", "experiments", "--out", str(tmp_path / "figures"), "--json", "found.json"])
    assert ended.value.code == 0
    assert len(json.loads(Path("found.json").read_text())["rows"]) == 10


def test_a_directory_is_all_runs_below_it_however_deep_those_of_a_sweep_among_them(
    place: Path, capsys: Capture
) -> None:
    leave(place, rises(95))
    trials = [place / f"quick/sweep-1/trials/{number}/1" for number in (2, 10)]
    for number, trial in enumerate(trials, 1):
        trial.parent.mkdir(parents=True)
        leave(place, rises(50), rate(number / 10), name="trial").path.rename(trial)
    names = [row["name"] for row in compared(capsys, "experiments")["rows"]]
    assert [name.rpartition("=")[2] for name in names] == [names[0].rpartition("=")[2], "0.1", "0.2"]
    assert len(compared(capsys, "experiments/quick/sweep-1")["rows"]) == 2


def test_real_runs_are_compared(tianji: Tianji, config: str, place: Path, capsys: Capture) -> None:
    for seed in (1, 2):
        tianji("train", config, "--quiet", "--set", f"experiment.seed={seed}")
    (row,) = compared(capsys, "experiments/quick")["rows"]
    summaries = [json.loads((place / f"quick/{n}/summary.json").read_text()) for n in (1, 2)]
    means = [one["returns"]["mean_100"] for one in summaries]
    assert row["final"]["iqm"] == pytest.approx(sum(means) / 2)
    assert row["time_to"]["15"]["iqm"] == pytest.approx(sum(one["time_to"]["15"] for one in summaries) / 2)
    ends = [one["env_steps"] for one in summaries]
    # A training that is over before its second report has one point, and no curve.
    assert all(
        curve["env_steps"][-1] <= min(ends) for over, curve in row["curves"].items() if over != "train_s"
    )


# -- what it refuses -------------------------------------------------------------------------------------


def test_runs_of_different_environments_are_refused_by_name(place: Path, capsys: Capture) -> None:
    leave(place, rises(100))
    leave(place, rises(100), {"environment": {"id": "Acrobot-v1"}}, name="other")
    said = refused(capsys, "quick", "other")
    assert "different environments cannot be compared" in said
    assert "gym CartPole-v1: experiments/quick/1" in said
    assert "gym Acrobot-v1: experiments/other/1" in said


def test_runs_without_returns_are_left_out_and_said_how_they_stand(place: Path, capsys: Capture) -> None:
    leave(place, rises(100))
    leave(place, lambda _second: None, ends=None)
    RunDirectory.create("quick", place).write_config((place / "quick/1/config.toml").read_text())
    found = compared(capsys, "experiments/quick")
    left_out = "experiments/quick/2 (killed), experiments/quick/3 (waiting)"
    assert f"no episode has ended, and left out: {left_out}" in found["warnings"]
    assert [len(row["of"]) for row in found["rows"]] == [1]
    said = refused(capsys, "quick/2", "quick/3")
    assert "no episode has ended in experiments/quick/2 (killed); experiments/quick/3 (waiting)" in said


def test_what_is_no_run_is_refused(place: Path, tmp_path: Path, capsys: Capture) -> None:
    leave(place, rises(100))
    (tmp_path / "empty").mkdir()
    assert "'empty' is no run, and there are none below it" in refused(capsys, "quick", "empty")
    assert "no run 'quik' (did you mean 'quick'?)" in refused(capsys, "quik")
    assert "no run" in refused(capsys, "quick/7")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.toml", "[experiment", "config.toml: TOMLDecodeError"),
        ("metrics.jsonl", "{}\n", "line 1: not a JSON object of a run's (wall_s: Field required)"),
        ("metrics.jsonl", "no\n", "line 1: not a JSON object"),
        ("summary.json", "{", "no summary that this version"),
    ],
)
def test_a_damaged_file_is_named(place: Path, capsys: Capture, file: str, content: str, said: str) -> None:
    run = leave(place, rises(100))
    (run.path / file).write_text(content)
    assert said in refused(capsys, "quick", status=1)


def test_beside_others_a_damaged_run_is_left_out_and_named(place: Path, capsys: Capture) -> None:
    leave(place, rises(100))
    (leave(place, rises(100)).path / "summary.json").write_text("{")
    found = compared(capsys, "experiments/quick")
    assert [len(row["of"]) for row in found["rows"]] == [1]
    (said,) = (one for one in found["warnings"] if one.startswith("damaged, and left out: "))
    assert "experiments/quick/2/summary.json is no summary" in said


def test_samples_that_are_unaccounted_for_leave_no_figures(place: Path, capsys: Capture) -> None:
    run = leave(place, rises(100))
    summary = json.loads(run.summary.read_text())
    run.summary.write_text(json.dumps(summary | {"produced": summary["produced"] + 3}))
    assert "does not account for 3 samples" in refused(capsys, "quick", status=1)


def test_files_are_written_though_nobody_reads_what_is_printed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(place, rises(100))
    reader, writer = os.pipe()
    os.close(reader)
    gone = os.fdopen(writer, "w", buffering=1, encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", gone)
    with pytest.raises(SystemExit) as ended:
        main(["compare", "quick", "--out", "figures", "--json", "x.json"])
    monkeypatch.undo()
    with suppress(BrokenPipeError):
        gone.close()
    assert ended.value.code == 1
    assert (tmp_path / "x.json").read_text() == (tmp_path / "figures/compare.json").read_text()


def test_a_place_that_cannot_be_written_to_is_refused_first(place: Path, capsys: Capture) -> None:
    leave(place, rises(100))
    Path("file").touch()
    assert "--out takes another directory" in refused(capsys, "quick", "--out", "file/figures", status=1)
