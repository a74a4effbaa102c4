"""A config that cannot be run: the user sees all mistakes at once, and nothing heavy is imported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TIANJI = [sys.executable, "-X", "importtime", "-m", "tianji_cli.main"]
"""The command, telling on stderr what it imports."""

IMPORT = re.compile(r"^import time: +\d+ \| +\d+ \| +(\S+)$", re.MULTILINE)


class Outcome:
    """A command's exit status, output and imports."""

    def __init__(self, arguments: list[str], cwd: Path) -> None:
        done = subprocess.run(
            [*TIANJI, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
        )
        self.status = done.returncode
        self.stdout = done.stdout
        self.imported = {name.partition(".")[0] for name in IMPORT.findall(done.stderr)}
        self.stderr = "".join(
            line for line in done.stderr.splitlines(keepends=True) if not line.startswith("import time:")
        )


def test_all_errors_of_a_config_are_printed_at_once_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "configs/ppo_cartpole.toml"\n[training]\ngama = 0.9\n')
    outcome = Outcome(
        ["train", "mine.toml", "--set", "agent.type=pppo", "--set", "model.hiden=[3]"], tmp_path
    )
    assert outcome.status == 2
    assert "mine.toml: training.gama: unknown key; did you mean 'gamma'?" in outcome.stderr
    assert "--set: agent.type: no agent is named 'pppo'; did you mean 'ppo'?" in outcome.stderr
    assert "--set: model.hiden: unknown key; did you mean 'hidden'?" in outcome.stderr
    assert len(outcome.stderr.splitlines()) <= 5
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""


def test_nothing_is_left_behind_by_a_config_that_cannot_be_run(tmp_path: Path) -> None:
    outcome = Outcome(["train", "configs/ppo_cartpole.toml", "--set", "training.epochs=0"], tmp_path)
    assert outcome.status == 2
    assert list(tmp_path.iterdir()) == []


def test_a_syntax_error_is_printed_with_its_position(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\ngamma = 0.9.9\n")
    outcome = Outcome(["train", "mine.toml"], tmp_path)
    assert outcome.status == 2
    assert "mine.toml:2:" in outcome.stderr


@pytest.mark.parametrize("override", ["training.gama=0.9", "agent.type=pppo"])
def test_gymnasium_is_imported_only_where_an_id_must_be_looked_up(tmp_path: Path, override: str) -> None:
    (tmp_path / "mine.toml").write_text('[agent]\ntype = "ppo"\n[environment]\nnum_envs = 2\n')
    outcome = Outcome(["train", "mine.toml", "--set", override], tmp_path)
    assert outcome.status == 2
    assert "typer" in outcome.imported, "the imports were seen"
    assert outcome.imported.isdisjoint({"torch", "gymnasium"})
