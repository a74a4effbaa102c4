"""`tianji eval`: plays greedy episodes with a run's saved policy, or with a baseline to compare it with.

Episodes are played side by side; filmed episodes one after the other, since a film has one picture.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tianji_cli.commands.completion import checkpoints
from tianji_cli.commands.options import Json, Run, Runs
from tianji_cli.config.loader import load_run_config
from tianji_cli.errors import RunFailed, TianjiError, UsageError, describe, errors_as
from tianji_cli.files.directories import remove_stale
from tianji_cli.files.film import Film, FilmError, check_film
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory
from tianji_cli.quantities import count, finite, number, several
from tianji_cli.roles.episodes import EvaluationLimits
from tianji_cli.roles.evaluator import AtTheEnd, Evaluator
from tianji_cli.roles.policies import BASELINES, POLICIES, PolicyName
from tianji_cli.root.observers.hangs import START_S
from tianji_cli.signals import HangsError, limit
from tianji_cli.telemetry.machine import changed_code
from tianji_cli.telemetry.progress import Progress, say
from tianji_cli.telemetry.report import print_lines
from tianji_cli.telemetry.snapshot import of_names
from tianji_cli.telemetry.tables import write_json
from tianji_cli.wire.reports import Evaluating, Evaluation
from tianji_plugins import did_you_mean

if TYPE_CHECKING:
    from tianji_cli.roles.episodes import EpisodePlayer
    from tianji_cli.roles.filming import Filming


INTERVAL_S: Final = 1.0
IDLE_S: Final = 10.0
"""Seconds between two lines of progress; ``IDLE_S`` in a pipe if no episode has ended since the last line."""

GRACE_S: Final = 2.0
"""Seconds beyond the evaluation's limit, for the step that it is in."""

CLOSE_S: Final = 5.0
"""Maximum seconds to close the environments."""


Episodes = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Greedy episodes to play; 100 by default, 1 with --render."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Of the environments.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="best|last|STEP",
        help="Which one to play with; as the config says by default.",
        autocompletion=checkpoints,
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        metavar="trained|sampled|random|heuristic", help="Who plays: the trained one by default, greedily."
    ),
]
MaxS = Annotated[
    float | None,
    typer.Option(metavar="S", min=0.001, help="Longest time; the config's eval_max_s by default."),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Most env steps; the config's eval_max_steps by default."),
]
Render = Annotated[Path | None, typer.Option(metavar="X.mp4", help="Film the episodes, one after the other.")]
Overlay = Annotated[
    bool, typer.Option("--overlay", help="With --render: episode, step, reward and return below it.")
]


def evaluate(  # noqa: PLR0913 - the options of a command are its parameters
    run: Run,
    *,
    episodes: Episodes = None,
    seed: Seed = None,
    checkpoint: Checkpoint = None,
    policy: Policy = "trained",
    max_s: MaxS = None,
    max_steps: MaxSteps = None,
    render: Render = None,
    overlay: Overlay = False,
    out: Runs = None,
    json_to: Json = None,
) -> int:
    """Evaluate a checkpoint, or a baseline in the same environments, and print the result.

    Example: tianji eval ppo_cartpole --episodes 20 --render episode.mp4

    Episodes that have not ended when a limit is reached are left out, and counted.

    Raises:
        UsageError: there is no such run, checkpoint or policy, or the film cannot be written.
        RunFailed: the environment or the agent could not be built or did not play.
    """
    remove_stale()
    directory = RunDirectory.find(run, DEFAULT_OUT if out is None else out)
    for warning in directory.check():  # The run's config names modules that will run.
        say(f"warning: {warning}")
    config = load_run_config(str(directory.config))
    player = _find_policy(policy, checkpoint)
    wanted = checkpoint or config.experiment.eval_checkpoint
    name = "" if player in BASELINES else directory.checkpoint(wanted)
    _check_film(render, overlay=overlay)
    number = episodes or (100 if render is None else 1)
    experiment = config.experiment
    limits = EvaluationLimits(max_s or experiment.eval_max_s, max_steps or experiment.eval_max_steps)
    faulthandler.enable(2)  # This process plays: if a library crashes it, the user sees where.
    with _ProgressLine(number, quiet=json_to == "-") as progress:
        # torch is slow to import; errors of the command line are found before.
        from tianji_cli.roles.filming import Filming  # noqa: PLC0415
        from tianji_cli.worker.evaluation import final_evaluation  # noqa: PLC0415
        from tianji_cli.worker.parts import Parts  # noqa: PLC0415

        parts, filmed, place = Parts(config), render is not None, directory.checkpoints
        build = partial(final_evaluation, parts, place, number, seed, name, player, limits, render=filmed)
        film = None if render is None else partial(Filming, path=render, overlay=overlay)
        try:
            # A user's environment or agent may raise anything.
            with errors_as(RunFailed, f"cannot evaluate {directory.path}", Exception, SystemExit):
                evaluation, made = _play(build, limits, film, progress)
        except FilmError as cause:
            raise UsageError(f"--render: {cause}") from cause
    for change in changed_code(directory):
        say(f"warning: {change} since the run's last session")
    other = None if player == "trained" else player
    who = ", ".join(filter(None, (str(directory.path), name, other and f"{other} policy")))
    _show(evaluation, number, who, other, made, json_to)
    return 0


