"""Draws mistakes to put into the code: a fixed seed, equally many for each area, at most one for a line.

The operators are cosmic-ray's. The draw leaves out mistakes that no test can find: in annotations, which are
not evaluated, and in numbers of module constants, since three seconds of patience are as right as four.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]


class Mutation(NamedTuple):
    """A mistake at one place of the code; ``occurrence`` is cosmic-ray's number of the place."""

    line: int
    operator: str
    occurrence: int


def main() -> None:
    """Draw mutants of all areas, and write the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=20, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=2025)
    parser.add_argument("--out", type=Path, default=HERE / "drawn.json")
    options = parser.parse_args()
    areas = tomllib.loads((HERE / "areas.toml").read_text())
    drawn = [
        {"area": area, **mutant}
        for area, about in areas.items()
        for mutant in draw(about["modules"], options.each, random.Random(f"{options.seed} {area}"))
    ]
    numbered = [{"number": number, **mutant} for number, mutant in enumerate(drawn, start=1)]
    options.out.write_text(json.dumps(numbered, indent=1) + "\n")


def draw(modules: list[str], number: int, chance: random.Random) -> list[dict[str, Any]]:
    """Draw ``number`` mutants from some modules, all lines with the same probability."""
    lines: dict[tuple[str, int], list[Mutation]] = {}
    for module in modules:
        for mutation in mutations((ROOT / module).read_text()):
            lines.setdefault((module, mutation.line), []).append(mutation)
    places = sorted(lines)
    chance.shuffle(places)
    drawn = []
    for module, line in places:
        code = (ROOT / module).read_text()
        mutation = chance.choice(lines[module, line])
        mutated = mutate_code(code, get_operator(mutation.operator)(), mutation.occurrence)
        if mutated is not None and _compiles(mutated):
            drawn.append({"module": module, "operator": mutation.operator, **_changed(code, mutated)})
        if len(drawn) == number:
            break
    return sorted(drawn, key=lambda mutant: (modules.index(mutant["module"]), mutant["line"]))


def mutations(code: str) -> Iterator[Mutation]:
    """Yield all mutations of a module that the draw may choose."""
    tree = get_ast(code)
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments():
            continue
        positions = (
            (node, start) for node in ast_nodes(tree) for start, _end in operator().mutation_positions(node)
        )
        for occurrence, (node, (line, _column)) in enumerate(positions):
            constant = "Number" in name and _is_constant_of_module(node)
            if not constant and not _is_annotation(node):
                yield Mutation(line, name, occurrence)


def _is_annotation(node: Any) -> bool:
    while (parent := node.parent) is not None:
        if parent.type == "tfpdef" and node is parent.children[-1]:
            return True
        if parent.type == "annassign" and node is parent.children[1]:
            return True
        if parent.type == "funcdef" and node is parent.annotation:
            return True
        node = parent
    return False


def _is_constant_of_module(node: Any) -> bool:
    while node.parent.type != "file_input":
        node = node.parent
    return node.type == "simple_stmt"


def _compiles(code: str) -> bool:
    try:
        compile(code, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _changed(code: str, mutated: str) -> dict[str, Any]:
    """Return the changed lines: number of the first one, old text and new text."""
    was, becomes = code.splitlines(), mutated.splitlines()
    matcher = difflib.SequenceMatcher(None, was, becomes, autojunk=False)
    changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]
    first, last = changes[0], changes[-1]
    return {"line": first[1] + 1, "was": was[first[1] : last[2]], "becomes": becomes[first[3] : last[4]]}


if __name__ == "__main__":
    main()
