"""A timeline as a Chrome trace: the JSON that Perfetto and chrome://tracing open. Reads it back, too.

A process of the trace is one of the run, by its rank; its threads are its roles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from tianji_cli.errors import TianjiError, errors_as
from tianji_cli.files.regular import parse_json, read_regular
from tianji_cli.files.rundir import write_whole
from tianji_cli.files.traces import SPAN, WHAT, TracedProcess
from tianji_cli.quantities import ranges
from tianji_cli.runs.timeline.timeline import Lane, Timeline

MOST_BYTES: Final = 1 << 30
"""Most bytes of a file that is read."""


def write_chrome(timeline: Timeline, path: Path) -> None:
    """Write a timeline as a Chrome trace.

    Raises:
        OSError: the file cannot be written.
    """
    about = {
        "run": timeline.name,
        "seconds": timeline.seconds,
        "processes": [process.model_dump(mode="json") for process in timeline.processes],
        "notes": list(timeline.notes()),
    }
    events = ",\n".join(_events(timeline))
    text = f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n{events}\n]}}\n'
    write_whole(path, text.encode())


def _events(timeline: Timeline) -> Iterator[str]:
    """Yield each event as a line of JSON; times are microseconds since the start of the window."""
    for process in timeline.processes:
        missing = f" ({process.missing})" if process.missing else ""
        name = f"{process.title}, rank {process.rank} on {process.host}{missing}"
        yield _named(process, "process_name", name=name)
        yield _named(process, "process_labels", labels=f"cores {_cores(process)}")
        yield _named(process, "process_sort_index", sort_index=process.rank)
    for lane in timeline.lanes:
        process = lane.process
        thread = process.roles.index(lane.role)
        yield _named(process, "thread_name", thread, name=lane.role)
        category = lane.role.partition(" ")[0]
        shared = (
            f'"ph": "X", "cat": {json.dumps(category)}, "pid": {process.rank}, "tid": {thread}, '
            f'"args": {{"core": "{_cores(process)}"}}'
        )
        for began_s, ended_s, _, what in lane.spans.tolist():
            times = f'"ts": {1e6 * began_s:.3f}, "dur": {1e6 * (ended_s - began_s):.3f}'
            yield f'{{"name": "{WHAT[what]}", {times}, {shared}}}'


def _named(process: TracedProcess, what: str, thread: int = 0, **args: Any) -> str:
    return json.dumps({"name": what, "ph": "M", "pid": process.rank, "tid": thread, "args": args})


def _cores(process: TracedProcess) -> str:
    return ranges(process.cores) or "any"


def read_chrome(path: Path) -> Timeline:
    """Read a timeline that ``write_chrome`` has written.

    Raises:
        TianjiError: the file cannot be read, or is no such timeline.
    """
    strange = (OSError, ValueError, LookupError, TypeError, RecursionError)
    with errors_as(TianjiError, f"{path} is no trace that tianji has written", *strange):
        document = parse_json(read_regular(path.resolve(), MOST_BYTES))
        about = document["otherData"]
        processes = tuple(map(TracedProcess.model_validate, about["processes"]))
        found: dict[tuple[int, int], list[tuple[float, float, int, int]]] = {}
        for event in document["traceEvents"]:
            if event["ph"] == "X":
                began_s, lasted_s = event["ts"] / 1e6, event["dur"] / 1e6
                spans = found.setdefault((event["pid"], event["tid"]), [])
                spans.append((began_s, began_s + lasted_s, event["tid"], WHAT.index(event["name"])))
        lanes = [
            Lane(role, process, np.array(found.get((process.rank, i), []), SPAN), about["seconds"])
            for process in processes
            if not process.missing
            for i, role in enumerate(process.roles)
        ]
        return Timeline(about["run"], about["seconds"], processes, lanes)
