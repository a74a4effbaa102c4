"""Who could put other files in the place of a run's."""

import os
from pathlib import Path

import pytest

from tianji_cli.files import regular
from tianji_cli.files.regular import UntrustedPlaceError, check_trusted

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
    monkeypatch.setattr(regular, "ALL_USERS", [])
    assert check_trusted(run) == []
