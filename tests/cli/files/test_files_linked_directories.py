import os
from pathlib import Path

import pytest

from tianji_cli.files.directories import LinkedDirectories


def write(places: LinkedDirectories, link: str, name: str, text: str) -> None:
    with places.fill(link, name) as place:
        (place / "text").write_text(text)


def content(directory: Path) -> dict[str, str]:
    return {path.name: (path / "text").read_text() for path in directory.iterdir()}


def test_a_directory_appears_under_its_name_and_its_link(tmp_path: Path) -> None:
    places = LinkedDirectories(tmp_path / "deep/er", ("last",))
    assert places.targets() == set()
    write(places, "last", "1", "one")
    write(places, "last", "2", "two")
    assert content(tmp_path / "deep/er") == {"1": "one", "2": "two", "last": "two"}
    assert places.targets() == {"2"}


def test_nothing_is_to_be_seen_of_a_directory_until_it_is_whole(tmp_path: Path) -> None:
    places = LinkedDirectories(tmp_path, ("last",))
    write(places, "last", "1", "one")
    with places.fill("last", "2") as place:
        (place / "text").write_text("half")
        assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")].count("2") == 0
        assert (tmp_path / "last/text").read_text() == "one"
    assert content(tmp_path) == {"1": "one", "2": "half", "last": "half"}


def test_one_that_could_not_be_filled_leaves_no_trace(tmp_path: Path) -> None:
    places = LinkedDirectories(tmp_path, ("last",))
    write(places, "last", "1", "one")
    for name in ("1", "2"):
        with pytest.raises(FileNotFoundError), places.fill("last", name) as place:
            (place / "not there/text").write_text("half")
        assert content(tmp_path) == {"1": "one", "last": "one"}


def test_a_directory_of_the_same_name_is_replaced_and_its_link_leads_to_a_whole_one_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = LinkedDirectories(tmp_path, ("last", "best"))
    write(places, "best", "0", "best")
    write(places, "last", "1", "old")
    seen = []
    for name in ("rename", "replace", "mkdir", "unlink"):
        method = getattr(Path, name)

        def watched(path: Path, *rest: object, _method: object = method, **more: object) -> object:
            seen.append((tmp_path / "last/text").read_text())
            result = _method(path, *rest, **more)  # type: ignore[operator]
            seen.append((tmp_path / "last/text").read_text())
            return result

        monkeypatch.setattr(Path, name, watched)
    write(places, "last", "1", "new")
    monkeypatch.undo()
    assert set(seen) == {"old", "new"}
    assert seen == sorted(seen, reverse=True)
    assert content(tmp_path) == {"0": "best", "best": "best", "1": "new", "last": "new"}


def test_what_a_kill_has_left_is_removed_unless_a_link_leads_to_it(tmp_path: Path) -> None:
    write(LinkedDirectories(tmp_path, ("last",)), "last", "1", "one")
    for name in (".2.99", ".twin-2.99"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text("half")
    (tmp_path / ".last.99").symlink_to("1")
    LinkedDirectories(tmp_path, ("last",))
    assert sorted(os.listdir(tmp_path)) == ["1", "last"]

    (tmp_path / "last").unlink()
    (tmp_path / ".twin-1.99").mkdir()
    (tmp_path / ".twin-1.99/text").write_text("whole")
    (tmp_path / "last").symlink_to(".twin-1.99")
    places = LinkedDirectories(tmp_path, ("last",))
    assert (tmp_path / "last/text").read_text() == "whole"
    write(places, "last", "2", "two")
    assert content(tmp_path) == {"1": "one", "2": "two", "last": "two"}
