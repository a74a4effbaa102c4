"""The live display, drawn by a real process on a real pseudo-terminal and read from the screen it leaves."""

import io
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.screen import Screen, on_terminal
from rich.color import Color
from rich.console import Console

from tianji_cli.telemetry import styles
from tianji_cli.telemetry.bottleneck import TRAINING_BOUND
from tianji_cli.telemetry.chart import LearningCurve
from tianji_cli.telemetry.display import MOST_CHART, render
from tianji_cli.telemetry.snapshot import Evaluated, RoleStatus, Snapshot, StopProgress
from tianji_cli.wire.reports import Evaluating

PROGRAM = """
import fcntl, os, signal, struct, sys, termios, threading
sys.path.insert(0, sys.argv[1])
from conftest import build_snapshot
from tianji_cli.telemetry.display import choose_display
actors, seconds = int(sys.argv[2]), int(sys.argv[3])
display = choose_display("ppo_cartpole  experiments/ppo_cartpole/3", quiet=False, stream=sys.stderr)
display.event("4 processes started")
for second in range(seconds):
    if second == 3 and sys.argv[4] == "resized":
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    if second == 4:
        display.remember_evaluation(45_200 * 2, 100.0)
    display.show(build_snapshot(second, actors))
    if second == 2:
        display.event("actor 3 was killed by SIGKILL and restarted")
assert threading.active_count() == 1, threading.enumerate()
if sys.argv[4] != "closed":
    os.kill(os.getpid(), signal.SIGKILL)
display.close()
display.close()
print("the result", file=sys.stderr)
"""


def written_live(
    columns: int, lines: int, actors: int, seconds: int = 6, end: str = "killed", **environment: str
) -> bytes:
    """Run a live display on a pseudo-terminal of this size; gives what it wrote there."""
    arguments = [str(Path(__file__).parent), str(actors), str(seconds), end]
    utf8 = {} if "LANG" in environment else {"PYTHONUTF8": "1"}
    written, status, out = on_terminal(
        PROGRAM, *arguments, columns=columns, lines=lines, **(utf8 | environment)
    )
    assert out == b"", "progress belongs to stderr"
    assert status == (0 if end == "closed" else -signal.SIGKILL), written
    return written


def show_live(
    columns: int, lines: int, actors: int, seconds: int = 6, end: str = "killed", **environment: str
) -> Screen:
    """The screen that it leaves."""
    screen = Screen(columns, lines)
    screen.feed(written_live(columns, lines, actors, seconds, end, **environment).decode())
    return screen


NARROW = """\
4 processes started
4.0 s  actor 3 was killed by SIGKILL and restarted
ppo_cartpole  experiments/ppo_cartpole/3                                   7.0 s
return      150.0  mean of the last 100 of 185 episodes, best 150.0
steps       226 K env steps, 1.75 K updates, policy version 220
rates       produced 45.2 K/s, received 45.1 K/s, consumed 180 K/s
replay      ratio 3.98, target 4.00
policy lag  mean 1.25, p50 1, p95 3, max 5 versions
losses      policy -0.012, value 0.510
stops at    mean_return  150.0 of 475.0   12 s, 542 K steps left
            env_steps    226 K of 1.00 M  18 s, 774 K steps left
            wall_s       7.0 s of 10 min  9 min 53 s, 26.8 M steps left
       150 ┤                                                    ⣀⣀⣀⣀⡠⠤⠤⠤⠤⠒⠒⠒⠒⠊⠉⠉
       100 ┤                           ◆      ⣀⣀⣀⣀⡠⠤⠤⠤⠤⠒⠒⠒⠒⠊⠉⠉⠉⠉
        50 ┤                ⣀⣀⣀⣀⡠⠤⠤⠤⠤⠒⠒⠒⠒⠊⠉⠉⠉⠉
         0 ┤             ⠈⠉⠉
            0                    ◆ evaluation                    226 K env steps
role     rank  busy  restarts  state
root     0     1 %   0         running
learner  1     97 %  0         running
buffer   1     -     0         running
actor    2     80 %  0         running
actor    3     80 %  0         running"""


def test_a_terminal_of_80_by_24_shows_everything() -> None:
    screen = show_live(80, 24, actors=2)
    assert screen.text == NARROW
    assert screen.scrolled == []


def test_a_wide_terminal_has_room_for_process_ids() -> None:
    text = show_live(120, 40, actors=8).text
    assert "actor    9     4009  307 MB  84 %  0         running" in text
    assert "ppo_cartpole  experiments/ppo_cartpole/3".ljust(115) + "7.0 s" in text


