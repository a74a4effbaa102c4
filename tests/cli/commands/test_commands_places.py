"""Commands that execute what a run's config names use no place that others may change."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.main import main

STRANGER = 54_321
CONFIG = Path(__file__).parents[3] / "configs/ppo_cartpole.toml"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")

Tianji = Callable[..., tuple[int, str]]


@pytest.fixture
def tianji(capsys: pytest.CaptureFixture[str]) -> Tianji:
    """Run a command; gives its exit status and what it complains of."""

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        status = ended.value.code
        assert isinstance(status, int)
        return status, capsys.readouterr().err

    return run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create("x", tmp_path / "runs")
    shutil.copy(CONFIG, made.config)
    (made.checkpoints / "last").mkdir()
    return made


def commands(run: RunDirectory) -> list[tuple[str, ...]]:
    """Every command that would run what a config in such a place names."""
    place = str(run.path.parent.parent)
    return [
        ("train", str(CONFIG), "--out", place, "--quiet"),
        ("train", "--resume", str(run.path), "--quiet"),
        ("train", str(CONFIG), "--run", str(run.path), "--quiet"),
        ("eval", str(run.path), "--episodes", "1"),
        ("export", str(run.path), "--format", "onnx", "--out", "x.onnx"),
    ]


@pytest.mark.parametrize("command", range(5))
@pytest.mark.parametrize("change", ["owner", "mode"])
def test_a_run_below_a_directory_that_others_may_change_is_refused(
    tianji: Tianji, run: RunDirectory, command: int, change: str
) -> None:
    above = run.path.parent.parent
    before = sorted(above.rglob("*"))
    if change == "owner":
        os.chown(above, STRANGER, -1)
    else:
        above.chmod(0o777)
    status, said = tianji(*commands(run)[command])
    assert status == 2
    assert f"is not safe: {above} " in said
    assert ("is owned by user 54321" if change == "owner" else "may be written to by all (mode 777)") in said
    assert "choose a place below directories that only you or root may write to" in said
    assert sorted(above.rglob("*")) == before, "nothing was made"


@pytest.mark.parametrize("command", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["config.toml", "checkpoints"])
def test_a_run_whose_own_files_others_may_change_is_refused(
    tianji: Tianji, run: RunDirectory, command: int, name: str
) -> None:
    os.chown(run.path / name, STRANGER, -1)
    status, said = tianji(*commands(run)[command])
    assert status == 2
    assert f"{name} is owned by user 54321" in said


@pytest.mark.parametrize("command", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["logs", "checkpoints"])
def test_a_run_whose_directories_are_links_is_refused(
    tianji: Tianji, run: RunDirectory, tmp_path: Path, command: int, name: str
) -> None:
    (run.path / name).rename(tmp_path / "elsewhere")
    (run.path / name).symlink_to(tmp_path / "elsewhere")
    status, said = tianji(*commands(run)[command])
    assert status == 2
    assert f"{name} is a link, and must not be" in said


def test_what_a_run_makes_is_the_user_s_alone_whatever_the_umask(tianji: Tianji, tmp_path: Path) -> None:
    settings = ("experiment.stop={env_steps=5000}", "experiment.eval_episodes=0", "distribution.actor.num=1")
    changes = [word for setting in settings for word in ("--set", setting)]
    out = tmp_path / "new/runs"
    former = os.umask(0)
    try:
        assert tianji("train", str(CONFIG), "--out", str(out), "--quiet", *changes) == (0, "")
    finally:
        os.umask(former)
    made = [out.parent, *out.parent.rglob("*")]
    assert out / "ppo_cartpole/1/checkpoints/last" in made
    assert not [path for path in made if not path.is_symlink() and path.stat().st_mode & 0o022]
