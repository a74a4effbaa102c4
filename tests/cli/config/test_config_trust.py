"""Who could put other files in the place of a run's, and which commands run what a config names."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tianji
from tianji_cli.config import trust
from tianji_cli.config.trust import TRUST, UntrustedPlaceError, check_trusted
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.main import main

STRANGER = 54_321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = tmp_path / "a" / "b" / "run"
    made.mkdir(parents=True)
    return made


def test_directories_of_the_user_and_of_root_below_a_sticky_one_are_right(run: Path) -> None:
    assert Path("/tmp").stat().st_mode & 0o1000
    assert check_trusted(run) == check_trusted(run / "not/there/yet") == []


@pytest.mark.parametrize("level", range(3))
def test_what_all_may_write_to_is_refused_and_named(run: Path, level: int) -> None:
    place = [run, *run.parents][level]
    place.chmod(0o777)
    with pytest.raises(UntrustedPlaceError, match=rf"{place} may be written to by all \(mode 777\)"):
        check_trusted(run)
    place.chmod(0o1777)
    assert check_trusted(run) == []


def test_what_is_not_there_yet_is_looked_for_as_far_as_the_way_goes(run: Path) -> None:
    run.chmod(0o777)
    with pytest.raises(UntrustedPlaceError, match="may be written to by all"):
        check_trusted(run / "name/7")


@needs_root
@pytest.mark.parametrize("level", range(3))
def test_what_somebody_else_owns_is_refused_and_named(run: Path, level: int) -> None:
    place = [run, *run.parents][level]
    os.chown(place, STRANGER, -1)
    with pytest.raises(UntrustedPlaceError, match=rf"{place} is owned by user {STRANGER}"):
        check_trusted(run)


@needs_root
def test_of_files_the_owner_counts_as_well(run: Path) -> None:
    (run / "job.key").touch(0o600)
    assert check_trusted(run / "job.key") == []
    os.chown(run / "job.key", STRANGER, -1)
    with pytest.raises(UntrustedPlaceError, match=r"job\.key is owned by user"):
        check_trusted(run / "job.key")


@needs_root
def test_a_group_that_may_write_is_worth_a_warning(run: Path) -> None:
    os.chown(run.parent, -1, STRANGER)
    run.parent.chmod(0o775)
    (said,) = check_trusted(run)
    assert f"{run.parent} may be written to by the group {STRANGER}" in said
    run.parent.chmod(0o1775)
    assert check_trusted(run) == []


def test_the_way_leads_through_links_and_what_is_above_their_ends(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "disk"
    elsewhere.mkdir(parents=True)
    (run / "far").symlink_to(elsewhere)
    (run / "near").symlink_to("../../../elsewhere/disk")
    assert check_trusted(run / "far/1") == check_trusted(run / "near/1") == []
    elsewhere.parent.chmod(0o777)
    for name in ("far", "near"):
        with pytest.raises(UntrustedPlaceError, match=f"{elsewhere.parent} may be written to by all"):
            check_trusted(run / name / "1")


@needs_root
def test_a_link_of_somebody_else_s_is_refused_in_a_sticky_directory_too(run: Path) -> None:
    shared = run / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(run.parent)
    assert check_trusted(shared / "link") == []
    os.lchown(shared / "link", STRANGER, -1)
    with pytest.raises(UntrustedPlaceError, match="link is owned by user"):
        check_trusted(shared / "link")


def test_links_that_lead_in_a_circle_are_an_error(run: Path) -> None:
    (run / "one").symlink_to("two")
    (run / "two").symlink_to("one")
    with pytest.raises(UntrustedPlaceError, match="Too many levels of symbolic links"):
        check_trusted(run / "one/x")


@needs_root
def test_where_the_true_root_is_shown_as_nobody_nobody_is_trusted(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(run, 65_534, -1)
    with pytest.raises(UntrustedPlaceError, match="is owned by"):
        check_trusted(run)
    monkeypatch.setattr(trust, "ALL_USERS", [])
    assert check_trusted(run) == []


CONFIG = """
[experiment]
name = "sent"
{extensions}
stop = {{ env_steps = 100_000 }}
[environment]
type = "{module}:Still"
[agent]
type = "ppo"
"""
MODULE = """
import pathlib
import gymnasium
pathlib.Path({marker!r}).touch()
class Still(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)
"""
THAT_RUN_CODE = (
    "train {config} --dry-run",
    "train {config} --quiet",
    "train --resume {run} --quiet",
    "check {config}",
    "config show {config}",
    "config show {run}",
    "config diff {config} {run}",
    "eval {run}",
    "export {run} --format onnx --out {place}/x.onnx",
    "launch slurm {config} --nodes 1 --out {place}",
)
THAT_READ_ONLY = (
    "list runs --out {place}/runs",
    "show {run}",
    "logs {run}",
    "stop {run}",
    "compare {run}",
    "report {run} --out {place}/page.html",
    "rm {run} --yes",
)


class Sent:
    """A run and its config, which name a module that would leave a mark when it is executed."""

    def __init__(self, place: Path) -> None:
        self.place, self.mark = place, place / "mark"
        self.code = place / "code"
        self.code.mkdir()
        self.module = f"sent_{abs(hash(place))}"
        self.run = RunDirectory.create("sent", place / "runs")
        self.run.metrics.touch()
        self.name(self.code)

    def name(self, directory: Path, extensions: str | None = None) -> None:
        """Put the module somewhere, and have the config say so."""
        (directory / f"{self.module}.py").write_text(MODULE.format(marker=str(self.mark)))
        said = f"extensions = [{str(directory)!r}]" if extensions is None else extensions
        self.run.config.write_text(CONFIG.format(extensions=said, module=self.module))

    def words(self, command: str) -> list[str]:
        return command.format(config=self.run.config, run=self.run.path, place=self.place).split()


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sent:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(TRUST, "")
    return Sent(tmp_path)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command; gives its exit status and what it complains of."""

    def run(words: list[str]) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(words)
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.parametrize("words", THAT_RUN_CODE)
def test_modules_that_others_could_add_to_are_not_executed(
    sent: Sent, command: Callable[..., tuple[int, str]], words: str
) -> None:
    sent.code.chmod(0o1777)
    status, said = command(sent.words(words))
    assert status == 2, said
    assert f"{sent.code} may be written to by all" in said
    assert "--trust executes it as it is" in said
    assert not sent.mark.exists()


