"""A film is written while it is played, reads back as what was drawn, and has its name when it is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from tianji_cli.errors import UsageError
from tianji_cli.files.film import Film, check_film, check_library

NAME = "play.mp4"
Pictures = npt.NDArray[np.uint8]


def noise(number: int, height: int = 100, width: int = 100) -> Pictures:
    return np.random.default_rng(4).integers(0, 256, (number, height, width, 3), dtype=np.uint8)


def filmed(path: Path, pictures: Pictures, fps: float = 30.0) -> None:
    with Film(path, fps) as film:
        for picture in pictures:
            film.add(picture)
        film.finish()
    assert film.pictures == len(pictures)


def decoded(path: Path) -> tuple[Any, list[Pictures]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return stream.average_rate, [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


def test_pictures_of_an_mp4_read_back_in_their_order(tmp_path: Path) -> None:
    levels = np.random.default_rng(3).permutation(np.arange(5, 250, 10, dtype=np.uint8))
    pictures = np.broadcast_to(levels[:, None, None, None], (len(levels), 64, 48, 3))
    filmed(tmp_path / "play.mp4", pictures, 12.5)
    rate, shown = decoded(tmp_path / "play.mp4")
    assert rate == 12.5
    assert [picture.shape for picture in shown] == [(64, 48, 3)] * len(levels)
    means = [picture.mean() for picture in shown]
    assert means == pytest.approx(levels.tolist(), abs=4.0)


def test_odd_sides_get_one_more_pixel(tmp_path: Path) -> None:
    picture = np.zeros((1, 35, 33, 3), np.uint8)
    picture[0, -5:], picture[0, :, -5:] = 200, 200
    filmed(tmp_path / "play.mp4", picture)
    _, (shown,) = decoded(tmp_path / "play.mp4")
    assert shown.shape == (36, 34, 3)
    assert shown[-1, -1].mean() == pytest.approx(200, abs=6), "the edge goes on"
    assert shown[:20, :20].mean() < 6


def test_a_name_is_given_to_what_is_whole_and_keeps_what_it_had_till_then(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"before")
    sizes = []
    with Film(path, 30.0) as film:
        for picture in noise(200):
            film.add(picture)
            (growing,) = (one for one in tmp_path.iterdir() if one != path)
            sizes.append(growing.stat().st_size)
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"before"
    assert [one.name for one in tmp_path.iterdir()] == [NAME], "what is not finished leaves nothing"
    assert len(set(sizes)) > 3, "it is written while it is played"
    filmed(path, noise(2))
    assert path.read_bytes() != b"before"
    assert [one.name for one in tmp_path.iterdir()] == [NAME]


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".play.mp4.4711").write_bytes(b"half")
    for name in (".play.mp4.bak", ".play.mp4", ".other.mp4.4711"):
        (tmp_path / name).touch()
    filmed(tmp_path / NAME, noise(2))
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        ".other.mp4.4711",
        ".play.mp4",
        ".play.mp4.bak",
        NAME,
    ]


KILLED = """
import os, sys
from pathlib import Path
import numpy
from tianji_cli.files.film import Film

Film(Path(sys.argv[1]), 30.0).add(numpy.zeros((20, 30, 3), numpy.uint8))
print(flush=True)
sys.stdin.read()
"""


def test_what_another_process_films_is_left_alone_as_long_as_it_lives(tmp_path: Path) -> None:
    path = tmp_path / NAME
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        (others,) = tmp_path.iterdir()
        filmed(path, noise(2))
        assert set(tmp_path.iterdir()) == {others, path}
        other.kill()
    assert others.exists()
    filmed(path, noise(2))
    assert [one.name for one in tmp_path.iterdir()] == [NAME]


def test_a_colon_in_a_name_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filmed(Path("run:1.mp4"), noise(2))
    assert len(decoded(tmp_path / "run:1.mp4")[1]) == 2


def test_without_a_picture_there_is_no_file(tmp_path: Path) -> None:
    Film(tmp_path / NAME, 30.0).finish()
    assert not list(tmp_path.iterdir())


def test_a_picture_of_another_size_is_refused(tmp_path: Path) -> None:
    with Film(tmp_path / NAME, 30.0) as film:
        film.add(noise(1, 20, 30)[0])
        with pytest.raises(UsageError, match=r"picture 2 has 40 x 20 pixels, and the first 30 x 20"):
            film.add(noise(1, 20, 40)[0])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/play.mp4", r"cannot write .*missing/play\.mp4: there is no directory"),
        ("folder.mp4", r"cannot write .*folder\.mp4: it is a directory"),
        ("pipe.mp4", r"cannot write .*pipe\.mp4: it is no regular file"),
        ("z" * 3000 + ".mp4", r"cannot write .*: File name too long"),
        ("play.avi", r"play\.avi names no film that can be written; .*play\.mp4 would be right$"),
        ("play.gif", r"play\.mp4 would be right, and `ffmpeg -i .*play\.mp4 .*play\.gif` converts it$"),
        ("play", r"play names no film that can be written; .*play\.mp4 would be right$"),
    ],
)
def test_a_name_that_cannot_be_honoured_is_refused_before_anything_is_played(
    tmp_path: Path, name: str, why: str
) -> None:
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(UsageError, match=why):
        check_film(tmp_path / name)


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_library()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UsageError, match=r"pip install 'tianji\[video\]'$"):
        check_library()


def test_a_full_disk_is_named_and_nothing_is_left(small_disk: Path) -> None:
    path = small_disk / NAME
    path.write_bytes(b"before")
    with pytest.raises(UsageError, match=rf"cannot write .*{NAME}: No space left on device"):
        filmed(path, noise(20, 400, 400))  # More than the disk.
    assert [one.name for one in small_disk.iterdir()] == [NAME]
    assert path.read_bytes() == b"before"
