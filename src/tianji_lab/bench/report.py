"""Results of `tianji bench`: a table for people, and CSV, JSON and a plot for everything else.

The JSON has ``schema`` (1), ``environment``, ``warnings`` and ``rows``, each a ``Record`` with its fields
under their own names. The CSV has the same fields as columns. A figure that an experiment does not have is
null in the JSON and empty in the CSV.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from tianji_cli.quantities import number, several, share, size
from tianji_cli.runs.results import Result, Table, document_head
from tianji_cli.telemetry.tables import print_table
from tianji_lab.bench.record import KB, ExperimentName, Record
from tianji_lab.environment import warnings_of_noise

TITLES: Final[Mapping[ExperimentName, str]] = {
    "comm": "virtual communication experiment",
    "latency": "half a round trip",
    "bandwidth": "bandwidth, windowed and acknowledged",
    "weights": "from publishing until the slowest reader has the parameters",
}
FIELDS: Final = tuple(field.name for field in fields(Record))


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        tells_nothing: text of a cell without information; the table leaves out a column that has only such
            cells and empty ones.
    """

    heading: str
    cell: Callable[[Record], str]
    tells_nothing: str = ""


def print_records(records: Sequence[Record]) -> None:
    """Print records of one experiment: a line of their common settings, and a table."""
    if not records:
        return
    experiment = records[0].experiment
    sys.stdout.write(f"# {', '.join(_in_common(records))}; MB = 1e6 bytes, KB = 1024 bytes\n")
    columns = [
        column
        for column in COLUMNS[experiment]
        if any(column.cell(record) not in {"", column.tells_nothing} for record in records)
    ]
    rows = [[column.cell(record) for column in columns] for record in records]
    right = [place for place, column in enumerate(columns) if column is not BACKEND]
    print_table([column.heading for column in columns], rows, TITLES[experiment], right=right)


def noisy_cases(records: Sequence[Record]) -> list[str]:
    """List the cases whose repeated runs lie too far apart."""
    return warnings_of_noise(((record.collection.apart, _apart(record)) for record in records), "case")


def _apart(record: Record) -> str:
    time = f", sample time {record.sample_time_s:g} s" if record.sample_time_s else ""
    case = f"{record.backend} at {size(record.msg_kb * KB)}, {several(record.actors, 'actor')}{time}"
    return f"repeated runs of {case} lay {share(record.collection.apart)} apart"


def print_crossings(records: Sequence[Record]) -> None:
    """Print the numbers of actors at which the buffer becomes the critical path, by Equation 1."""
    printed = set()
    for record in records:
        where = (record.backend, record.msg_kb, record.sample_time_s)
        if record.crossing_actors is None or not record.sample_time_s or where in printed:
            continue
        printed.add(where)
        assert record.term_sample_s is not None
        assert record.term_send_s is not None
        assert record.term_receive_s is not None
        sys.stdout.write(
            f"{record.backend}, {size(record.msg_kb * KB)}, sample time {record.sample_time_s:g} s: "
            "the critical path moves from the actors to the buffer at "
            f"{record.crossing_actors} actors (T_sp {1e3 * record.term_sample_s:.3f} ms, "
            f"T_sd {1e6 * record.term_send_s:.1f} us, T_rv {1e6 * record.term_receive_s:.1f} us)\n"
        )


def result_of(
    name: str,
    environment: Mapping[str, str],
    records: Sequence[Record],
    warnings: Sequence[str],
    *,
    link_mb_per_s: float | None = None,
) -> Result:
    """Build the result's files.

    Args:
        name: of the files and of the plot: an experiment, or ``figure-5a`` to ``figure-5d``.
    """

    def draw(path: Path) -> None:
        from tianji_lab.bench import plots  # noqa: PLC0415 - imports matplotlib, a second

        plots.draw(name.removeprefix("figure-"), records, path, link_mb_per_s=link_mb_per_s)

    rows = [record.document() for record in records]
    document = {**document_head(environment, warnings), "rows": rows}
    return Result(name=name, document=document, figures={name: draw}, tables={name: Table(FIELDS, rows)})


