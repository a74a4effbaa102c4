"""Claims about the paper's Figure 6(a) for a config and a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from lab.profile.conftest import Find
from matplotlib.figure import Figure
from PIL import Image

from tianji_cli.telemetry.bottleneck import bottleneck
from tianji_lab.profile.model import Prediction
from tianji_lab.profile.plots import COLORS, balance_point, draw, plot_curve
from tianji_lab.profile.race import Contender, Race
from tianji_lab.profile.split import Split


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
            limits=limits,
            bottleneck=bottleneck(rho * production, rho * reception, consumption),
            versions=1e6,
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


# -- the picture -----------------------------------------------------------------------------------------


def test_every_line_and_the_trainings_are_to_be_seen(found: Find, tmp_path: Path) -> None:
    there = found()
    contenders = [Contender(one, [1e5, 2e5], [1e4, 2e4], [3.0, 6.0]) for one in there.listed[:3]]
    raced = replace(there, race=Race(contenders, True, 40.0))
    for name in ("x.png", "again.png"):
        draw(raced, tmp_path / name)
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    draw(there, tmp_path / "untrained.png")
    assert (tmp_path / "untrained.png").read_bytes() != (tmp_path / "x.png").read_bytes()
    with Image.open(tmp_path / "x.png") as image:
        shown = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or ()}
    lines = {name: color for name, color in COLORS.items() if name != "reception"}
    wanted = {tuple(int(color[place : place + 2], 16) for place in (1, 3, 5)) for color in lines.values()}
    assert wanted <= shown
