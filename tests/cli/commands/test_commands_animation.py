"""An animation is written while it is played, and reads back as what was drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tianji_cli.commands.eval import PICTURES_PER_S, Animation
from tianji_cli.errors import UsageError


def test_pictures_read_back_in_their_order_and_colours(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    colours = rng.integers(0, 256, (5, 1, 1, 3), dtype=np.uint8)
    pictures = np.where(rng.random((5, 20, 30, 1)) < 0.5, colours, 255 - colours)
    animation = Animation(tmp_path / "play.gif")
    for picture in pictures:
        animation.add(picture)
    animation.close()
    animation.close()
    with Image.open(tmp_path / "play.gif") as gif:
        assert (gif.size, gif.n_frames, gif.info["loop"]) == ((30, 20), 5, 0)  # type: ignore[attr-defined]
        for number, picture in enumerate(pictures):
            gif.seek(number)
            assert gif.info["duration"] == 1000 // PICTURES_PER_S // 10 * 10
            assert np.array_equal(np.asarray(gif.convert("RGB")), picture)


def test_what_was_added_is_on_disk_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "play.gif"
    animation = Animation(path)
    noise = np.random.default_rng(4).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    sizes = []
    for _ in range(3):
        animation.add(noise)
        sizes.append(path.stat().st_size)
    assert sizes[0] < sizes[1] < sizes[2]
    animation.close()


def test_without_a_picture_there_is_no_file(tmp_path: Path) -> None:
    Animation(tmp_path / "play.gif").close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/play.gif", r"cannot write .*missing/play\.gif: there is no directory"),
        ("folder.gif", r"cannot write .*folder\.gif: it is a directory"),
        ("z" * 3000 + ".gif", r"cannot write .*: File name too long"),
        ("play.mp4", r"animated GIF, which .*play\.mp4 is no name for; .*play\.gif is"),
        ("play", r"animated GIF, which .*play is no name for; .*play\.gif is"),
    ],
)
def test_a_name_that_cannot_be_honoured_is_refused_before_anything_is_played(
    tmp_path: Path, name: str, why: str
) -> None:
    (tmp_path / "folder.gif").mkdir()
    with pytest.raises(UsageError, match=why):
        Animation(tmp_path / name)


def test_a_full_disk_is_named(small_disk: Path) -> None:
    animation = Animation(small_disk / "play.gif")
    noise = np.random.default_rng(4).integers(0, 256, (400, 400, 3), dtype=np.uint8)  # More than the disk.
    with pytest.raises(UsageError, match=r"cannot write .*play\.gif"):
        animation.add(noise)
    with pytest.raises(UsageError, match=r"cannot write .*play\.gif"):
        animation.close()
    animation.close()
