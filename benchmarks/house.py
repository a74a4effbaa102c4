"""Counts the things that a reader of the sources has to hold in mind: files, lines, code, classes, prose.

Code is a file without blank lines, comments and docstrings. A riddle is a docstring that begins like an
answer to a question that nobody asked ("What ...", "Of ..."), and asks none itself.

    python benchmarks/house.py [ROOT]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = ("src", "transports", "algos", "envs")
SHORT: Final = 60
LONG: Final = 600
MOST_MODULES: Final = 15
RIDDLES: Final = ("What", "Whatever", "How", "Of", "That", "Those", "By", "From")
BLANK: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Module:
    """Counts of one source file; its path is from the root of the checkout."""

    path: Path
    lines: int
    code: int
    classes: int
    riddles: int

    @classmethod
    def read(cls, root: Path, path: Path) -> Module:
        """Count one file."""
        text = (root / path).read_text()
        tree = ast.parse(text)
        docstrings = list(docstrings_of(tree))
        prose = {line for one in docstrings for line in range(one.lineno, (one.end_lineno or 0) + 1)}
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        code = {
            line
            for token in tokens
            if token.type not in BLANK
            for line in range(token.start[0], token.end[0] + 1)
        }
        return cls(
            path,
            lines=len(text.splitlines()),
            code=len(code - prose),
            classes=sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree)),
            riddles=sum(is_riddle(str(one.value)) for one in docstrings),
        )


def docstrings_of(tree: ast.Module) -> Iterator[ast.Constant]:
    """Find the docstrings of a module, its classes and functions, and those below constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts = (one.value for one in node.body if isinstance(one, ast.Expr))
            yield from (one for one in texts if isinstance(one, ast.Constant) and isinstance(one.value, str))


def is_riddle(docstring: str) -> bool:
    """Whether the first sentence answers a question that nobody asked."""
    words = docstring.split()
    first = docstring.strip().partition("\n")[0]
    return bool(words) and words[0] in RIDDLES and not first.endswith("?")


def main() -> None:
    """Print the counts of a checkout, this one by default."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    paths = sorted(path.relative_to(root) for source in SOURCES for path in (root / source).rglob("*.py"))
    packages: dict[str, list[Module]] = {}
    for path in paths:
        packages.setdefault(path.parts[1], []).append(Module.read(root, path))
    found = [module for package in sorted(packages) for module in packages[package]]
    tests = [Module.read(root, path.relative_to(root)) for path in sorted((root / "tests").rglob("*.py"))]
    print(f"{'package':20} {'modules':>8} {'lines':>8} {'code':>8} {'classes':>8} {'riddles':>8}")
    keys = ("lines", "code", "classes", "riddles")
    for name, modules in [*sorted(packages.items()), ("all", found), ("tests", tests)]:
        count = sum(one.path.name != "__init__.py" for one in modules)
        numbers = [count, *(sum(getattr(one, key) for one in modules) for key in keys)]
        print(f"{name:20}" + "".join(f" {number:8,}" for number in numbers))
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    words = sum(len(page.read_text().split()) for page in pages)
    print(f"{'documents':20} {len(pages):8} pages, {words:,} words")
    short = [str(one.path) for one in found if one.lines < SHORT and one.path.name != "__init__.py"]
    print(f"\n{len(short)} files under {SHORT} lines: {', '.join(short)}")
    long = [f"{one.path} ({one.lines})" for one in found if one.lines > LONG]
    print(f"over {LONG} lines: {', '.join(long) or 'none'}")
    folders = Counter(one.path.parent for one in found if one.path.name != "__init__.py")
    crowded = [f"{folder} ({count})" for folder, count in folders.items() if count > MOST_MODULES]
    print(f"folders of more than {MOST_MODULES} modules: {', '.join(crowded) or 'none'}")


if __name__ == "__main__":
    main()
