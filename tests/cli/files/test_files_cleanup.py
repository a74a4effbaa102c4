"""Cleaning up never fails because of what others have put there, and touches nothing of theirs."""

import fcntl
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tianji_cli.files.directories import directory_lock, remove_stale, temporary_directory
from tianji_transports.shm.page import SHM, user_prefix

STRANGER = 54_321
AS_STRANGER = f"import os, sys; os.setgid({STRANGER}); os.setuid({STRANGER}); exec(sys.argv[1])"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory that all may write to, as /tmp is."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(parent.stat().st_mode | 0o011)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


@pytest.fixture
def stem() -> Iterator[Path]:
    """Prefix of the names of a job of this user in shared memory."""
    made = SHM / f"{user_prefix()}{secrets.token_hex(6)}"
    yield made
    for left in SHM.glob(f"{made.name}*"):
        subprocess.run(["rm", "-rf", str(left)], check=True)


def as_stranger(code: str) -> None:
    subprocess.run([sys.executable, "-c", AS_STRANGER, code], check=True)


@pytest.mark.parametrize("kind", ["host", "temporary"])
def test_temporary_directories_of_the_dead_go_and_those_of_the_living_stay(tmp: Path, kind: str) -> None:
    for name in ("dead", "living"):
        (tmp / f"tianji-{kind}-{name}/logs").mkdir(parents=True)
    (tmp / "tianji-mine").mkdir()
    with directory_lock(tmp / f"tianji-{kind}-living"), temporary_directory() as ours:
        assert str(tmp / f"tianji-{kind}-dead") in remove_stale()
        assert ours.is_dir()
    assert {place.name for place in tmp.iterdir()} == {f"tianji-{kind}-living", "tianji-mine"}


def test_a_host_keeps_its_directory_however_often_others_clean_up(tmp: Path) -> None:
    over = threading.Event()

    def clean_up() -> None:
        while not over.is_set():
            remove_stale()

    with ThreadPoolExecutor() as pool:
        cleaner = pool.submit(clean_up)
        try:
            for _ in range(500):
                with temporary_directory("tianji-host-") as directory:
                    assert directory.is_dir()
                    (directory / "logs").mkdir()
        finally:
            over.set()
        cleaner.result()
    assert list(tmp.iterdir()) == []


def test_links_and_files_of_such_names_stop_nobody_and_are_not_followed(tmp: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp / "tianji-host-dangling").symlink_to("nowhere")
    (tmp / "tianji-host-link").symlink_to(kept)
    (tmp / "tianji-host-file").touch()
    os.mkfifo(tmp / "tianji-host-fifo")
    dead = {str(tmp / f"tianji-host-{name}") for name in "abcdefgh"}
    for name in dead:
        Path(name).mkdir()
    assert dead <= set(remove_stale()), "wherever they are in the list"
    assert len(list(tmp.iterdir())) == 4
    assert kept.is_dir()


@needs_root
def test_what_another_user_has_put_into_the_temporary_directory_is_left_alone(tmp: Path) -> None:
    as_stranger(
        f"os.chdir({str(tmp)!r}); os.mkdir('tianji-host-x'); os.symlink('nowhere', 'tianji-host-y'); "
        "os.mkdir('tianji-host-z', 0)"
    )
    remove_stale()
    assert len(list(tmp.iterdir())) == 3


@pytest.mark.parametrize("kind", ["directory", "dangling link", "fifo"])
def test_what_has_the_name_of_a_page_and_is_none_stops_nobody(stem: Path, kind: str) -> None:
    page = stem.with_name(f"{stem.name}.page")
    match kind:
        case "directory":
            page.mkdir()
        case "dangling link":
            page.symlink_to("nowhere")
        case _:
            os.mkfifo(page)
    remove_stale()
    assert not (SHM / "nowhere").exists()


@needs_root
@pytest.mark.parametrize(
    "code",
    [
        "os.mkdir(page)",
        "os.symlink('nowhere', page)",
        "os.mkfifo(page)",
        "open(page, 'w').close(); os.chmod(page, 0o666)",
        "open(stem + '.bell-1', 'w').close()",
        "os.mkdir(stem + '.d'); open(stem + '.d/x', 'w').close()",
    ],
)
def test_names_of_this_user_s_that_another_has_made_are_left_alone(stem: Path, code: str) -> None:
    as_stranger(f"stem = {str(stem)!r}; page = stem + '.page'; {code}")
    assert stem.name not in remove_stale()
    assert len(list(SHM.glob(f"{stem.name}*"))) == 1


def test_what_a_dead_job_of_this_user_has_left_goes(stem: Path) -> None:
    page = stem.with_name(f"{stem.name}.page")
    page.touch()
    stem.with_name(f"{stem.name}.d").mkdir()
    stem.with_name(f"{stem.name}.x").symlink_to("/etc")
    with page.open("w") as living:
        fcntl.flock(living, fcntl.LOCK_SH)
        assert stem.name not in remove_stale()
    assert stem.name in remove_stale()
    assert list(SHM.glob(f"{stem.name}*")) == []
    assert Path("/etc").is_dir()


@pytest.mark.usefixtures("tmp")
@pytest.mark.parametrize("name", ["", "0123456789", "nothexdigits"])
def test_a_name_that_is_no_job_s_removes_no_living_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setattr("tianji_transports.shm.page.SHM", tmp_path)
    page = tmp_path / f"{user_prefix()}0123456789ab.page"
    for path in (page, page.with_suffix(".bell-1"), tmp_path / f"{user_prefix()}{name}"):
        path.touch()
    before = sorted(tmp_path.iterdir())
    with page.open() as locked:
        fcntl.flock(locked, fcntl.LOCK_SH)
        remove_stale()
        assert sorted(tmp_path.iterdir()) == before
