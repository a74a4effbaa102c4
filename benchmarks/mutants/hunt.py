"""Puts the drawn mistakes into the code, one after another, and checks whether the tests find them.

The script changes the files of its own checkout and puts them back: run it on a copy, as ``nox -s mutants``
does. It first runs the test that found a mutant in the last hunt (``last_hunt.jsonl``), and the tests of the
mutant's area if that test passes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
MARK: Final = "TIANJI_MUTANT"
"""Environment variable by which the script finds processes that a mutant has left behind."""
MOST_MOVED: Final = 30
"""Maximum number of lines by which a drawn line may have moved."""
LIMIT_S: Final = 900.0
"""Seconds after which tests hang; then the mutant is found."""

Mutant = dict[str, Any]


def main() -> int:
    """Try each mutant, write the result, and list the mutants that no test found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of mutants; all if left out")
    parser.add_argument("--whole", action="store_true", help="try all tests, not only those of the area")
    parser.add_argument("--out", type=Path, required=True, help="file for the results, a line of JSON each")
    options = parser.parse_args()
    areas = tomllib.loads((HERE / "areas.toml").read_text())
    drawn: list[Mutant] = json.loads((HERE / "drawn.json").read_text())
    known = results_in(options.out)
    last = {result["number"]: test_of(result["found_by"]) for result in results_in(HERE / "last_hunt.jsonl")}
    done = {result["number"] for result in known}
    wanted = [one for one in drawn if one["number"] not in done and _is_wanted(one, options.only)]
    tests = {area: ["tests"] if options.whole else about["tests"] for area, about in areas.items()}
    first = {one["number"]: test for one in wanted if (test := last.get(one["number"])) is not None}
    if first and run_tests(sorted(set(first.values())), "none") is not None:
        print("not all tests of the last hunt are there and pass; whole areas are tried", flush=True)
        first.clear()
    passing: set[str] = set()
    with options.out.open("a") as results:
        for mutant in wanted:
            began = time.monotonic()
            found_by = None
            if mutant["number"] in first:
                with changed(mutant):
                    found_by = run_tests([first[mutant["number"]]], str(mutant["number"]))
            if found_by is None:
                found_by = hunt(mutant, tests[mutant["area"]], passing)
            result = {"number": mutant["number"], "found_by": found_by}
            known.append(result)
            results.write(json.dumps(result | {"seconds": round(time.monotonic() - began, 1)}) + "\n")
            results.flush()
            print(f"{mutant['number']:4} {mutant['area']:14} {found_by or 'NOT FOUND'}", flush=True)
    return _report(drawn, known)


def results_in(path: Path) -> list[dict[str, Any]]:
    """Read the results of a hunt; empty if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_of(found_by: str | None) -> str | None:
    """Take the test's name from pytest's line; None if no single test failed."""
    if found_by is None or not found_by.startswith("FAILED "):
        return None
    return found_by.removeprefix("FAILED ").partition(" - ")[0]


def hunt(mutant: Mutant, tests: Sequence[str], passing: set[str]) -> str | None:
    """Run all tests of an area with a mutant.

    Args:
        passing: areas whose tests pass without a mutant.

    Returns:
        The line of the test that found the mutant, or None.
    """
    area = mutant["area"]
    if area not in passing and (failed := run_tests(tests, "none")) is not None:
        sys.exit(f"{area}: without any mutant there is {failed}")
    passing.add(area)
    with changed(mutant):
        return run_tests(tests, str(mutant["number"]))


def _is_wanted(mutant: Mutant, only: Sequence[int] | None) -> bool:
    return not only or mutant["number"] in only


@contextmanager
def changed(mutant: Mutant) -> Iterator[None]:
    """Put a mistake into the code during the body; exits if the code has changed."""
    path = ROOT / mutant["module"]
    code = path.read_text()
    lines, was = code.splitlines(), mutant["was"]
    # The line may have moved since the draw; an equal line far away is another one.
    near = range(max(0, mutant["line"] - 1 - MOST_MOVED), min(len(lines), mutant["line"] + MOST_MOVED))
    places = [i for i in near if lines[i : i + len(was)] == was]
    if not places:
        sys.exit(f"{path}:{mutant['line']} is not what it was when mutant {mutant['number']} was drawn")
    first = min(places, key=lambda place: abs(place - (mutant["line"] - 1)))
    path.write_text("\n".join([*lines[:first], *mutant["becomes"], *lines[first + len(was) :]]) + "\n")
    try:
        yield
    finally:
        path.write_text(code)


def run_tests(tests: Sequence[str], mark: str) -> str | None:
    """Run tests until one fails; returns pytest's line on it, or None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    mark = f"{mark} of {os.getpid()}"  # Another hunt may try a mutant of the same number.
    environment = {**os.environ, MARK: mark}
    with subprocess.Popen(
        [*command, *tests],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            said = "tests that hang"
        finally:
            _kill_all(mark)
    if process.returncode == 0:
        return None
    named = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return named[0] if named else said.strip().splitlines()[-1][:200]


def _kill_all(mark: str) -> None:
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get(MARK) == mark:
            process.kill()


def _report(drawn: Sequence[Mutant], known: Sequence[Mutant]) -> int:
    """Print the found mutants of each area, and those not found; returns how many of the latter matter."""
    found = {result["number"] for result in known if result["found_by"]}
    tried = {result["number"] for result in known}
    of_area = Counter(mutant["area"] for mutant in drawn if mutant["number"] in tried)
    for area, number in of_area.items():
        print(f"{area}: {sum(one['area'] == area and one['number'] in found for one in drawn)} of {number}")
    reasons: dict[str, str] = tomllib.loads((HERE / "changes_nothing.toml").read_text())
    missed = [mutant for mutant in drawn if mutant["number"] in tried - found]
    for mutant in missed:
        was, becomes = (" ".join(line.strip() for line in mutant[of]) for of in ("was", "becomes"))
        print(f"{mutant['number']:4} {mutant['module']}:{mutant['line']}\n       {was}\n    -> {becomes}")
        if (why := reasons.get(str(mutant["number"]))) is not None:
            print(f"       changes nothing: {why}")
    lived = sum(str(mutant["number"]) not in reasons for mutant in missed)
    same = len(missed) - lived
    print(f"{len(tried) - len(missed)} of {len(tried)} found; {same} of the others change nothing")
    return lived


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