# -- the table -----------------------------------------------------------------------------------------


def _in_common(records: Sequence[Record]) -> list[str]:
    """List the common settings of all records that the table does not show."""
    first = records[0]
    sayings: list[Callable[[Record], str]] = []
    if first.experiment in {"comm", "bandwidth"}:
        sayings.append(lambda record: f"window {record.window}")
        sayings.append(
            lambda record: f"stored by {record.store}" if record.store == "copy" else "read in place"
        )
    if any(record.sample_time_s for record in records):
        sayings.append(lambda record: f"actors {record.work} while they sample")
    sayings.append(
        lambda record: f"medians of {record.repeats} runs" if record.repeats > 1 else "one run each"
    )
    return [
        _messages(records),
        *(say(first) for say in sayings if all(say(record) == say(first) for record in records)),
    ]


def _messages(records: Sequence[Record]) -> str:
    fewest, most = (bound(record.messages for record in records) for bound in (min, max))
    return f"{fewest if fewest == most else f'{fewest} to {most}'} messages a run, each verified"


def _value(name: str, scale: float = 1.0) -> Callable[[Record], str]:
    """Make a cell that shows a field times ``scale``; empty if the experiment has no such figure."""

    def cell(record: Record) -> str:
        value = getattr(record, name)
        return "" if value is None else number(value * scale)

    return cell


def _off(record: Record) -> str:
    if record.predicted_s is None:
        return ""
    return f"{100 * (record.predicted_s / record.collection_s - 1):+.0f} %"


def _refused(record: Record) -> str:
    return "" if record.refused is None else str(record.refused)


def _ratio(record: Record) -> str:
    return "" if record.raw_ratio is None else f"{record.raw_ratio:.2f}"


def _spread(record: Record) -> str:
    return share(record.collection.apart) if record.repeats > 1 else ""


BACKEND: Final = Column("backend", lambda record: record.backend)
_SIZE: Final = Column("size", lambda record: size(record.msg_kb * KB))
_ACTORS: Final = Column("actors", lambda record: str(record.actors))
_HOSTS: Final = Column("hosts", lambda record: str(record.hosts), tells_nothing="1")
_SPREAD: Final = Column("spread", _spread)
_RATE: Final = Column("msgs/s", _value("msgs_per_s"))
_MB: Final = Column("MB/s", _value("mb_per_s"))
_PERCENTILES: Final = tuple(Column(f"p{share} us", _value(f"p{share}_us")) for share in (50, 95, 99))
_CPU: Final = Column("CPU s", _value("cpu_s"))
_RAW: Final = (Column("raw msgs/s", _value("raw_msgs_per_s")), Column("of raw", _ratio))

COLUMNS: Final[Mapping[ExperimentName, Sequence[Column]]] = {
    "comm": (
        BACKEND,
        Column("KB", lambda record: f"{record.msg_kb:g}"),
        _ACTORS,
        _HOSTS,
        Column("sample s", lambda record: f"{record.sample_time_s:g}", tells_nothing="0"),
        Column("collect s", _value("collection_s")),
        _SPREAD,
        Column("predicted s", _value("predicted_s")),
        Column("off", _off),
        _RATE,
        _MB,
        Column("T_sd us", _value("send_s", 1e6)),
        Column("T_rv us", _value("receive_s", 1e6)),
        *_PERCENTILES,
        _CPU,
        Column("refused", _refused, tells_nothing="0"),
        *_RAW,
    ),
    "latency": (BACKEND, _SIZE, _HOSTS, *_PERCENTILES, _SPREAD, _RATE),
    "bandwidth": (BACKEND, _SIZE, _HOSTS, _MB, _SPREAD, _RATE, _CPU, *_RAW),
    "weights": (
        BACKEND,
        _SIZE,
        _ACTORS,
        _HOSTS,
        Column("p50 ms", _value("p50_us", 1e-3)),
        Column("p95 ms", _value("p95_us", 1e-3)),
        Column("MB/s to all", _value("mb_per_s")),
        _SPREAD,
    ),
}
"""Columns of each experiment's table."""