@pytest.mark.parametrize("what", ["module", "config"])
def test_nor_is_one_whose_file_or_config_others_may_change(
    sent: Sent, command: Callable[..., tuple[int, str]], what: str
) -> None:
    file = sent.run.config if what == "config" else sent.code / f"{sent.module}.py"
    file.chmod(0o666)
    status, said = command(sent.words("config show {config}"))
    assert (status, f"{file} may be written to by all" in said) == (2, True)
    assert not sent.mark.exists()


@pytest.mark.parametrize("words", THAT_RUN_CODE)
def test_modules_that_a_run_brings_along_are_not_executed(
    sent: Sent, command: Callable[..., tuple[int, str]], words: str
) -> None:
    sent.name(sent.run.path, "")
    status, said = command(sent.words(words))
    assert status == 2, said
    assert "names modules that came with the run" in said
    assert not sent.mark.exists()


@pytest.mark.parametrize("extensions", ["extensions = ['.']", "extensions = ['../../../code']", None])
def test_however_its_config_names_them(
    sent: Sent, command: Callable[..., tuple[int, str]], extensions: str | None
) -> None:
    sent.name(sent.run.path if extensions is None else sent.code, extensions)
    status, said = command(sent.words("config show {run}"))
    assert (status, "names modules that came with the run" in said) == (2, True), said
    assert not sent.mark.exists()


def test_nor_are_they_loaded_from_python(sent: Sent) -> None:
    sent.name(sent.run.path, "")
    with pytest.raises(UntrustedPlaceError, match="came with the run"):
        tianji.load(sent.run.path)
    assert not sent.mark.exists()


@pytest.mark.parametrize("brought", [True, False])
def test_who_trusts_a_run_has_its_modules_executed(
    sent: Sent, command: Callable[..., tuple[int, str]], *, brought: bool
) -> None:
    if brought:
        sent.name(sent.run.path, "")
    else:
        sent.code.chmod(0o777)
    status, said = command(["--trust", *sent.words("config show {run}")])
    assert status == 0, said
    assert sent.mark.exists()


def test_a_run_of_one_s_own_needs_no_trust(sent: Sent, command: Callable[..., tuple[int, str]]) -> None:
    status, said = command(sent.words("config show {run}"))
    assert status == 0, said
    assert sent.mark.exists()


@pytest.mark.parametrize("words", THAT_READ_ONLY)
def test_what_only_reads_a_run_executes_nothing(
    sent: Sent, command: Callable[..., tuple[int, str]], words: str
) -> None:
    sent.name(sent.run.path, "")
    command(sent.words(words))
    run = tianji.Run(sent.run.path) if sent.run.path.exists() else None
    assert run is None or run.config["environment"]["type"] == f"{sent.module}:Still"
    assert not sent.mark.exists()
    assert sent.module not in sys.modules


def test_a_project_may_have_checkpoints_beside_its_config_and_its_module(
    sent: Sent, command: Callable[..., tuple[int, str]]
) -> None:
    project = sent.place / "project"
    (project / "checkpoints").mkdir(parents=True)
    sent.name(project, "")
    config = project / "mine.toml"
    sent.run.config.rename(config)
    status, said = command(["config", "show", str(config)])
    assert (status, "came with the run" in said) == (0, False), said
