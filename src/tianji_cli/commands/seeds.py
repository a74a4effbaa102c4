"""`tianji train --seeds`: trains several seeds of a config side by side, with one display and one result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tianji_cli.commands.board import Board, Row
from tianji_cli.config.loader import dump_config, load_run_config
from tianji_cli.config.schema import GREATEST_SEED, JobConfig
from tianji_cli.config.trust import check_trusted
from tianji_cli.errors import RunFailed, UsageError, cut, one_line, printable
from tianji_cli.files.campaigns import SeedsDirectory
from tianji_cli.quantities import count, duration, number, several
from tianji_cli.signals import INTERRUPTED, Interruption
from tianji_cli.telemetry.report import print_lines
from tianji_cli.telemetry.run_state import read_state
from tianji_cli.telemetry.tables import print_table, write_json

if TYPE_CHECKING:
    from tianji_cli.runs.campaign import Member
    from tianji_cli.runs.seeds import Seeds

COLUMNS: Final = ("seed", "status", "env steps", "best return", "why")
MOST_SEEDS: Final = 1000
MOST_DIGITS: Final = 20
"""Maximum digits of a number in ``--seeds``; Python reads no numbers of more than some thousand digits."""


def train_seeds(job: JobConfig, seeds: str, place: Path, *, quiet: bool, json_to: str | None) -> int:
    """Train a config with several seeds.

    Raises:
        UsageError: the seeds cannot be trained.
        RunFailed: one of them has failed.
    """
    from tianji_cli.runs.seeds import Seeds  # noqa: PLC0415 - imports NumPy

    check_one_host(job)
    numbers = numbers_of(seeds, job.experiment.seed)
    directory = SeedsDirectory.create(job.experiment.name, numbers, dump_config(job), place)
    with directory.alone():
        return _train(Seeds(directory), job, quiet=quiet, json_to=json_to)


def resume_seeds(
    directory: SeedsDirectory, settings: Sequence[str], *, quiet: bool, json_to: str | None
) -> int:
    """Go on with the unfinished seeds of a directory.

    Raises:
        UsageError: the seeds cannot be trained, or one of them is running.
        RunFailed: one of them has failed.
    """
    from tianji_cli.runs.seeds import Seeds  # noqa: PLC0415

    check_trusted(directory.config)  # The config names modules that will run.
    job = load_run_config(str(directory.config), settings)
    check_one_host(job)
    with directory.alone():
        return _train(Seeds(directory, settings), job, quiet=quiet, json_to=json_to)


def numbers_of(text: str, first: int) -> list[int]:
    """Read ``--seeds``: a number of seeds, which begin with ``first``, or a list.

    >>> numbers_of("3", 7), numbers_of("3,11", 7), numbers_of("5,", 7)
    ([7, 8, 9], [3, 11], [5])

    Raises:
        UsageError: the text is neither, or names a seed twice, or a seed that is too great.
    """
    parts = [part.strip() for part in text.removesuffix(",").split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= MOST_DIGITS for part in parts):
        raise UsageError(
            f"--seeds {cut(repr(text))} is neither a number of seeds, as 5, nor a list, as 3,7,11"
        )
    numbers = [int(part) for part in parts]
    if "," not in text:
        if not 0 < numbers[0] <= MOST_SEEDS:
            raise UsageError(
                f"--seeds {text} is how many, from 1 to {MOST_SEEDS}; one seed is a list, as --seeds {text},"
            )
        numbers = list(range(first, first + numbers[0]))
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"--seeds {text} names a seed twice")
    if max(numbers) > GREATEST_SEED:
        raise UsageError(f"--seeds {text} goes on to seed {max(numbers)}; the greatest is {GREATEST_SEED}")
    return numbers


def check_one_host(job: JobConfig) -> None:
    """Refuse several seeds of a job over several hosts.

    Raises:
        UsageError: the job has more than one host.
    """
    if job.distribution.hosts.max > 1:
        raise UsageError(
            "several seeds train side by side on one host, and distribution.hosts is "
            f"{job.distribution.hosts.max}: train them one by one, with --set experiment.seed=1 and so on"
        )


def _train(seeds: Seeds, job: JobConfig, *, quiet: bool, json_to: str | None) -> int:
    from tianji_cli.runs.seeds import summarise  # noqa: PLC0415

    interrupted = False
    with Board("seed", str(seeds.directory.path), COLUMNS, (0, 2, 3), quiet=quiet) as board:
        try:
            seeds.train(job, lambda: board.show(list(map(_row, seeds.members))))
        except (Interruption, KeyboardInterrupt):
            interrupted = True
    document = summarise(seeds, job)
    if write_json(document, json_to):
        _print(document, seeds)
    if seeds.status == "failed":
        failed = [seed.seed for seed in seeds.members if seed.status == "failed"]
        raise RunFailed(f"{several(len(failed), 'seed')} failed: {', '.join(map(str, failed))}")
    return INTERRUPTED if interrupted or seeds.status == "stopped" else 0


def _print(document: Mapping[str, Any], seeds: Seeds) -> None:
    rows = [
        (
            str(row["seed"]),
            row["status"],
            "" if row["env_steps"] is None else count(row["env_steps"]),
            "" if row["train_s"] is None else duration(row["train_s"]),
            "" if row[document["of"]] is None else number(row[document["of"]]),
            printable(one_line(row["reason"])),
        )
        for row in document["seeds"]
    ]
    what = "evaluation" if document["of"] == "evaluation" else "last 100"
    place = printable(str(seeds.directory.path))
    print_table(("seed", "status", "env steps", "time", what, "why"), rows, place, right=(0, 2, 3, 4))
    print_lines(_together(document))
    print_lines([f"runs: {place}"])
    if seeds.status != "finished":
        print_lines([f"go on with them: tianji train --resume {place}"], to_copy=True)


def _together(document: Mapping[str, Any]) -> Iterator[str]:
    done = sum(row["status"] == "finished" for row in document["seeds"])
    what = (
        "return of the evaluations" if document["of"] == "evaluation" else "return of the last 100 episodes"
    )
    if document["final"] is not None:
        yield f"{what}: {_estimate(document['final'])}, interquartile mean of {several(done, 'seed')}"
    for threshold, times in document["time_to"].items():
        after = "" if times["iqm"] is None else f", after {_estimate(times)} s"
        yield f"to {threshold}: {times['reached']} of {times['of']}{after}"


def _estimate(of: Mapping[str, Any]) -> str:
    low, high = ("?" if bound is None else number(bound) for bound in (of["low"], of["high"]))
    return number(of["iqm"]) + ("" if of["low"] is None else f" ({low} to {high})")


def _row(seed: Member) -> Row:
    return Row(seed.seed, seed.status, seed.is_over, seed.reason, lambda: _cells(seed))


def _cells(seed: Member) -> tuple[str, ...]:
    state = read_state(seed.run)
    return (
        str(seed.seed),
        seed.status,
        "" if state.env_steps is None else count(state.env_steps),
        "" if state.best_mean_100 is None else number(state.best_mean_100),
        one_line(seed.reason),
    )
