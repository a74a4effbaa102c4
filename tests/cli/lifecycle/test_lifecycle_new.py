"""`tianji new`: what it makes trains as it is, and nothing that is there is overwritten."""

import os
import subprocess
import sys
from typing import Any


def test_a_new_projects_own_test_passes_at_once(workplace: Any) -> None:
    made = workplace.command("new", "my project")
    made.wait(0)
    assert made.stdout.startswith("cd 'my project'\n")
    project = workplace.place / "my project"
    assert {path.name for path in project.iterdir()} == {
        "README.md",
        "config.toml",
        "my_env.py",
        "pytest.ini",
        "test_training.py",
    }
    assert "NAME" not in "".join(path.read_text() for path in project.iterdir())
    shown = workplace.command("config", "show", "my project/config.toml")
    shown.wait(0)
    assert 'name = "my_project"' in shown.stdout

    # As in a checkout: what is above the project says how other tests are run.
    (workplace.place / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = ['--strict-config']\nof_others = 1\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command,
        cwd=project,
        env=os.environ | {"TMPDIR": str(workplace.place)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    again = workplace.command("new", "my project")
    again.wait(2)
    assert "my project is not empty" in again.stderr


def test_a_new_project_has_nothing_to_mend(workplace: Any) -> None:
    (workplace.place / "fresh").mkdir()
    workplace.command("new", "fresh").wait(0)
    check = workplace.command("check", "fresh/config.toml")
    check.wait(0)
    assert "nothing is to be mended" in check.stdout


def test_a_project_takes_the_place_of_no_file(workplace: Any) -> None:
    (workplace.place / "there").write_text("kept")
    command = workplace.command("new", "there")
    command.wait(2)
    assert "there is a file: name a new directory" in command.stderr
    assert (workplace.place / "there").read_text() == "kept"
