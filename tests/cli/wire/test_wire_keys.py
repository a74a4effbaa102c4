import os
import stat
from pathlib import Path

import pytest

from tianji_cli.errors import UsageError
from tianji_cli.wire.address import JobKey, write_new_key


def test_the_key_file_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "job.key"
    former = os.umask(0)
    try:
        key = write_new_key(path)
    finally:
        os.umask(former)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert JobKey.read(path) == key
    with pytest.raises(FileExistsError):
        key.write(path)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.key"
    write_new_key(path)
    path.chmod(0o640)
    with pytest.raises(UsageError, match="others can read the key"):
        JobKey.read(path)


def test_two_halves_of_different_keys_are_refused(tmp_path: Path) -> None:
    JobKey(JobKey.new().public, JobKey.new().secret).write(tmp_path / "job.key")
    with pytest.raises(UsageError, match="do not belong together"):
        JobKey.read(tmp_path / "job.key")


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", '{"public": 1, "secret": 2}', "\x00", '{"a": "b"}']
)
def test_what_is_no_key_is_refused_by_its_path(tmp_path: Path, content: str) -> None:
    path = tmp_path / "job.key"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(UsageError, match=r"job\.key holds no key"):
        JobKey.read(path)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the job's key in .*nowhere"):
        JobKey.read(tmp_path / "nowhere")
