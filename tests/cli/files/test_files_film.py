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
from PIL import Image

from tianji_cli.errors import UsageError
from tianji_cli.files.film import Film, check_film, check_library

NAMES = ("play.gif", "play.mp4")
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


@pytest.mark.parametrize("fps", [10.0, 30.0, 50.0])
def test_pictures_of_a_gif_read_back_in_their_order_and_colours(tmp_path: Path, fps: float) -> None:
    rng = np.random.default_rng(3)
    colours = rng.integers(0, 256, (6, 1, 1, 3), dtype=np.uint8)
    pictures = np.where(rng.random((6, 20, 30, 1)) < 0.5, colours, 255 - colours)
    filmed(tmp_path / "play.gif", pictures, fps)
    lasts_ms = 0
    with Image.open(tmp_path / "play.gif") as gif:
        assert (gif.size, gif.n_frames, gif.info["loop"]) == ((30, 20), 6, 0)  # type: ignore[attr-defined]
        for number, picture in enumerate(pictures):
            gif.seek(number)
            lasts_ms += gif.info["duration"]
            assert np.array_equal(np.asarray(gif.convert("RGB")), picture)
    assert lasts_ms == 1000 * 6 / fps, "though a GIF's clock has hundredths of a second"


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


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_given_to_what_is_whole_and_keeps_what_it_had_till_then(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"before")
    sizes = []
    with Film(path, 30.0) as film:
        for picture in noise(200 if name.endswith("mp4") else 20):
            film.add(picture)
            (growing,) = (one for one in tmp_path.iterdir() if one != path)
            sizes.append(growing.stat().st_size)
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"before"
    assert [one.name for one in tmp_path.iterdir()] == [name], "what is not finished leaves nothing"
    assert len(set(sizes)) > 3, "it is written while it is played"
    filmed(path, noise(2))
    assert path.read_bytes() != b"before"
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".play.gif.4711").write_bytes(b"half")
    for name in (".play.gif.bak", ".play.gif", ".other.gif.4711"):
        (tmp_path / name).touch()
    filmed(tmp_path / "play.gif", noise(2))
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        ".other.gif.4711",
        ".play.gif",
        ".play.gif.bak",
        "play.gif",
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


@pytest.mark.parametrize("name", NAMES)
def test_what_another_process_films_is_left_alone_as_long_as_it_lives(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
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
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_a_colon_in_a_name_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filmed(Path("run:1.mp4"), noise(2))
    assert len(decoded(tmp_path / "run:1.mp4")[1]) == 2


@pytest.mark.parametrize("name", NAMES)
def test_without_a_picture_there_is_no_file(tmp_path: Path, name: str) -> None:
    Film(tmp_path / name, 30.0).finish()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_of_another_size_is_refused(tmp_path: Path, name: str) -> None:
    with Film(tmp_path / name, 30.0) as film:
        film.add(noise(1, 20, 30)[0])
        with pytest.raises(UsageError, match=r"picture 2 has 40 x 20 pixels, and the first 30 x 20"):
            film.add(noise(1, 20, 40)[0])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/play.gif", r"cannot write .*missing/play\.gif: there is no directory"),
        ("folder.gif", r"cannot write .*folder\.gif: it is a directory"),
        ("pipe.mp4", r"cannot write .*pipe\.mp4: it is no regular file"),
        ("z" * 3000 + ".gif", r"cannot write .*: File name too long"),
        (
            "play.avi",
            r"play\.avi names no film that can be written; .*play\.mp4 or .*play\.gif would be right",
        ),
        ("play", r"play names no film that can be written; .*play\.mp4 or .*play\.gif would be right"),
    ],
)
def test_a_name_that_cannot_be_honoured_is_refused_before_anything_is_played(
    tmp_path: Path, name: str, why: str
) -> None:
    (tmp_path / "folder.gif").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(UsageError, match=why):
        check_film(tmp_path / name)


@pytest.mark.parametrize(("suffix", "library"), [(".mp4", "av"), (".gif", "PIL")])
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, suffix: str, library: str
) -> None:
    check_library(suffix)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=r"pip install 'tianji\[video\]'$"):
        check_library(suffix)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_named_and_nothing_is_left(small_disk: Path, name: str) -> None:
    path = small_disk / name
    path.write_bytes(b"before")
    with pytest.raises(UsageError, match=rf"cannot write .*{name}: No space left on device"):
        filmed(path, noise(20, 400, 400))  # More than the disk.
    assert [one.name for one in small_disk.iterdir()] == [name]
    assert path.read_bytes() == b"before"
