"""Each group has a place for its checkpoints, and ``best`` leads to the best of all."""

import os
from pathlib import Path

from tianji_cli.files.directories import LinkedDirectories
from tianji_cli.files.saved import checkpoints_of, point_best_at


def save(checkpoints: Path, group: int, steps: int) -> None:
    """Write a best policy, and remove the one before, as a checkpoint writer does."""
    place = checkpoints_of(checkpoints, group)
    links = LinkedDirectories(place, ("last", "best"))
    with links.fill("best", f"best-{steps:012d}") as directory:
        (directory / "model.safetensors").write_text(f"group {group} at {steps}")
    for old in place.glob("best-*"):
        if old.name not in links.targets():
            (old / "model.safetensors").unlink()
            old.rmdir()


def best(checkpoints: Path) -> str:
    return (checkpoints / "best" / "model.safetensors").read_text()


def test_the_first_group_keeps_its_checkpoints_where_a_single_one_does(tmp_path: Path) -> None:
    assert checkpoints_of(tmp_path, 0) == tmp_path
    assert checkpoints_of(tmp_path, 3) == tmp_path / "group-3"


def test_best_leads_to_another_group_and_back(tmp_path: Path) -> None:
    save(tmp_path, 0, 10)
    save(tmp_path, 1, 12)
    point_best_at(tmp_path, 1)
    assert best(tmp_path) == "group 1 at 12"
    point_best_at(tmp_path, 0)
    assert best(tmp_path) == "group 0 at 10"


def test_best_leads_somewhere_whatever_its_group_writes_and_removes(tmp_path: Path) -> None:
    save(tmp_path, 0, 10)
    save(tmp_path, 1, 12)
    point_best_at(tmp_path, 1)
    save(tmp_path, 1, 20)
    assert best(tmp_path) == "group 1 at 20"
    save(tmp_path, 0, 30)
    assert best(tmp_path) == "group 0 at 30"


def test_a_run_that_is_moved_keeps_its_best(tmp_path: Path) -> None:
    save(tmp_path / "here", 0, 10)
    save(tmp_path / "here", 1, 12)
    point_best_at(tmp_path / "here", 1)
    (tmp_path / "here").rename(tmp_path / "there")
    assert best(tmp_path / "there") == "group 1 at 12"


def test_a_group_without_a_checkpoint_here_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 0, 10)
    point_best_at(tmp_path, 2)
    assert best(tmp_path) == "group 0 at 10"


def test_nothing_is_written_for_a_run_whose_best_is_its_own(tmp_path: Path) -> None:
    save(tmp_path, 0, 10)
    before = os.lstat(tmp_path / "best").st_ino
    point_best_at(tmp_path, 0)
    assert os.lstat(tmp_path / "best").st_ino == before
