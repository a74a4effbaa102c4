import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.metrics import MetricsWriter, read_history
from tianji_cli.telemetry.plots import draw_plots, drawings
from tianji_cli.telemetry.snapshot import Snapshot

ALL = {"return_over_steps.png", "return_over_time.png", "throughput.png", "policy_lag.png"}


def write(run: RunDirectory, snapshots: list[Snapshot]) -> None:
    writer = MetricsWriter(run, print)
    for snapshot in snapshots:
        writer.write(snapshot)
    writer.close()


def colours(path: Path) -> set[tuple[int, ...]]:
    with Image.open(path) as image:
        assert image.size == (1050, 720)
        return {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 20)}


def test_a_run_is_drawn_from_its_metrics(run: RunDirectory, snapshot: Callable[..., Snapshot]) -> None:
    write(run, [snapshot(second) for second in range(60)])
    draw_plots(run)
    assert {path.name for path in run.plots.iterdir()} == ALL
    blue, orange, green = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73)
    assert blue in colours(run.plots / "return_over_steps.png")
    assert blue in colours(run.plots / "return_over_time.png")
    assert orange in colours(run.plots / "throughput.png")
    assert green in colours(run.plots / "throughput.png")
    assert {blue, orange} <= colours(run.plots / "policy_lag.png")


def test_a_run_with_a_replay_has_its_ages_and_its_ratio_drawn(
    run: RunDirectory, snapshot: Callable[..., Snapshot], with_replay: dict[str, Any]
) -> None:
    write(run, [snapshot(0), snapshot(1), *(snapshot(second, **with_replay) for second in range(2, 20))])
    draw_plots(run)
    assert {path.name for path in run.plots.iterdir()} == ALL | {"sample_age.png", "replay_ratio.png"}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours(run.plots / "sample_age.png")
    assert (0x00, 0x72, 0xB2) in colours(run.plots / "replay_ratio.png")


@pytest.mark.parametrize(("first", "scale"), [(20_000.0, "log"), (300.0, "linear")])
def test_what_comes_after_a_burst_is_seen(
    first: float, scale: str, run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    write(run, [snapshot(second) for second in range(20)])
    rows, evaluations = read_history(run.metrics)
    for second, row in enumerate(rows):
        rate = first if second == 1 else 100.0
        row |= {"produced_per_s": rate, "received_per_s": rate, "consumed_per_s": rate}
    axes = Figure().subplots()
    drawings(rows, evaluations)["throughput"](axes)
    low, high = axes.get_ylim()
    assert axes.get_yscale() == scale
    assert low < 100.0 < first < high


def test_throughput_is_of_the_time_in_which_training_went_on(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    idle = {"produced_per_s": 0.0, "received_per_s": 0.0, "consumed_per_s": 0.0}
    before = [snapshot(1), snapshot(2), snapshot(2, **idle), snapshot(3), snapshot(3, **idle)]
    # A resumed run knows its env steps before its learner has said for how long it has trained.
    resumed = [snapshot(3, train_s=0.0, **idle), snapshot(3, **idle), snapshot(4), snapshot(4, **idle)]
    write(run, [*before, *resumed])
    axes = Figure().subplots()
    drawings(*read_history(run.metrics))["throughput"](axes)
    for line in axes.get_lines():
        assert list(line.get_xdata()) == [1.0, 2.0, 3.0, 4.0]
        assert min(line.get_ydata()) > 0


def test_each_group_has_a_curve_beside_that_of_all(
    run: RunDirectory, snapshot: Callable[..., Snapshot], of_groups: dict[str, Any]
) -> None:
    write(run, [snapshot(1), *(snapshot(second, **of_groups) for second in range(2, 20))])
    draw_plots(run)
    assert (0x66, 0x66, 0x66) in colours(run.plots / "return_over_time.png")
    assert (0x00, 0x72, 0xB2) in colours(run.plots / "return_over_time.png")


def test_metrics_that_know_no_replay_yet_are_drawn(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    write(run, [snapshot(1)])
    row = json.loads(run.metrics.read_text())
    old = {
        key: value for key, value in row.items() if key not in {"sample_age", "uses", "replay", "by_group"}
    }
    run.metrics.write_text(json.dumps(old) + "\n")
    draw_plots(run)
    assert {path.name for path in run.plots.iterdir()} == ALL


def test_a_resumed_run_that_failed_before_its_learner_said_anything_is_drawn(
    run: RunDirectory, snapshot: Callable[..., Snapshot]
) -> None:
    write(run, [snapshot(1), snapshot(2, rho=0.0)])
    draw_plots(run)
    assert {path.name for path in run.plots.iterdir()} == ALL


def test_plots_can_be_drawn_again(run: RunDirectory, snapshot: Callable[..., Snapshot]) -> None:
    write(run, [snapshot(second) for second in range(10)])
    draw_plots(run)
    first = (run.plots / "throughput.png").read_bytes()
    (run.plots / "throughput.png").unlink()
    draw_plots(run)
    assert (run.plots / "throughput.png").read_bytes() == first


@pytest.mark.parametrize(("seconds", "drawn"), [([0], set()), ([], set()), ([1], ALL)])
def test_only_what_has_data_is_drawn(
    run: RunDirectory, snapshot: Callable[..., Snapshot], seconds: list[int], drawn: set[str]
) -> None:
    write(run, [snapshot(second) for second in seconds])
    draw_plots(run)
    assert {path.name for path in run.plots.iterdir()} == drawn


def test_values_that_are_missing_leave_gaps(run: RunDirectory, snapshot: Callable[..., Snapshot]) -> None:
    rates = [100.0, float("nan"), 300.0]
    write(
        run,
        [
            snapshot(second, produced_per_s=rates[second - 1], consumed_per_s=rates[second - 1])
            for second in (1, 2, 3)
        ],
    )
    draw_plots(run)
    assert {path.name for path in run.plots.iterdir()} == ALL
