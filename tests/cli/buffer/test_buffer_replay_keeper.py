import os
from pathlib import Path

import pytest
from cli.buffer.replays import ScriptedActor, fragment_layout, open_replay
from cli.sessions import fill_disk

from tianji_cli.files import directories
from tianji_cli.roles.buffer.replay.file import ReplayFileError, ReplayKeeper
from tianji_cli.roles.buffer.replay.replay import Replay

LAYOUT = fragment_layout(4, 3)


def fill(replay: Replay, fragments: int, seed: int = 1) -> None:
    actor = ScriptedActor(LAYOUT, 0, seed)
    for _ in range(fragments):
        actor.fill(replay.free)
        replay.accept()


def test_without_a_copy_nothing_is_restored(tmp_path: Path) -> None:
    replay = open_replay(LAYOUT, 5)
    assert not ReplayKeeper(replay, tmp_path / "replay", 60.0).restore()
    assert replay.size == 0


def test_only_the_newest_copy_stays(tmp_path: Path) -> None:
    replay = open_replay(LAYOUT, 5)
    keeper = ReplayKeeper(replay, tmp_path, 60.0)
    for _ in range(3):
        fill(replay, 1)
        keeper.save()
    keeper.save()  # Nothing has come since.
    assert sorted(os.listdir(tmp_path)) == [f"{replay.accepted:012d}", "last"]
    assert (tmp_path / "last/replay.json").is_file()


def test_what_others_put_beside_the_copies_stays(tmp_path: Path) -> None:
    replay = open_replay(LAYOUT, 5)
    keeper = ReplayKeeper(replay, tmp_path, 60.0)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "12").write_text("no directory")
    (tmp_path / "mine").mkdir()
    (tmp_path / "34").symlink_to("mine")
    for _ in range(2):
        fill(replay, 1)
        keeper.save()
    assert set(os.listdir(tmp_path)) == {"12", "34", "mine", "notes.txt", "last", f"{replay.accepted:012d}"}


def test_an_empty_replay_is_saved_and_restored_too(tmp_path: Path) -> None:
    ReplayKeeper(open_replay(LAYOUT, 5), tmp_path, 60.0).save()
    replay = open_replay(LAYOUT, 5)
    assert ReplayKeeper(replay, tmp_path, 60.0).restore()
    assert replay.size == 0
    fill(replay, 2)
    assert replay.size == replay.accepted > 0


def test_a_copy_is_due_so_many_seconds_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(directories.time, "monotonic", lambda: now[0])
    keeper = ReplayKeeper(open_replay(LAYOUT, 5), tmp_path, 60.0)
    for _ in range(2):
        assert not keeper.is_due()
        now[0] += 59.0
        assert not keeper.is_due()
        now[0] += 1.0
        assert keeper.is_due()
        keeper.save()


def test_a_disk_that_is_full_leaves_the_copy_before_whole(small_disk: Path) -> None:
    replay = open_replay(LAYOUT, 5)
    directory = small_disk / "replay"
    keeper = ReplayKeeper(replay, directory, 60.0)
    fill(replay, 2)
    keeper.save()
    before = {path.name: path.read_bytes() for path in (directory / "last").iterdir()}
    filler = fill_disk(small_disk)
    fill(replay, 3)
    with pytest.raises(ReplayFileError, match=r"cannot write the replay to .*No space left"):
        keeper.save()
    assert {path.name: path.read_bytes() for path in (directory / "last").iterdir()} == before
    assert len(list(directory.iterdir())) == 2
    filler.unlink()
    keeper.save()
    restored = open_replay(LAYOUT, 5)
    ReplayKeeper(restored, directory, 60.0).restore()
    assert restored.size == replay.size


@pytest.mark.parametrize("call", ["mkdir", "rename"])
def test_any_refusal_of_the_disk_is_an_error_that_names_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    keeper = ReplayKeeper(open_replay(LAYOUT, 5), tmp_path, 60.0)

    def refuse(*_arguments: object, **_keywords: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, call, refuse)
    with pytest.raises(ReplayFileError, match=r"cannot write the replay to .*No space left"):
        keeper.save()
