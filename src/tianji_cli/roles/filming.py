"""Films of evaluations: pictures of the first environment, with an optional strip of numbers below.

``Filming`` makes one film, of `tianji eval` or of an evaluation during training. ``Films`` makes all films of
a training run.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.errors import describe
from tianji_cli.files.film import MP4, PICTURES_PER_S, Film, Picture, remove_leftovers
from tianji_cli.roles.episodes import EpisodePlayer, Moment
from tianji_cli.signals import HangsError, alarm
from tianji_envs.core import VectorEnvironment

Floats = npt.NDArray[np.float32]

LEAST_WIDTH: Final = 256
"""Least width of a film in pixels, by enlargement: MinAtar's pictures have ten, and numbers need some."""
STRIP: Final = (48, 48, 48)
"""Grey of the strip, to tell it from black pictures."""
MOST_HEIGHT: Final = 1024
"""Most pixels in the height of an enlarged picture."""
BUILD_S: Final = 60.0
"""Seconds beyond the limit of a picture, for building the environment before the first one."""
CLOSE_S: Final = 5.0
"""Seconds for closing an environment that failed in a film."""


class Filming(contextlib.AbstractContextManager["Filming"]):
    """Films an evaluation from its first observation on.

    Args:
        player: plays in one environment that can be rendered; its owner closes it.
        overlay: whether step, reward, return and episode appear below the pictures.

    Attributes:
        film: the film.

    Raises:
        FilmError: the film cannot be written; EnvironmentFailure: the environment cannot be drawn.
    """

    def __init__(self, player: EpisodePlayer, path: Path, *, overlay: bool) -> None:
        self._player = player
        self._overlay = overlay
        self.film = Film(path, player.environment.render_fps or PICTURES_PER_S)
        try:
            self._shoot()
        except BaseException:
            self.film.discard()
            raise

    @property
    def is_over(self) -> bool:
        """Whether all episodes are over, or a limit was reached."""
        return self._player.finished is not None

    def turn(self) -> None:
        """Step the environment, and film it."""
        if self._player.turn():
            self._shoot()

    def _shoot(self) -> None:
        picture = enlarged(self._player.environment.render())
        self.film.add(with_numbers(picture, self._player.moment) if self._overlay else picture)

    def __exit__(self, *_exception: object) -> None:
        self.film.discard()


def enlarged(picture: Picture) -> Picture:
    """Enlarge a small picture, ``[height, width, 3]``, by a whole factor, so that its pixels stay sharp."""
    height, width, _ = picture.shape
    times = min(-(-LEAST_WIDTH // width), MOST_HEIGHT // height)
    return picture.repeat(times, axis=0).repeat(times, axis=1) if times > 1 else picture


def with_numbers(picture: Picture, moment: Moment) -> Picture:
    """Draw a strip with the numbers of an episode below a picture, ``[height, width, 3]``."""
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415 - only films need it

    height, drawn, _ = picture.shape
    width = max(drawn, LEAST_WIDTH)
    font_size = min(max(width // 24, 13), 32)
    canvas = Image.new("RGB", (width, height + 3 * font_size), STRIP)
    canvas.paste(Image.fromarray(picture), ((width - drawn) // 2, 0))
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(font_size)
    columns = (
        f"episode {moment.episode}\nstep {moment.step}",
        f"reward {moment.reward:.5g}\nreturn {moment.score:.6g}",
    )
    for number, text in enumerate(columns):
        draw.text((font_size // 2 + number * width // 2, height + font_size // 4), text, "white", font)
    return np.asarray(canvas)


class Films:
    """Films the evaluations of a training run, one film for each policy; the newest films stay.

    An error or a hang in a film never reaches the evaluations: the log and the report have it.

    Args:
        directory: directory of the films; made when needed.
        keep: number of films that stay.
        environment: builds the rendered environment, for the first film and after one that failed.
        player: begins to play there with parameters ``[P]`` that were published at an env step.
        overlay: see ``Filming``.
        max_s: seconds after which a step or a picture is given up.

    Attributes:
        failure: reason of the newest failure of a film, in one line; None if none has failed.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        environment: Callable[[], VectorEnvironment],
        player: Callable[[VectorEnvironment, Floats, int], EpisodePlayer],
        *,
        overlay: bool,
        max_s: float = math.inf,
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._build = environment
        self._begin_evaluation = player
        self._overlay = overlay
        self._max_s = max_s
        self._environment: VectorEnvironment | None = None
        self._filming: Filming | None = None
        self.failure: str | None = None

    @property
    def finished(self) -> str | None:
        """The reason that there is nothing to film; None while a film is being made."""
        return self.failure or "no film is begun" if self._filming is None else None

    def begin(self, name: str, parameters: Floats, env_steps: int) -> None:
        """Begin a film.

        Args:
            name: name of the file, without its ending.
            parameters: parameters of the policy, ``[P]``.
            env_steps: env steps of the job when the policy was published.
        """
        with self._kept_to_the_film(self._max_s + BUILD_S):
            self._directory.mkdir(exist_ok=True)
            remove_leftovers(self._directory)  # An examiner that was killed leaves some.
            if self._environment is None:
                self._environment = self._build()
            player = self._begin_evaluation(self._environment, parameters, env_steps)
            self._filming = Filming(player, self._directory / f"{name}{MP4}", overlay=self._overlay)

    def turn(self) -> None:
        """Continue the film, and finish it when its episodes are over."""
        assert self._filming is not None
        with self._kept_to_the_film(self._max_s):
            self._filming.turn()
            if self._filming.is_over:
                self._filming.film.finish()
                self._filming = None
                self._make_room()

    def discard(self) -> None:
        """Give up the present film."""
        filming, self._filming = self._filming, None
        if filming is not None:
            filming.film.discard()

    def close(self) -> None:
        """Give up the present film, and close the environment."""
        self.discard()
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()

    def _make_room(self) -> None:
        films = sorted(self._directory.glob(f"[!.]*{MP4}"), key=lambda film: film.stat().st_mtime)
        for old in films[: -self._keep]:
            old.unlink()

    @contextlib.contextmanager
    def _kept_to_the_film(self, limit_s: float) -> Iterator[None]:
        """Record an error or a hang inside the block; the next film then gets a new environment."""
        try:
            with alarm(limit_s):
                yield
        except HangsError as cause:
            self._fail(cause, f"a step or a picture took longer than {limit_s:g} s")
        except (Exception, SystemExit) as cause:  # noqa: BLE001 - whatever an environment that draws raises
            self._fail(cause, describe(cause))

    def _fail(self, cause: BaseException, failure: str) -> None:
        self.failure = failure
        with contextlib.suppress(OSError):  # The disk may be what is full.
            traceback.print_exception(cause)
        try:
            with alarm(CLOSE_S):
                self.close()
        except HangsError:
            self.failure += f"; its environment was not closed after {CLOSE_S:g} s"
        except (Exception, SystemExit) as another:  # noqa: BLE001 - a broken one may not close either
            self.failure += f"; {describe(another)}"
