"""Pipes, links and devices in place of a run's files are refused at once, without waiting."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tianji_cli.files import regular
from tianji_cli.files.regular import (
    bound_log,
    open_regular,
    open_to_append,
    read_json,
    read_regular,
    read_toml,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A file, and everything else that may have its name."""
    (tmp_path / "file").write_bytes(b"content")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "device").symlink_to("/dev/zero")
    return tmp_path


def test_a_file_is_read_whole_as_long_as_it_is_no_larger_than_it_may_be(place: Path) -> None:
    assert read_regular(place / "file", 7) == b"content"
    with pytest.raises(OSError, match="more than 6 bytes"):
        read_regular(place / "file", 6)


@pytest.mark.parametrize("name", ["fifo", "/dev/zero"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_what_is_no_regular_file_is_refused_without_waiting(place: Path, name: str, flags: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no regular file"):
        open_regular(place / name, flags)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_is_called_one(place: Path) -> None:
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        open_regular(place / "directory")


@pytest.mark.parametrize("name", ["link", "dangling", "device"])
def test_nothing_is_read_or_appended_behind_a_link(place: Path, name: str) -> None:
    with pytest.raises(OSError, match="it is a link, and must not be"):
        read_regular(place / name, 7)
    with pytest.raises(OSError, match="it is a link, and must not be"):
        open_to_append(place / name)
    assert (place / "file").read_bytes() == b"content"
    assert not (place / "nowhere").exists()


def test_a_log_is_made_or_goes_on(place: Path) -> None:
    for name in ("file", "new"):
        with open(open_to_append(place / name), "ab") as log:
            log.write(b" more")
    assert (place / "file").read_bytes() == b"content more"
    assert (place / "new").read_bytes() == b" more"


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        *((read_json, text, r".+") for text in ("", "{", "\xff", "[" * 100_000, "[" * 10**5 + "]" * 10**5)),
        (read_json, f'{{"a": {"9" * 400}}}', "a whole number of 1329 bits"),
        (read_json, '{"a": NaN}', "expected value"),
        (read_json, '{"a": [-Infinity]}', "invalid number"),
        (read_json, '{"a": [-1e999]}', "a number that is not finite"),
        (read_json, f'{{"a": {"[" * 150}{"]" * 150}}}', "nested too deeply"),
        (read_toml, f"a = {'9' * 400}", "a whole number of 1329 bits"),
        (read_toml, f"a = {'[' * 100_000}{']' * 100_000}", "nested too deeply"),
        (read_toml, f"a = {'[' * 150}{']' * 150}", "nested too deeply"),
    ],
)
def test_a_document_that_no_run_writes_is_a_value_error(
    place: Path, read: Callable[[Path], object], text: str, why: str
) -> None:
    (place / "file").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=why):
        read(place / "file")


@pytest.mark.parametrize("name", ["logs", "plots"])
def test_a_directory_of_a_run_is_no_link_and_the_run_may_be_one(place: Path, name: str) -> None:
    run, elsewhere = place / "run", place / "elsewhere"
    for directory in (run, elsewhere):
        directory.mkdir()
    (elsewhere / "file").write_bytes(b"secret")
    (run / "config.toml").touch()
    (run / name).symlink_to(elsewhere)
    (place / name).symlink_to(elsewhere)
    (place / "linked").symlink_to(elsewhere)
    with pytest.raises(OSError, match=f"it is a link, and must not be: '.*{name}'"):
        open_regular(run / name / "file")
    for of_the_user in (place / "linked", place / name):  # It is no run's that has such a name.
        assert read_regular(of_the_user / "file", 6) == b"secret"


def test_a_config_that_fills_memory_is_not_read(place: Path) -> None:
    os.truncate(place / "file", 3 << 30)
    with pytest.raises(OSError, match="more than 1048576 bytes"):
        read_toml(place / "file")


def test_a_log_keeps_its_beginning_and_its_end_and_its_writers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regular, "LOG_BYTES", 1000)
    log = tmp_path / "log"
    with open(open_to_append(log), "ab", buffering=0) as writer:
        writer.write(b"first" + b"a" * 1000 + b"b" * 990 + b"last")
        bound_log(log)
        assert log.stat().st_size == 1999, "it is not too long yet"
        for _ in range(100):
            writer.write(b"c" * 100 + b"newer")
            bound_log(log)
        assert log.stat().st_size <= 2000
        kept = log.read_bytes()
        assert kept.startswith(b"first" + b"a" * 994)
        assert b"left out" in kept
        assert kept.endswith(b"newer")
