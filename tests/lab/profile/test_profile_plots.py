"""Claims about the paper's Figure 6(a) for a config and a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from lab.profile.conftest import Find
from lab.profile.made_up_measurements import DQN, PPO, repeated
from matplotlib.figure import Figure
from PIL import Image

from tianji_cli.telemetry.bottleneck import bottleneck
from tianji_lab.model.costs import Split
from tianji_lab.model.prediction import Prediction
from tianji_lab.profile.plots import (
    COLORS,
    Point,
    balance_point,
    draw,
    measured_points,
    plot_curve,
    verified_points,
)
from tianji_lab.profile.scaling import Cluster
from tianji_lab.profile.verify import Verified


def at(
    consumption: float = 5700.0, each: float = 1450.0, reception: float = 1e6, rho: float = 1.0
) -> Callable[[int], Prediction]:
    """About the paper's L2A8: an actor makes 1,450 steps a second, a learner of 4 cores uses 5,700."""

    def predicted(actors: int) -> Prediction:
        production = each * actors
        limits = {"production": rho * production, "reception": rho * reception, "consumption": consumption}
        return Prediction(
            split=Split(1, 4, actors, 64),
            rho=rho,
            production=production,
            reception=reception,
            consumption=consumption,
            throughput=min(limits.values()),
            limits=limits,
            bottleneck=bottleneck(rho * production, rho * reception, consumption),
        )

    return predicted


# -- what is marked --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("consumption", "reception", "balance"),
    [(5700.0, 1e6, 4), (1450.0, 1e6, 1), (1451.0, 1e6, 2), (145_000.0, 1e6, 100), (5700.0, 2900.0, 2)],
)
def test_balance_is_the_fewest_actors_that_make_what_the_rest_can_take(
    consumption: float, reception: float, balance: int
) -> None:
    assert balance_point(at(consumption, reception=reception)) == balance
    assert balance_point(at(each=1e-3)) is None, "no number of actors could feed it"


def test_lines_are_in_uses_solid_as_far_as_the_cores_go_and_dashed_beyond() -> None:
    axes = Figure().add_subplot()
    plot_curve(axes, [at(rho=2.0)(actors) for actors in range(1, 9)], cores=8)
    assert len(axes.lines) == 2 * len(COLORS)
    for solid, dashed in zip(axes.lines[::2], axes.lines[1::2], strict=True):
        assert list(solid.get_xdata()) == [1, 2, 3, 4], "4 cores are the learner's"
        assert list(dashed.get_xdata()) == [4, 5, 6, 7, 8]
        assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
        assert solid.get_color() == dashed.get_color()
    drawn = {line.get_color(): list(line.get_ydata())[:2] for line in axes.lines[::2]}
    assert drawn[COLORS["production"]] == [2900.0, 5800.0]
    assert drawn[COLORS["reception"]] == [2e6, 2e6]
    assert drawn[COLORS["consumption"]] == [5700.0, 5700.0]


# -- what was measured -----------------------------------------------------------------------------------


def test_measured_points_lie_on_the_models_lines(found: Find) -> None:
    there = found(DQN, 16)
    assert there.like_the_config is not None
    there = replace(there, candidates=[there.like_the_config])
    choice = there.recommended.prediction
    points = measured_points(there)
    assert {point.actors for point in points if point.quantity == "production"} == {1, 2, 4, 8, 15, 16}
    assert {point.actors for point in points if point.quantity == "consumption"} == {0, 8}
    for point in points:
        low, high = point.reach
        assert 0 < low < 0.03 * point.uses_per_s
        assert 0 < high < 0.03 * point.uses_per_s
        if point.actors:
            value = getattr(there.with_actors(point.actors), point.quantity)
            uses = value * (choice.rho if point.quantity == "production" else 1)
            assert point.uses_per_s == pytest.approx(uses, rel=0.2)
    groups = found(PPO, 2, Cluster(40, 8))
    assert groups.recommended.prediction.split.groups > 1
    assert measured_points(groups) == []


def test_verified_throughputs_are_points_and_those_of_other_lines_are_told_apart() -> None:
    choice = at()(4)
    checks = [
        Verified(at()(4), repeated(5000.0, 0.1), repeated(5000.0, 0.1)),
        Verified(at()(5), repeated(5100.0, 0.1), repeated(5000.0, 0.1)),
        Verified(
            Prediction(**{**vars(choice), "split": Split(1, 4, 4, 32)}), repeated(1.0, 0), repeated(1.0, 0)
        ),
    ]
    points = verified_points(checks, choice)
    assert [(point.actors, point.is_other) for point in points] == [(4, False), (5, False), (4, True)]
    assert points[0].uses_per_s == pytest.approx(5000.0)
    assert points[0].reach == pytest.approx((250.0, 250.0))


# -- the picture -----------------------------------------------------------------------------------------


def test_every_line_and_the_measurements_are_to_be_seen(tmp_path: Path) -> None:
    points = [Point("production", 2, 2900.0), Point("throughput", 4, 5600.0)]
    for name in ("x.png", "again.png"):
        draw(at(reception=9000.0), at()(4), 8, points, tmp_path / name)
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    draw(at(reception=9000.0), at()(4), 8, [], tmp_path / "unmeasured.png")
    assert (tmp_path / "unmeasured.png").read_bytes() != (tmp_path / "x.png").read_bytes()
    with Image.open(tmp_path / "x.png") as image:
        found = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or ()}
    shown = {tuple(int(color[place : place + 2], 16) for place in (1, 3, 5)) for color in COLORS.values()}
    assert shown <= found