def _check_film(path: Path | None, *, overlay: bool) -> None:
    """Refuse a film that cannot be written, before torch is imported.

    Raises:
        UsageError: the message has a remedy.
    """
    if path is None:
        if overlay:
            raise UsageError("--overlay is drawn below a film; --render X.mp4 makes one")
        return
    try:
        check_film(path)
    except FilmError as cause:
        raise UsageError(f"--render: {cause}") from cause


def _find_policy(policy: str, checkpoint: str | None) -> PolicyName:
    """Find the policy that plays.

    Raises:
        UsageError: there is no such policy, or it has no checkpoints and the user names one.
    """
    found = next((name for name in POLICIES if name == policy), None)
    if found is None:
        raise UsageError(f"--policy: no policy {policy!r}; {did_you_mean(policy, POLICIES, 'policies')}")
    if found in BASELINES and checkpoint is not None:
        raise UsageError(f"--checkpoint says which trained policy plays, and --policy {policy} is none")
    return found


def _play(
    build: Callable[[], AtTheEnd],
    limits: EvaluationLimits,
    film: Callable[[EpisodePlayer], Filming] | None,
    progress: _ProgressLine,
) -> tuple[AtTheEnd, Film | None]:
    """Play all episodes, and film them if there is a ``film``; returns the evaluation and the film."""
    with ExitStack() as stack:
        start_s = limits.max_s + START_S
        filming = None
        try:
            with limit(start_s):
                evaluation = build()
                evaluator, player = Evaluator(evaluation), evaluation.player
                stack.callback(_close, evaluator)
                if film is not None:  # Films the first observation, so that a drawing error shows now.
                    filming = stack.enter_context(_begin_film(film, player))
        except HangsError as cause:
            raise TimeoutError(f"environments and policy were not ready after {start_s:g} s") from cause
        try:
            with limit(limits.max_s + GRACE_S):
                while evaluator.finished is None:
                    (filming or evaluator).turn()
                    progress.show(player.progress, player.returns)
        except HangsError:
            player.cut_off = f"{limits.max_s:g} s, in a step or an action that did not return"
        if filming is None:
            return evaluation, None
        filming.film.finish()
        return evaluation, filming.film


def _begin_film(film: Callable[[EpisodePlayer], Filming], player: EpisodePlayer) -> Filming:
    """Film the first observation.

    Raises:
        FilmError: the film cannot be written, or the environment cannot be drawn.
    """
    try:
        return film(player)
    except TianjiError:
        raise
    except (Exception, SystemExit) as cause:
        raise FilmError(f"nothing was played: {describe(cause)}; without --render it can be") from cause


def _close(evaluator: Evaluator) -> None:
    """Close the environments, but give up after ``CLOSE_S`` and show the result; C code may hang longer."""
    try:
        with limit(CLOSE_S):
            evaluator.close()
    except HangsError:
        say(f"warning: the environments were not closed after {CLOSE_S:g} s")


class _ProgressLine(AbstractContextManager["_ProgressLine"]):
    """Shows the progress of the evaluation: one line on a terminal, or a line a second in a pipe."""

    def __init__(self, episodes: int, *, quiet: bool) -> None:
        self._line = Progress(episodes, quiet, ticks=True, plain=False)
        self._line.begin("importing torch, building the policy")
        self._writes = not quiet and not self._line.is_live
        self._shown = Evaluating(0, 0, 0, 0.0)

    def show(self, progress: Evaluating, returns: Sequence[float]) -> None:
        """Show the progress, unless the last line is too young."""
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
                self._writes = False  # The pipe has gone; the evaluation goes on.

    def __exit__(self, *_exception: object) -> None:
        self._line.close()


def _show(
    played: AtTheEnd,
    wanted: int,
    who: str,
    other: str | None,
    film: Film | None,
    json_to: str | None,
) -> None:
    """Print the result, for people or as JSON; wins, agents and metrics only where there are any.

    Args:
        other: name of the policy that played, if it is not the trained one as it is.
    """
    player, returns = played.player, played.player.returns
    evaluation = Evaluation.of(played.report(), wanted)
    figures = {"policy": other, **asdict(evaluation)}
    known = {name: value for name, value in figures.items() if value is not None or name == "cut_off"}
    extremes = {"min": min(returns, default=None), "max": max(returns, default=None)}
    drawn = {} if film is None else {"render": str(film.path), "pictures": film.pictures, "fps": film.fps}
    if not write_json(finite({**known, **extremes, "returns": returns, **drawn}), json_to):
        return
    kind = "greedy episodes" if other is None else "episodes"
    lines = [f"{who}: {evaluation.described(kind, '--max-s, --max-steps')}"]
    if returns:
        lines[0] += f" (min {number(min(returns))}, max {number(max(returns))})"
    if evaluation.agents is not None:
        lines.append(f"mean of each agent: {of_names(evaluation.agents)}")
    if evaluation.metrics is not None:
        lines.append(f"means of metrics: {of_names(evaluation.metrics)}")
    if film is not None:
        part = "" if player.moment.over else ", the last one as far as it was played"
        natural = player.environment.render_fps is not None
        reason = "" if natural else ", since the environment has no render_fps in its metadata"
        pictures = f"{several(film.pictures, 'picture')}, {film.fps:g} a second{reason}"
        lines.append(f"{film.path}: {several(player.moment.episode, 'episode')}{part}; {pictures}")
    print_lines(lines)
