"""`tianji sweep`: begins a search for good values of a config's keys, joins one, or resumes one."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tianji_cli.commands.board import WAITING, Board, Row
from tianji_cli.commands.options import Config, Json, Name, Override, Quiet
from tianji_cli.conditions import check_machine
from tianji_cli.config.checks import check_devices
from tianji_cli.config.loader import SWEEP
from tianji_cli.config.source import Tree, read
from tianji_cli.config.trust import check_trusted
from tianji_cli.errors import RunFailed, TianjiError, UsageError, errors_as, one_line, printable
from tianji_cli.files.campaigns import SweepDirectory
from tianji_cli.files.rundir import write_whole
from tianji_cli.quantities import number, several
from tianji_cli.signals import INTERRUPTED, Interruption
from tianji_cli.telemetry.report import print_lines
from tianji_cli.telemetry.tables import print_table, write_json
from tianji_cli.telemetry.trackers import check_trackers

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from tianji_cli.runs.sweep.run import Sweeper
    from tianji_cli.runs.sweep.space import Plan
    from tianji_cli.runs.sweep.study import SweepStudy

MOST_SHOWN: Final = 10
"""Maximum trials in the printed result, the best first."""

Trials = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="How many in all; what the config says by default.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="The sweep's directory; where there is one already, take part in it."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the newest sweep, or the one in DIR.")]


def sweep(
    config: Config,
    *,
    overrides: Override = None,
    trials: Trials = None,
    name: Name = None,
    out: Out = None,
    resume: Resume = False,
    quiet: Quiet = False,
    json_to: Json = None,
) -> int:
    """Search for good values of the keys that a config's ``[sweep]`` names, by training.

    Example: tianji sweep my_sweep.toml --trials 20

    Raises:
        UsageError: the command does not fit together, or Optuna is not installed.
        ConfigError: the config cannot be run, or ``[sweep]`` not be done.
        RunFailed: not one trial has a value. TianjiError: the directory is damaged, or cannot be written to.
    """
    check_installed()
    # Optuna and matplotlib take a second to import, which other commands save.
    from tianji_cli.runs.sweep.space import plan_sweep  # noqa: PLC0415

    plan = plan_sweep(tree_of(config, overrides or (), name), trials)
    check_devices(plan.job)
    check_trackers(plan.job.experiment.track)
    check_machine(plan.job.distribution.transport.local)
    directory = _place_of(plan, out, resume=resume) or begin(plan, out)
    _check_same(directory, plan)
    study = _study(directory, plan)
    # The disk may be full, or the directory removed meanwhile.
    with errors_as(TianjiError, f"cannot go on with {directory.path}", OSError):
        if trials is not None:
            study.ask_for(plan.trials)
        return _work(directory, plan, study, quiet=quiet, json_to=json_to)


def tree_of(config: str, overrides: Sequence[str], name: str | None) -> Tree:
    """Read a config, and set the experiment's name if there is one."""
    tree = read(config, overrides)
    if name is not None:
        tree.assign(("experiment", "name"), name, "--name")
    return tree


def check_installed() -> None:
    """Check that Optuna is installed.

    Raises:
        UsageError: it is not installed.
    """
    if find_spec("optuna") is None:
        raise UsageError("tianji sweep needs optuna, which is not installed: pip install 'tianji[sweep]'")


def _place_of(plan: Plan, out: Path | None, *, resume: bool) -> SweepDirectory | None:
    """Find the sweep to take part in; None if there is none yet.

    Raises:
        UsageError: there is none to resume.
    """
    found = SweepDirectory(out) if out is not None else None
    if found is None and resume:
        found = SweepDirectory.newest(plan.job.experiment.name)
    if found is None or not found.is_there:
        if resume:
            raise UsageError(f"there is no sweep in {out} to go on with")
        return None
    return found


def _check_same(directory: SweepDirectory, plan: Plan) -> None:
    """Check that a directory has the sweep of this config.

    Raises:
        UsageError: the sweep is another config's.
    """
    check_trusted(directory.config)  # The config names modules that will run.
    theirs, ours = _fixed_part(_shared_by(directory)), _fixed_part(tomllib.loads(plan.toml()))
    if theirs != ours:
        key = next(key for key in (*theirs, *ours) if theirs.get(key) != ours.get(key))
        raise UsageError(
            f"{directory.path} has a sweep of another config, which differs in [{key}]\n"
            f"go on with that one: tianji sweep {directory.config} --out {directory.path} --resume"
        )


def _shared_by(directory: SweepDirectory) -> dict[str, Any]:
    """Read the config that all processes of a sweep share.

    Raises:
        TianjiError: the config is damaged.
    """
    with errors_as(TianjiError, f"cannot read {directory.config}", OSError, ValueError):
        return tomllib.loads(directory.config.read_text(encoding="utf-8"))


