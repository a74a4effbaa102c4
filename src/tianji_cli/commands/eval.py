"""`tianji eval`: plays greedy episodes with a policy that a run has saved, or with one to compare it with.

Episodes are rendered picture by picture: a game of Atari may have 27,000, too many to keep.
"""

from __future__ import annotations

import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NoReturn, Self

import numpy as np
import numpy.typing as npt
import typer

from tianji_cli.commands.completion import checkpoints
from tianji_cli.commands.options import Json, Run, Runs
from tianji_cli.config.loader import load_config
from tianji_cli.errors import RunFailed, TianjiError, UsageError, describe
from tianji_cli.files.directories import remove_stale
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory
from tianji_cli.quantities import count, finite, number, several
from tianji_cli.roles.evaluator import BASELINES, POLICIES, EvaluationLimits, PolicyName
from tianji_cli.root.shutdown import START_S
from tianji_cli.telemetry.progress import Progress
from tianji_cli.telemetry.report import print_lines, write_json
from tianji_cli.telemetry.snapshot import of_names
from tianji_cli.wire.reports import Evaluating, Evaluation
from tianji_plugins import did_you_mean

if TYPE_CHECKING:
    from tianji_cli.roles.evaluator import Evaluator
    from tianji_envs.core import VectorEnvironment


SUFFIX: Final = ".gif"
PICTURES_PER_S: Final = 30
_FOR_EVER: Final = b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
_END: Final = b";"


