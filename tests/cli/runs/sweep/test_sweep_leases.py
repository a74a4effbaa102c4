"""Who takes part in a sweep: by locks on one machine, by the ages of files between machines."""

import os
from pathlib import Path

from tianji_cli.runs.sweep.leases import SILENT_S, Lease, this_machine


def test_a_lease_is_dead_once_its_process_has_gone_and_not_before(tmp_path: Path) -> None:
    own, other = Lease(tmp_path), Lease(tmp_path)
    assert not own.is_dead(other.name)
    kept = (tmp_path / other.name).read_bytes()
    other.close()
    assert own.is_dead(other.name)
    (tmp_path / other.name).write_bytes(kept)  # As one that was killed leaves it: there, and not locked.
    assert own.is_dead(other.name)
    own.close()
    assert list(tmp_path.iterdir()) == [tmp_path / other.name]


def test_a_process_elsewhere_is_dead_when_its_file_has_been_silent_for_long(tmp_path: Path) -> None:
    own = Lease(tmp_path)
    elsewhere = tmp_path / "other-12345678-17-0123abcd"
    elsewhere.touch()
    assert not own.is_dead(elsewhere.name)
    written = elsewhere.stat().st_mtime
    os.utime(elsewhere, (written, written - SILENT_S - 5))
    assert own.is_dead(elsewhere.name)
    here = tmp_path / f"{this_machine()}-17-0123abcd"
    here.touch()
    assert own.is_dead(here.name), "on this machine a lock would be seen"
    own.close()


def test_files_of_dead_processes_are_cleared_and_a_process_that_was_asleep_makes_its_own_anew(
    tmp_path: Path,
) -> None:
    own, other = Lease(tmp_path), Lease(tmp_path)
    elsewhere, killed = tmp_path / "other-12345678-17-0123abcd", tmp_path / f"{this_machine()}-17-0123abcd"
    for file in (elsewhere, killed):
        file.touch()
    own.clear()
    assert set(tmp_path.iterdir()) == {tmp_path / own.name, tmp_path / other.name, elsewhere}
    os.utime(elsewhere, (0, 0))
    own.clear()
    assert not elsewhere.exists()
    (tmp_path / own.name).unlink()
    (tmp_path / "other-12345678-18-0123abcd").touch()
    assert not own.is_dead("other-12345678-18-0123abcd")
    assert not other.is_dead(own.name)
