"""Output of a comparison: a table for people; JSON, CSV and figures for everything else."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tianji_cli.quantities import count, duration, exact, number
from tianji_cli.runs.comparison.compare import Comparison, Row, Times, compare, document_of
from tianji_cli.runs.comparison.curves import Over
from tianji_cli.runs.comparison.runs import find_runs, read_runs
from tianji_cli.runs.comparison.statistics import LEAST_FOR_INTERVAL, Interval
from tianji_cli.runs.results import Result, Table, check_places, print_header
from tianji_cli.telemetry.tables import print_table

FORMATS: Final = ("png", "svg", "pdf")
FIGURES: Final = ("return_over_steps", "return_over_time", "performance_profile", "intervals")
RETURNS: Final = {
    "final": {"evaluation": "the evaluation at the end", "mean_100": "the last 100 training episodes"},
    "curves": {"evaluation": "evaluations while training", "mean_100": "the last 100 training episodes"},
}
MEASURES: Final = {"final": "final returns", "area": "areas"}
ENDS: Final = ("iqm", "low", "high")


def compare_runs(words: Sequence[str], over: Over, *, out: Path | None, json_to: str | None) -> None:
    """Compare runs, print the comparison and write its files.

    Raises:
        UsageError: they cannot be compared; TianjiError: one is damaged, or the results cannot be written.
    """
    meant, waiting = find_runs(words)
    runs, left_out = read_runs(meant)
    check_places(out, json_to)
    found = compare(runs, over, [*waiting, *left_out])
    result_of(found).hand_over(out=out, json_to=json_to)  # First, since a closed pipe may end the printing.
    if json_to != "-":
        print_comparison(found)


def print_comparison(found: Comparison) -> None:
    """Print a table of the groups, and the verdict on each against the first."""
    print_header(conditions(found), found.warnings)
    headings, cells = table(found)
    print_table(headings, cells, f"runs in {found.environment}", right=range(1, len(headings)))
    sys.stdout.writelines(f"{line}\n" for line in verdicts(found))


def conditions(found: Comparison) -> dict[str, str]:
    """Describe the figures of a comparison, by subject."""
    return {
        "environment": found.environment,
        "final return": f"mean of {RETURNS['final'][found.final_of]}",
        "area": _areas(found),
        "figures": "interquartile means over runs [95% bootstrap intervals]",
    }


def _areas(found: Comparison) -> str:
    if found.between is None:
        return "none"
    first, last = (_place(value, found.over) for value in found.between)
    return f"mean return from {first} to {last}, of {RETURNS['curves'][found.curves_of]}"


def _place(value: float, over: Over) -> str:
    return f"{count(value)} env steps" if over == "env_steps" else duration(value)


def table(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return a table of the groups: its headings, and a line of texts for each."""
    unit = "steps" if found.over == "env_steps" else "s"
    headings = ["group", "runs", "final return", "area"]
    headings += [f"{unit} to {exact(threshold)}" for threshold in found.thresholds]
    if len(found.rows) > 1:
        headings += ["P(final better)", "P(area better)"]
    cells = []
    for row in found.rows:
        times = row.steps_to if found.over == "env_steps" else row.time_to
        line = [row.name, str(len(row.group.runs)), _cell(row.final), _cell(row.area)]
        line += [_time_cell(of) for of in times.values()]
        if len(found.rows) > 1:
            line += [_better_cell(row, "final"), _better_cell(row, "area")]
        cells.append(line)
    return headings, cells


def _cell(of: Interval | None) -> str:
    if of is None or of.iqm is None:
        return ""
    iqm, *ends = ("?" if value is None else _short(value) for value in (of.iqm, of.low, of.high))
    return iqm if of.low is None and of.high is None else f"{iqm} [{', '.join(ends)}]"


def _short(value: float) -> str:
    return count(value) if value >= 1e4 else number(value)


def _time_cell(of: Times) -> str:
    cell = _cell(of)
    reached = "" if of.reached == of.of else f" ({of.reached}/{of.of})"
    return f"{cell or 'not reached'}{reached}"


def _better_cell(row: Row, measure: Any) -> str:
    of = row.better.get(measure)
    if of is None:
        return ""
    return f"{of.p:.2f}" if of.low is None else f"{of.p:.2f} [{of.low:.2f}, {of.high:.2f}]"


def verdicts(found: Comparison) -> Iterator[str]:
    """Yield the verdicts against the first group; groups without a verdict for one reason share a line."""
    first, without = found.rows[0].name, dict[tuple[str, str], list[str]]()
    for row in found.rows[1:]:
        for measure, of in row.better.items():
            if of.verdict is None:
                without.setdefault((MEASURES[measure], of.no_verdict), []).append(row.name)
            elif of.verdict == "undecided":
                yield f"{MEASURES[measure]} do not tell {row.name} from {first}"
            else:
                yield f"{row.name} is {of.verdict} than {first} in {MEASURES[measure]}"
    alike: dict[tuple[str, str], list[str]] = {}
    for (measured, why), names in without.items():
        alike.setdefault((why, "; ".join(names)), []).append(measured)
    for (why, those), measures in alike.items():
        yield f"no verdict on {' and '.join(measures)} of {those} beside {first}: {why}"


# -- files ---------------------------------------------------------------------------------------------


def result_of(found: Comparison) -> Result:
    """Return all files of a comparison: ``compare`` as JSON and CSV, the curves, and the figures."""

    def drawing(name: str) -> Any:
        def draw(path: Path) -> None:
            from tianji_cli.runs.comparison import figures  # noqa: PLC0415 - imports matplotlib, a second

            figures.draw(name, found, path)

        return draw

    return Result(
        name="compare",
        document=document_of(found),
        figures={name: drawing(name) for name in FIGURES},
        tables={"compare": _rows_table(found), "curves": _curves_table(found)},
        formats=FORMATS,
    )


def _rows_table(found: Comparison) -> Table:
    rows = []
    for row in found.rows:
        line: dict[str, Any] = {"name": row.name, "runs": len(row.group.runs)}
        intervals: dict[str, Interval | None] = {"final": row.final, "area": row.area}
        for threshold in found.thresholds:
            intervals[f"seconds_to_{exact(threshold)}"] = row.time_to[threshold]
            intervals[f"steps_to_{exact(threshold)}"] = row.steps_to[threshold]
            line[f"reached_{exact(threshold)}"] = row.time_to[threshold].reached
        for name, of in intervals.items():
            line |= {f"{name}_{end}": None if of is None else getattr(of, end) for end in ENDS}
        for measure, better in row.better.items():
            line |= {f"better_{measure}_{key}": value for key, value in asdict(better).items()}
        rows.append(line)
    return Table(list(dict.fromkeys(key for line in rows for key in line)), rows)


def _curves_table(found: Comparison) -> Table:
    rows = [
        {
            "name": row.name,
            "over": over,
            "at": at,
            **({} if alone else {"low": low, "high": high}),
            "iqm": iqm,
        }
        for row in found.rows
        for alone in [len(row.group.runs) < LEAST_FOR_INTERVAL]
        for over, of in row.curves.items()
        for at, iqm, low, high in zip(of.x, of.band.value, of.band.low, of.band.high, strict=True)
    ]
    return Table(("name", "over", "at", *ENDS), rows)
