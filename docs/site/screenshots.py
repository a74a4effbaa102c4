"""Takes the documents' pictures of terminals and pages, from real commands.

    python docs/site/screenshots.py [NAME...]      # writes docs/figures/screen-NAME.*; three minutes for all

tmux gives real terminals, which rich draws; Chromium shows the pages.

Run it anew when the program's output has changed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs/figures"
PROMPT = "all of it is done"


@dataclass(frozen=True)
class Screen:
    """A picture of a terminal.

    Attributes:
        command: command that the picture shows.
        size: columns and rows.
        wait_for: text on the screen to wait for; None to wait for the command's end.
        then_s: seconds from ``wait_for`` to the picture.
        before: command whose output is not shown.
        rows: number of first rows to show; None for all.
    """

    command: str
    size: tuple[int, int]
    wait_for: str | None = None
    then_s: float = 0.0
    before: str = "true"
    rows: int | None = None


SCREENS = {
    "train": Screen("tianji train configs/ppo_lunarlander.toml", (106, 30), "return", 3.5),
    "doctor": Screen("tianji doctor", (106, 90), rows=26),
    "check": Screen("tianji check my_env:Docking", (106, 24), before="tianji new . >/dev/null"),
    "profile": Screen("tianji profile configs/ppo_lunarlander.toml", (120, 70)),
}


@dataclass(frozen=True)
class Page:
    """A picture of a page that a command writes.

    Attributes:
        command: command that writes ``page.html``.
        size: size of the window in pixels.
    """

    command: str
    size: tuple[int, int]


PAGES = {
    "report": Page(
        "tianji train dqn_cartpole --quiet --set experiment.evaluation.every_env_steps=30_000 "
        "&& tianji report dqn_cartpole --out page.html",
        (1250, 1700),
    ),
}


def tmux(*words: str) -> str:
    """Send a command to a tmux server of this script's own; returns its output."""
    return subprocess.run(
        ["tmux", "-L", "tianji-screens", "-f", "/dev/null", *words],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def shoot(name: str, screen: Screen, place: Path) -> None:
    """Run a command, and write a picture of its terminal.

    Raises:
        SystemExit: the text or the end of the command does not appear within five minutes.
    """
    columns, lines = screen.size
    path = f'export PATH="{Path(sys.executable).parent}:$PATH" TERM=xterm-256color'
    shell = f"{path}; cd {place}; {screen.before}; clear; {screen.command}; echo {PROMPT}; sleep 600"
    tmux("new-session", "-d", "-s", name, "-x", str(columns), "-y", str(lines), "bash", "--norc", "-c", shell)
    try:
        wanted, until = screen.wait_for or PROMPT, time.monotonic() + 300
        while wanted not in tmux("capture-pane", "-p", "-t", name):
            if time.monotonic() > until:
                raise SystemExit(f"{screen.command}: no {wanted!r} within five minutes")
            time.sleep(0.2)
        time.sleep(screen.then_s)
        seen = tmux("capture-pane", "-p", "-e", "-t", name)
    finally:
        tmux("kill-session", "-t", name)
    shown = seen.replace(PROMPT, "").rstrip().replace(str(place), "~")
    # Hides the path of this Python and the kernel's build; padding keeps the widths of tables.
    kernel = platform.release()
    shown = shown.replace(kernel, kernel.partition("-")[0].ljust(len(kernel)))
    rows = shown.replace(sys.prefix, "~/.venv".ljust(len(sys.prefix))).split("\n")
    if screen.rows is not None and len(rows) > screen.rows:
        rows = [*rows[: screen.rows], "\x1b[0m..."]
    text = Text.from_ansi("\n".join([f"$ {screen.command}", *rows]))
    console = Console(width=columns, record=True, file=StringIO(), force_terminal=True)
    console.print(text, soft_wrap=False)
    svg = console.export_svg(title="", unique_id=f"screen-{name}")
    # Drops the fonts that rich would fetch from the web; the reader's own fonts are good enough.
    begin, end = svg.find("@font-face"), svg.find(f".screen-{name}-matrix")
    svg = svg[:begin] + svg[end:] if 0 <= begin < end else svg
    (FIGURES / f"screen-{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def shoot_page(name: str, page: Page, place: Path) -> None:
    """Run a command, and write a picture of its page in a browser, in 200 colours."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", page.command], check=True, cwd=place, env=environment)
    shot = place / "page.png"
    size = f"--window-size={page.size[0]},{page.size[1]}"
    options = ["--headless=new", "--no-sandbox", "--hide-scrollbars", size, f"--screenshot={shot}"]
    command = ["chromium", *options, f"file://{place / 'page.html'}"]
    subprocess.run(command, check=True, capture_output=True)
    with Image.open(shot) as image:
        image.convert("RGB").quantize(200, Image.Quantize.MAXCOVERAGE).save(
            FIGURES / f"screen-{name}.png", optimize=True
        )


def main(names: Sequence[str]) -> int:
    """Take the named pictures, or all of them."""
    for name in names or (*SCREENS, *PAGES):
        program = "tmux" if name in SCREENS else "chromium"
        assert shutil.which(program), f"apt-get install {program}"
        with tempfile.TemporaryDirectory() as directory:
            if name in SCREENS:
                shoot(name, SCREENS[name], Path(directory))
            else:
                shoot_page(name, PAGES[name], Path(directory))
        print(f"docs/figures/screen-{name}.{'svg' if name in SCREENS else 'png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