def test_a_wide_terminal_has_a_larger_chart_with_more_on_its_scale() -> None:
    screen = show_live(120, 40, actors=8)
    assert [line.partition("┤")[0].strip() for line in screen.lines if "┤" in line] == [
        "150",
        "100",
        "50",
        "0",
    ]
    assert sum("│" in line or "┤" in line for line in screen.lines) == MOST_CHART - 1
    assert screen.text.count("◆") == 2, "the evaluation, and what the mark means"
    assert screen.scrolled == []


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40)])
def test_without_colour_nothing_is_lost(columns: int, lines: int) -> None:
    coloured = written_live(columns, lines, actors=2).decode()
    plain = written_live(columns, lines, actors=2, NO_COLOR="1").decode()
    assert set(re.findall(r"38;5;\d+", coloured)) == {f"38;5;{number}" for number in (29, 31, 133)}
    assert "38;5" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == re.sub(r"\x1b\[[\d;]*m", "", plain)


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 has it."""
    triplet = Color.parse(colour).get_truecolor()
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in triplet.normalized)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", [name for name in vars(styles) if name.isupper()])
def test_every_colour_is_legible_on_black_and_on_white(name: str) -> None:
    colour = getattr(styles, name)
    assert Color.parse(colour).number > 15, "a theme would change it"
    of_it = luminance(colour)
    assert 1.05 / (of_it + 0.05) >= 3.5, "on white"
    assert (of_it + 0.05) / 0.05 >= 3.5, "on black"


def test_a_terminal_that_becomes_smaller_is_drawn_anew_with_its_newest_events() -> None:
    screen = Screen(80, 24, cleared=(60, 24))
    screen.feed(written_live(80, 24, actors=2, end="resized").decode())
    assert screen.text.startswith("4 processes started\n4.0 s  actor 3 was killed")
    assert screen.text.count("policy lag") == 1
    assert screen.text.count("experiments/ppo_cartpole") == 1
    assert screen.columns == 60, "it was cleared"
    assert max(map(len, screen.lines)) <= 60
    assert "┤" in screen.text
    assert screen.scrolled == []


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40)])
def test_many_actors_are_summed_up(columns: int, lines: int) -> None:
    screen = show_live(columns, lines, actors=32)
    assert re.search(r"32 actors  2-33 .* 80-96 %, median 88 %  0         running", screen.text)
    assert screen.text.count("actor ") == 1, "only the event names an actor of its own"
    assert screen.scrolled == []


@pytest.mark.parametrize("actors", [6, 9])
def test_roles_that_do_not_fit_in_the_height_with_the_chart_are_summed_up(actors: int) -> None:
    screen = show_live(80, 24, actors=actors)
    assert f"{actors} actors" in screen.text
    assert "┤" in screen.text
    assert screen.scrolled == []


def test_a_screen_too_narrow_loses_ends_of_lines_and_stays_in_order() -> None:
    screen = show_live(40, 24, actors=2)
    assert screen.text.count("\nreturn ") == 1
    assert screen.text.count("policy lag") == 1
    assert max(len(line) for line in screen.lines) <= 40


def test_the_result_takes_the_place_of_the_last_state() -> None:
    assert show_live(80, 24, actors=2, end="closed").text == (
        "4 processes started\n4.0 s  actor 3 was killed by SIGKILL and restarted\nthe result"
    )


def test_before_there_is_anything_to_say_the_display_does_not_say_it() -> None:
    text = show_live(80, 24, actors=2, seconds=1).text
    assert "return      no episode has ended" in text
    for word in ("ratio", "not in sight", "policy lag", "nan"):
        assert word not in text.lower().replace("env", "")


def shown(one: Snapshot) -> str:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(one, "ppo", None, console))
    return "".join(line.rstrip() + "\n" for line in console.export_text().splitlines())


def test_a_goal_is_out_of_sight_only_once_it_was_looked_for(snapshot: Callable[..., Snapshot]) -> None:
    stop = (StopProgress("mean_return", 20.0, 475.0, None), StopProgress("env_steps", 9.0, 9.0, 0.0))
    # A run that is resumed has trained before, and its pace is not known yet.
    early, late = (
        shown(snapshot(5, stop=stop, elapsed_s=elapsed_s, train_s=500.0)) for elapsed_s in (3.0, 30.0)
    )
    assert "stops at    mean_return  20.0 of 475.0\n" in early
    assert "stops at    mean_return  20.0 of 475.0  not in sight\n" in late
    assert "env_steps    9 of 9         reached\n" in late


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ((("running", "starting"), 0, 0), "starting    2 of 3 processes ready; waiting for learner 1\n"),
        ((("running", "running"), 0, 0), "starting    no environment step yet"),
        ((("running", "running"), 512, 0), "starting    no update yet"),
        ((("stopping", "done"), 512, 9), "stopping    saving what was learnt; waiting for actor 2\n"),
        ((("running", "running"), 512, 9), None),
    ],
)
def test_what_a_run_waits_for_is_said(
    snapshot: Callable[..., Snapshot], states: Any, said: str | None
) -> None:
    (actor, learner), produced, updates = states
    roles = (
        RoleStatus(0, "root", None, "node1", 4000, 0.01),
        RoleStatus(1, "buffer", 0, "node1", 4001, None, state=learner),
        RoleStatus(1, "learner", 0, "node1", 4001, None, state=learner),
        RoleStatus(2, "actor", 0, "node1", 4002, None, state=actor),
    )
    text = shown(snapshot(5, roles=roles, produced=produced, updates=updates))
    assert said in text if said else not {"starting", "stopping"} & set(text.split())


def test_the_chart_has_room_in_80_by_24_however_much_a_run_tells(
    snapshot: Callable[..., Snapshot], with_replay: dict[str, Any], of_groups: dict[str, Any]
) -> None:
    told = with_replay | of_groups | {"win_rate": 0.75, "bottleneck": TRAINING_BOUND}
    told |= {"evaluated": Evaluated(1, 2000, 210.5, 12.1, 215.3)}
    curve = LearningCurve()
    curve.add(1000, 3.0)
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(5, actors=20, **told), "ppo", curve, console))
    text = console.export_text()
    assert len(text.splitlines()) <= 21, "two events fit above it, and nothing scrolls"
    assert "┤" in text
    assert "…" not in text
    assert "busy        root 1 %, learner 97 %, 20 actors 80-90 %\n" in text
    for label in (
        "evaluated",
        "return",
        "win rate",
        "rates",
        "bottleneck",
        "replay",
        "policy lag",
        "stops at",
    ):
        assert f"\n{label} " in text
    tiny = Console(width=80, height=14, record=True, file=io.StringIO())
    tiny.print(render(snapshot(5, **told), "ppo", curve, tiny))
    assert "┤" not in tiny.export_text(), "there is no room at all"


def test_losses_take_one_line(snapshot: Callable[..., Snapshot]) -> None:
    text = shown(snapshot(5, losses={f"diagnostic_{i}": 0.5 for i in range(9)}))
    assert "losses      diagnostic_0 0.500, diagnostic_1 0.500 and 7 more\n" in text


def test_an_evaluation_is_shown_in_place_of_the_pace(snapshot: Callable[..., Snapshot]) -> None:
    text = shown(snapshot(5, evaluating=Evaluating(37, 100, 5000, 12.2), bottleneck=TRAINING_BOUND))
    assert "evaluating  37 of 100 episodes, 12 s, 5.00 K env steps\nreturn      150.0" in text
    for label in ("rates", "bottleneck", "stops at"):
        assert label not in text


def test_a_replay_is_shown_in_80_columns(
    snapshot: Callable[..., Snapshot], with_replay: dict[str, Any]
) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(5, **with_replay), "dqn", None, console))
    assert (
        "replay      34.0 K of 50.0 K env steps (2.14 MB), ratio 3.98, target 4.00\n"
        "sample age  mean 13.0 K, p50 12.0 K, p95 40.1 K, max 49.9 K env steps\n"
        "uses        mean 3.96, p50 4, p95 8, max 13 of each sample\n"
        "priorities  12 came after their samples had made room\n"
    ) in "".join(line.rstrip() + "\n" for line in console.export_text().splitlines())


def test_frames_are_shown_where_a_step_takes_several(snapshot: Callable[..., Snapshot]) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(5, frames_per_step=4), "ppo", None, console))
    shown = "".join(line.rstrip() + "\n" for line in console.export_text().splitlines())
    assert "steps       226 K env steps, 904 K frames, 1.75 K updates, policy version 220\n" in shown


def test_averaging_over_groups_is_shown(snapshot: Callable[..., Snapshot], of_groups: dict[str, Any]) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(5, **of_groups), "ppo", None, console))
    shown = console.export_text()
    assert "averaging   12 rounds; group 1 missed 3; group 1 is lost" in shown
    assert "mean of the last 100 of 185 episodes in 2 groups" in shown


def test_the_bottleneck_is_named_in_plain_words(snapshot: Callable[..., Snapshot]) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(render(snapshot(5, bottleneck=TRAINING_BOUND), "ppo", None, console))
    shown = "".join(line.rstrip() + "\n" for line in console.export_text().splitlines())
    assert (
        "bottleneck  training-bound: more actors will not help; a faster learner would:\n"
        "            more cores where its network uses them, or another group\n"
    ) in shown


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_however_a_run_ends_the_shell_has_a_cursor(end: str) -> None:
    assert show_live(80, 24, actors=2, end=end).cursor_shown


def test_a_dumb_terminal_gets_plain_lines() -> None:
    text = show_live(200, 24, actors=2, TERM="dumb").text
    assert "event=" in text
    assert "wall_s=7.0 env_steps=226000" in text


def test_a_terminal_without_unicode_gets_no_blocks() -> None:
    text = show_live(80, 24, actors=2, PYTHONUTF8="0", PYTHONIOENCODING="ascii:backslashreplace").text
    assert "150.0  mean of the last 100 of 185 episodes" in text
    assert text.isascii()