def _fixed_part(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out the keys of a sweep that may change: the number of trials, and the sampler unless a grid."""
    if not isinstance(table := config.get(SWEEP), dict):
        return config
    return config | {SWEEP: {**table, "trials": None, "sampler": table.get("sampler") == "grid"}}


def begin(plan: Plan, out: Path | None) -> SweepDirectory:
    """Make the directory of a sweep with all its trials waiting, or find the one of another process."""

    def fill(made: SweepDirectory) -> None:
        write_whole(made.config, plan.toml().encode())
        _study(made, plan).ask_for(plan.trials)

    return SweepDirectory.create(out, plan.job.experiment.name, fill)


def _study(directory: SweepDirectory, plan: Plan) -> SweepStudy:
    from tianji_cli.runs.sweep.metrics import points_of  # noqa: PLC0415
    from tianji_cli.runs.sweep.study import SweepStudy  # noqa: PLC0415

    points = points_of(plan.sweep.metric, plan.job)
    strange = (OSError, ValueError, KeyError, TypeError, AssertionError)
    with errors_as(TianjiError, f"cannot read {directory.journal}", *strange):
        return SweepStudy(directory.journal, plan.sweep, plan.space, points)


def _work(
    directory: SweepDirectory, plan: Plan, study: SweepStudy, *, quiet: bool, json_to: str | None
) -> int:
    from tianji_cli.runs.sweep.results import write_results  # noqa: PLC0415
    from tianji_cli.runs.sweep.run import Sweeper  # noqa: PLC0415

    interrupted = False
    sweeper = Sweeper(directory, plan, study)
    known, columns = _rows(study, ()), ("trial", "status", "value", "parameters")
    with Board("trial", str(directory.path), columns, (0, 2), quiet=quiet, known=known) as board:

        def show(present: Sweeper) -> None:
            here = {one.trial.number for one in present.own}
            board.show(_rows(study, here), lambda: _best_so_far(study))

        try:
            sweeper.work(show)
        except (Interruption, KeyboardInterrupt):
            interrupted = True
    document = write_results(directory, plan, study)
    if write_json(document, json_to):
        _print(document, directory, plan, study)
    if interrupted:
        return INTERRUPTED
    if document["best"] is None:
        raise RunFailed(_why_none(study, plan.sweep.metric))
    return 0


def _why_none(study: SweepStudy, metric: str) -> str:
    from tianji_cli.runs.sweep.study import REASON  # noqa: PLC0415

    reasons = [str(one.user_attrs[REASON]) for one in study.trials if REASON in one.user_attrs]
    such_as = f", such as: {reasons[0]}" if reasons else ""
    return f"none of {several(len(study.trials), 'trial')} has come to a {metric}{such_as}"


def _print(document: Mapping[str, Any], directory: SweepDirectory, plan: Plan, study: SweepStudy) -> None:
    from tianji_cli.runs.sweep.results import WORDS  # noqa: PLC0415

    keys = [one.key for one in plan.space.dimensions]
    sign = 1.0 if plan.sweep.minimizes else -1.0
    known = [one for one in study.trials if one.value is not None]
    best = sorted(known, key=lambda one: (WORDS[one.state] != "finished", sign * (one.value or 0.0)))
    rows = []
    for trial in best[:MOST_SHOWN]:
        values = study.values_of(trial)
        cells = [_cell(values[key]) if key in values else "" for key in keys]
        rows.append((str(trial.number), WORDS[trial.state], number(trial.value or 0.0), *cells))
    place = printable(str(directory.path))
    if rows:
        print_table(("trial", "status", plan.sweep.metric, *keys), rows, place, right=(0, 2))
    print_lines(
        [
            f"{document['trials']} of {several(document['of'], 'trial')} are over, "
            f"{document['pruned']} pruned, {document['failed']} failed: {place}"
        ]
    )
    if document["best"] is not None:
        print_lines([f"train with the best: tianji train {printable(str(directory.best))}"], to_copy=True)
    if document["status"] != "finished":
        again = f"tianji sweep {printable(str(directory.config))} --out {place} --resume"
        print_lines([f"go on with it: {again}"], to_copy=True)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(one_line(str(value)))


def _rows(study: SweepStudy, here: Collection[int]) -> list[Row]:
    """Return the rows of all trials on the board.

    Args:
        here: numbers of this process's trials.
    """
    found = []
    for one in study.trials:
        state, is_over = _state(one), one.state.is_finished()
        elsewhere = not is_over and state != WAITING and one.number not in here
        status = f"{state} elsewhere" if elsewhere else state
        cells = partial(_cells, study, one, status)
        found.append(Row(one.number, status, is_over, _why(one), cells))
    return found


def _best_so_far(study: SweepStudy) -> str:
    best = study.best
    return "" if best is None or best.value is None else f", best {number(best.value)}"


def _cells(study: SweepStudy, trial: FrozenTrial, status: str) -> tuple[str, ...]:
    value = "" if trial.value is None else number(trial.value)
    return str(trial.number), status, value, _values(study.values_of(trial))


def _state(trial: FrozenTrial) -> str:
    from tianji_cli.runs.sweep.results import WORDS  # noqa: PLC0415

    return WORDS[trial.state]


def _why(trial: FrozenTrial) -> str:
    from tianji_cli.runs.sweep.study import REASON  # noqa: PLC0415

    if REASON in trial.user_attrs:
        return str(trial.user_attrs[REASON])
    return "" if trial.value is None else number(trial.value)


def _values(values: Mapping[str, Any]) -> str:
    return "  ".join(f"{key.rpartition('.')[2]}={_cell(value)}" for key, value in values.items())