class Animation:
    """A GIF that grows while it is played.

    Attributes:
        pictures: how many it has.
        closed: it takes no more pictures.

    Raises:
        UsageError: the name promises another format, its directory is not there, or Pillow is missing.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != SUFFIX:
            right = path.with_suffix(SUFFIX) if path.name else f"play{SUFFIX}"
            raise UsageError(f"--render writes an animated GIF, which {path} is no name for; {right} is")
        self.path = path
        try:
            is_directory, has_place = path.is_dir(), path.parent.is_dir()
        except OSError as cause:
            raise self._unwritable(cause) from cause
        if is_directory or not has_place:
            what = "it is a directory" if is_directory else f"there is no directory {path.parent}"
            raise UsageError(f"--render: cannot write {path}: {what}")
        try:
            import PIL  # noqa: F401, PLC0415 - only rendering needs it
        except ModuleNotFoundError as cause:
            raise UsageError("--render needs Pillow, which is not installed: pip install pillow") from cause
        self.pictures = 0
        self._file: IO[bytes] | None = None
        self.closed = False

    def add(self, picture: npt.NDArray[np.uint8]) -> None:
        """Write one picture, ``[height, width, 3]``, each time of the same size.

        Raises:
            UsageError: the file cannot be written.
        """
        from PIL import GifImagePlugin, Image  # noqa: PLC0415 - only rendering needs it

        image = Image.fromarray(picture).quantize()
        whole: dict[str, Any] = {"duration": 1000 // PICTURES_PER_S, "include_color_table": True}
        try:
            if self._file is None:
                self._file = self.path.open("wb")
                # Each picture brings a colour table of its own, so the file as a whole has none.
                self._file.write(b"GIF89a" + struct.pack("<HHBBB", *image.size, 0, 0, 0) + _FOR_EVER)
            self._file.writelines(GifImagePlugin.getdata(image, **whole))
        except OSError as cause:
            raise self._unwritable(cause) from cause
        self.pictures += 1

    def close(self) -> None:
        """End the file. Harmless when repeated.

        Raises:
            UsageError: the file cannot be written.
        """
        self.closed = True
        file, self._file = self._file, None
        if file is None:
            return
        try:
            with file:
                file.write(_END)
        except OSError as cause:
            raise self._unwritable(cause) from cause

    def _unwritable(self, cause: OSError) -> UsageError:
        return UsageError(f"--render: cannot write {self.path}: {cause.strerror}")


INTERVAL_S: Final = 1.0
IDLE_S: Final = 10.0
"""Between two lines of progress; and where no episode has ended since the last, in a pipe."""

GRACE_S: Final = 2.0
"""Beyond its limit, for the step that the evaluation is in."""

CLOSE_S: Final = 5.0
"""For closing the environments."""

MOST_S: Final = 1e8
"""Longest time that a timer is set to; three years."""


def evaluate(  # noqa: PLR0913 - the options of a command are its parameters
    run: Run,
    *,
    episodes: Annotated[int, typer.Option(min=1, help="Greedy episodes to play.")] = 100,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the environments.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="best|last|STEP",
            help="Which one to play with; as the config says by default.",
            autocompletion=checkpoints,
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="trained|sampled|random|heuristic",
            help="Who plays: the trained one by default, greedily.",
        ),
    ] = "trained",
    max_s: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.001, help="Longest time; the config's eval_max_s by default."),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most env steps; the config's eval_max_steps by default."),
    ] = None,
    render: Annotated[
        Path | None, typer.Option(metavar="X.gif", help="Save an animated GIF of the first episode.")
    ] = None,
    out: Runs = None,
    json_to: Json = None,
) -> int:
    """Evaluate a checkpoint, or a baseline in the same environments, and print the result.

    Episodes that have not ended when a limit is reached are left out, and counted.

    Raises:
        UsageError: there is no such run, checkpoint or policy, or the animation cannot be written.
        RunFailed: the environment or the agent could not be built or did not play.
    """
    remove_stale()
    directory = RunDirectory.find(run, DEFAULT_OUT if out is None else out)
    for warning in directory.check():  # Its config names modules that will run.
        sys.stderr.write(f"tianji: warning: {warning}\n")
    config = load_config(str(directory.config))
    player = _find_policy(policy, checkpoint)
    wanted = checkpoint or config.experiment.eval_checkpoint
    name = "" if player in BASELINES else directory.checkpoint(wanted)
    animation = None if render is None else Animation(render)
    experiment = config.experiment
    limits = EvaluationLimits(max_s or experiment.eval_max_s, max_steps or experiment.eval_max_steps)
    with _ProgressLine(episodes, quiet=json_to == "-") as progress:
        # torch is slow to import, and what the command line got wrong is known by now.
        from tianji_cli.worker.build import build_evaluator  # noqa: PLC0415
        from tianji_cli.worker.parts import Parts  # noqa: PLC0415

        parts = Parts.of_run(directory, config)
        build = partial(build_evaluator, parts, episodes, seed, name, policy=player, limits=limits)
        try:
            evaluator = _play(build, limits, animation, progress)
        except TianjiError:
            raise
        except Exception as cause:  # A user's environment or agent may raise anything.
            raise RunFailed(f"cannot evaluate {directory.path}: {describe(cause)}") from cause
    other = None if player == "trained" else player
    who = ", ".join(filter(None, (str(directory.path), name, other and f"{other} policy")))
    _show(evaluator, episodes, who, other, animation, json_to)
    return 0


def _find_policy(policy: str, checkpoint: str | None) -> PolicyName:
    """Check who is to play.

    Raises:
        UsageError: there is no such policy, or none that has checkpoints.
    """
    found = next((name for name in POLICIES if name == policy), None)
    if found is None:
        raise UsageError(f"--policy: no policy {policy!r}; {did_you_mean(policy, POLICIES, 'policies')}")
    if found in BASELINES and checkpoint is not None:
        raise UsageError(f"--checkpoint says which trained policy plays, and --policy {policy} is none")
    return found


def _play(
    build: Callable[..., Evaluator],
    limits: EvaluationLimits,
    animation: Animation | None,
    progress: _ProgressLine,
) -> Evaluator:
    """Play all episodes, and draw the first of them if that is wanted."""

    def draw(environment: VectorEnvironment) -> None:
        if animation is not None and not animation.closed:
            animation.add(environment.render())

    with ExitStack() as stack:
        if animation is not None:
            stack.callback(animation.close)
        start_s = limits.max_s + START_S
        try:
            with _alarm(start_s):
                evaluator = build(on_step=None if animation is None else draw)
        except _HangsError as cause:
            raise TimeoutError(f"environments and policy were not ready after {start_s:g} s") from cause
        stack.callback(_close, evaluator)
        try:
            with _alarm(limits.max_s + GRACE_S):
                while evaluator.finished is None:
                    evaluator.turn()
                    progress.show(evaluator.progress, evaluator.returns)
                    if animation is not None and evaluator.returns:
                        animation.close()
        except _HangsError:
            evaluator.cut_off = f"{limits.max_s:g} s, in a step or an action that did not return"
        return evaluator


def _close(evaluator: Evaluator) -> None:
    """Close the environments; what was played is shown though closing them hangs."""
    try:
        with _alarm(CLOSE_S):
            evaluator.close()
    except _HangsError:
        sys.stderr.write(f"tianji: warning: the environments were not closed after {CLOSE_S:g} s\n")


class _HangsError(BaseException):
    """A call does not return. Environments and agents may catch any Exception."""


@contextmanager
def _alarm(after_s: float) -> Iterator[None]:
    """Interrupt what is within, as Ctrl-C does, after so many seconds: between two steps it ends by itself.

    Raises:
        _HangsError: the time is up.
    """

    def ring(_number: int, _frame: object) -> NoReturn:
        raise _HangsError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(after_s, MOST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class _ProgressLine:
    """Shows how far the evaluation is: in a line on a terminal, or a line a second in a pipe."""

    def __init__(self, episodes: int, *, quiet: bool) -> None:
        self._line = Progress(episodes, quiet, ticks=True, plain=False)
        self._line.begin("importing torch, building the policy")
        self._writes = not quiet and not self._line.is_live
        self._shown = Evaluating(0, 0, 0, 0.0)

    def show(self, progress: Evaluating, returns: Sequence[float]) -> None:
        """Show it, unless the last line is too young, or nothing has changed since."""
        idle = self._shown.seconds and progress.episodes == self._shown.episodes and self._writes
        if progress.seconds - self._shown.seconds < (IDLE_S if idle else INTERVAL_S):
            return
        self._shown = progress
        mean = f", mean return {number(fmean(returns))}" if returns else ""
        self._line.at(len(returns), f"episodes{mean}, {count(progress.env_steps)} env steps")
        if self._writes:
            try:
                sys.stderr.write(f"evaluating: {progress}\n")
                sys.stderr.flush()
            except OSError:
                self._writes = False  # The pipe has gone: it goes on unseen.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._line.close()


def _show(
    evaluator: Evaluator,
    wanted: int,
    who: str,
    other: str | None,
    animation: Animation | None,
    json_to: str | None,
) -> None:
    """Print the result, for people or programs; wins, agents and metrics only where there are any.

    Args:
        other: name of the policy that played, if it is not the trained one as it is.
    """
    returns = evaluator.returns
    means = evaluator.win_rate, evaluator.agents, evaluator.metrics
    evaluation = Evaluation.of(returns, wanted, evaluator.cut_off, *means)
    if json_to is not None:
        figures = {"policy": other, **asdict(evaluation)}
        known = {name: value for name, value in figures.items() if value is not None or name == "cut_off"}
        extremes = {"min": min(returns, default=None), "max": max(returns, default=None)}
        pictures = 0 if animation is None else animation.pictures
        drawn = {"render": str(animation.path), "pictures": pictures} if animation and pictures else {}
        write_json(finite({**known, **extremes, "returns": returns, **drawn}), json_to)
    if json_to == "-":
        return
    kind = "greedy episodes" if other is None else "episodes"
    lines = [f"{who}: {evaluation.described(kind, '--max-s, --max-steps')}"]
    if returns:
        lines[0] += f" (min {number(min(returns))}, max {number(max(returns))})"
    if evaluation.agents is not None:
        lines.append(f"mean of each agent: {of_names(evaluation.agents)}")
    if evaluation.metrics is not None:
        lines.append(f"means of metrics: {of_names(evaluation.metrics)}")
    if animation is not None and not animation.pictures:
        lines.append(f"{animation.path}: nothing was drawn")
    elif animation is not None:
        part = "the first episode" if returns else "the first episode as far as it was played"
        lines.append(f"{animation.path}: {part}, {several(animation.pictures, 'picture')}")
    print_lines(lines)
