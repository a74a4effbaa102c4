"""Films of evaluations: what stands in them, which of them stay, and what fails in one reaches nobody."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

from tianji_cli.files.film import Film
from tianji_cli.roles.episodes import EpisodePlayer, EvaluationLimits, Moment
from tianji_cli.roles.filming import LEAST_WIDTH, STRIP, Filming, Films, enlarged, with_numbers
from tianji_cli.signals import HangsError
from tianji_envs.core import BaseEnv, VectorEnvironment
from tianji_envs.serial import SerialVectorEnvironment

NOTHING = np.zeros(0, np.float32)


class Lamp(BaseEnv):
    """Is brighter with every step, and off after four; breaks while it is drawn if it is told to."""

    metadata = {"render_fps": 20}  # noqa: RUF012 - as gymnasium has it
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    breaks: BaseException | None = None
    closed = 0

    def reset(self, seed: int | None = None) -> Any:  # noqa: ARG002 - it always begins alike
        self.step_number = 0
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:  # noqa: ARG002 - there is one thing to do
        self.step_number += 1
        return np.zeros(2, np.float32), 0.5, self.step_number == 4, False

    def render(self) -> npt.NDArray[np.uint8]:
        if Lamp.breaks is not None and self.step_number == 2:
            raise Lamp.breaks
        return np.full((40, 300, 3), 50 * self.step_number, np.uint8)

    def close(self) -> None:
        Lamp.closed += 1


class Idle:
    """A policy that always chooses 0."""

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None: ...

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.zeros(len(observation), np.int64)


@pytest.fixture(autouse=True)
def lamp() -> None:
    Lamp.breaks, Lamp.closed = None, 0


def lamps() -> VectorEnvironment:
    return SerialVectorEnvironment("lamp", Lamp, 1)


def played(environment: VectorEnvironment, episodes: int = 2, **limits: Any) -> EpisodePlayer:
    return EpisodePlayer(Idle(), environment, episodes, 1, EvaluationLimits(**limits))


def films(directory: Path, keep: int = 3) -> Films:
    return Films(directory, keep, lamps, lambda environment, *_: played(environment), overlay=False)


def brightness(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        frames = container.decode(container.streams.video[0])
        return [round(float(frame.to_ndarray(format="rgb24")[:40].mean()) / 50) for frame in frames]


def finish(made: Films, name: str) -> None:
    made.begin(name, NOTHING, 7)
    while made.finished is None:
        made.turn()


@pytest.mark.parametrize("overlay", [False, True])
def test_a_film_has_the_first_observation_and_every_step_of_all_episodes(
    tmp_path: Path, overlay: bool
) -> None:
    player = played(lamps())
    with Filming(player, tmp_path / "play.mp4", overlay=overlay) as filming:
        while not filming.is_over:
            filming.turn()
        filming.film.finish()
    assert brightness(tmp_path / "play.mp4") == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert filming.film.fps == 20
    with av.open(str(tmp_path / "play.mp4")) as container:
        assert (container.streams.video[0].height > 40) == overlay


@pytest.mark.parametrize("size", [(84, 84), (400, 600), (10, 10), (210, 160), (1, 1), (3000, 4)])
def test_numbers_stand_below_a_picture_and_change_nothing_of_it(size: tuple[int, int]) -> None:
    picture = enlarged(np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8))
    height, width, _ = picture.shape
    assert height % size[0] == width % size[1] == 0
    one = with_numbers(picture, Moment(3, 12_345, -1.25, -1234.5))
    left = (one.shape[1] - width) // 2
    assert one.shape[1] >= LEAST_WIDTH
    assert np.array_equal(one[:height, left : left + width], picture)
    other = with_numbers(picture, Moment(3, 12_345, -1.25, -1234.6))
    assert one.shape == other.shape, "whatever the numbers"
    changed = np.argwhere((one != other).any(axis=2))
    assert len(changed)
    assert changed[:, 0].min() >= height
    assert changed[:, 1].min() >= one.shape[1] // 2, "the return stands on the right"
    for column in (one[height:, :2], one[height:, -2:], one[-2:], one[height : height + 2]):
        assert (column == STRIP).all(), "no text is cut off"


def test_the_newest_films_stay(tmp_path: Path) -> None:
    made = films(tmp_path / "videos", keep=2)
    for n, name in enumerate(("900", "100", "200", "300")):
        finish(made, name)
        os.utime(tmp_path / f"videos/{name}.mp4", (n, n))
    finish(made, "400")
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == ["300.mp4", "400.mp4"]
    assert brightness(tmp_path / "videos/400.mp4") == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert Lamp.closed == 0, "one environment plays all"
    made.close()
    assert Lamp.closed == 1


@pytest.mark.parametrize("failure", [RuntimeError("the fuse has blown"), SystemExit("the fuse has blown")])
def test_what_fails_in_a_film_is_kept_to_it_and_the_next_one_begins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: BaseException
) -> None:
    made = films(tmp_path)
    Lamp.breaks = failure
    finish(made, "100")
    assert made.failure == f"{type(failure).__name__}: the fuse has blown"
    assert "the fuse has blown" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert Lamp.closed == 1
    Lamp.breaks = None
    finish(made, "200")
    assert [path.name for path in tmp_path.iterdir()] == ["200.mp4"]


def test_an_environment_may_take_longer_to_build_than_a_picture(tmp_path: Path) -> None:
    def slow() -> VectorEnvironment:
        deadline = time.monotonic() + 1.1
        while time.monotonic() < deadline:
            time.sleep(0.01)
        return lamps()

    made = Films(tmp_path, 1, slow, lambda one, *_: played(one), overlay=False, max_s=1.0)
    finish(made, "100")
    assert made.failure is None
    assert brightness(tmp_path / "100.mp4") == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_a_film_that_is_interrupted_while_it_is_written_is_whole_up_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Filming(played(lamps()), tmp_path / "play.mp4", overlay=False) as filming:
        filming.turn()
        with monkeypatch.context() as slow:
            slow.setattr(Film, "add", interrupted)
            with pytest.raises(HangsError):
                filming.turn()
        filming.film.finish()
    assert brightness(tmp_path / "play.mp4") == [0, 1]


def interrupted(_self: Film, _picture: npt.NDArray[np.uint8]) -> None:
    raise HangsError


def test_a_full_disk_is_said_and_the_next_film_is_tried(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    made = films(small_disk)
    with monkeypatch.context() as full:
        full.setattr(Lamp, "render", lambda _self: noise)
        finish(made, "100")
    assert made.failure is not None
    assert made.failure.endswith("100.mp4: No space left on device")
    assert not list(small_disk.iterdir())
    finish(made, "200")
    assert [path.name for path in small_disk.iterdir()] == ["200.mp4"]


def test_a_film_that_is_given_up_leaves_nothing_and_one_of_the_dead_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".50.mp4.4711").write_bytes(b"by an examiner that was killed")
    made = films(tmp_path)
    made.begin("100", NOTHING, 7)
    (half,) = tmp_path.iterdir()
    assert half.name.startswith(".100.mp4.")
    made.discard()
    assert made.finished is not None
    assert not list(tmp_path.iterdir())


def test_a_film_of_an_endless_episode_ends_at_the_limit(tmp_path: Path) -> None:
    made = Films(tmp_path, 1, lamps, lambda one, *_: played(one, 10**6, max_s=0.2), overlay=False)
    finish(made, "100")
    assert made.failure is None
    assert len(brightness(tmp_path / "100.mp4")) > 1
