"""Films evaluations: what the first environment draws, with numbers in a strip below it where asked.

``Filming`` is one film, of `tianji eval` or of an evaluation while others train. ``Films`` are those of a
training.
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
from tianji_cli.roles.evaluator import Evaluator, Moment
from tianji_cli.signals import HangsError, alarm
from tianji_envs.core import VectorEnvironment

Floats = npt.NDArray[np.float32]

LEAST_WIDTH: Final = 256
"""Pixels of a film: MinAtar's pictures have ten, and numbers need some. Smaller ones are enlarged."""
STRIP: Final = (48, 48, 48)
"""Grey of the strip: no picture's black."""
MOST_HEIGHT: Final = 1024
"""Of an enlarged picture."""
BUILD_S: Final = 60.0
"""Beyond the limit of a picture, for building the environment before the first."""
CLOSE_S: Final = 5.0
"""For closing an environment that failed in a film."""


class Filming(contextlib.AbstractContextManager["Filming"]):
    """An evaluation that is filmed, from the first observation on.

    Args:
        evaluator: of one environment, made to be rendered. It is closed by its owner.
        overlay: whether step, reward, return and episode stand below the pictures.

    Attributes:
        film: itself.

    Raises:
        FilmError: the film cannot be written; EnvironmentFailure: the environment cannot be drawn.
    """

    def __init__(self, evaluator: Evaluator, path: Path, *, overlay: bool) -> None:
        self._evaluator = evaluator
        self._overlay = overlay
        self.film = Film(path, evaluator.environment.render_fps or PICTURES_PER_S)
        try:
            self._shoot()
        except BaseException:
            self.film.discard()
            raise

    @property
    def is_over(self) -> bool:
        """All episodes were played, or a limit was reached."""
        return self._evaluator.finished is not None

    def turn(self) -> None:
        """Step the environment, and film what it shows then."""
        if self._evaluator.turn():
            self._shoot()

    def _shoot(self) -> None:
        picture = enlarged(self._evaluator.environment.render())
        self.film.add(with_numbers(picture, self._evaluator.moment) if self._overlay else picture)

    def __exit__(self, *_exception: object) -> None:
        self.film.discard()


def enlarged(picture: Picture) -> Picture:
    """Enlarge a small picture, ``[height, width, 3]``, by a whole number: its pixels stay what they are."""
    height, width, _ = picture.shape
    times = min(-(-LEAST_WIDTH // width), MOST_HEIGHT // height)
    return picture.repeat(times, axis=0).repeat(times, axis=1) if times > 1 else picture


def with_numbers(picture: Picture, moment: Moment) -> Picture:
    """Draw where an episode is in a strip below a picture, ``[height, width, 3]``."""
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
    """Films of the evaluations of a training, each of a policy: the newest stay.

    Nothing that fails or hangs in a film reaches the evaluations: it is said in the log, and reported.

    Args:
        directory: where they are; made when it is needed.
        keep: how many stay.
        environment: builds the environment that is drawn, for the first film and after one that failed.
        evaluator: begins to play in it with parameters ``[P]`` that were published at an env step.
        overlay: see ``Filming``.
        max_s: seconds after which a step or a picture is given up.

    Attributes:
        failure: why the newest film that failed did, in one line; None if none has.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        environment: Callable[[], VectorEnvironment],
        evaluator: Callable[[VectorEnvironment, Floats, int], Evaluator],
        *,
        overlay: bool,
        max_s: float = math.inf,
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._build = environment
        self._begin_evaluation = evaluator
        self._overlay = overlay
        self._max_s = max_s
        self._environment: VectorEnvironment | None = None
        self._filming: Filming | None = None
        self.failure: str | None = None

    @property
    def is_filming(self) -> bool:
        """Whether a film has begun and is not over."""
        return self._filming is not None

    def begin(self, name: str, parameters: Floats, env_steps: int) -> None:
        """Begin a film.

        Args:
            name: of its file, without an ending.
            parameters: of the policy, ``[P]``.
            env_steps: of the job, when it was published.
        """
        with self._kept_to_the_film(self._max_s + BUILD_S):
            self._directory.mkdir(exist_ok=True)
            remove_leftovers(self._directory)  # Of an examiner that was killed.
            if self._environment is None:
                self._environment = self._build()
            evaluator = self._begin_evaluation(self._environment, parameters, env_steps)
            self._filming = Filming(evaluator, self._directory / f"{name}{MP4}", overlay=self._overlay)

    def turn(self) -> None:
        """Go on with the film, and end it when its episodes are over."""
        assert self._filming is not None
        with self._kept_to_the_film(self._max_s):
            self._filming.turn()
            if self._filming.is_over:
                self._filming.film.finish()
                self._filming = None
                self._make_room()

    def discard(self) -> None:
        """Give up the film that was begun."""
        filming, self._filming = self._filming, None
        if filming is not None:
            filming.film.discard()

    def close(self) -> None:
        """Give up the film that was begun, and close the environment."""
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
        """Note what fails or hangs within; the next film gets an environment of its own."""
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
