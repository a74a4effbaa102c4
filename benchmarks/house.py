"""Counts files and lines of each package, and names large folders and very short or long files.

python benchmarks/house.py [ROOT]
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Final

SOURCES: Final = ("src", "transports", "algos", "envs")
SHORT: Final = 60
LONG: Final = 600
MOST_MODULES: Final = 15


def modules(root: Path) -> list[tuple[Path, int]]:
    """All source files with their numbers of lines, by path from the root."""
    paths = sorted(path for source in SOURCES for path in (root / source).rglob("*.py"))
    return [(path.relative_to(root), len(path.read_text().splitlines())) for path in paths]


def main() -> None:
    """Print the counts of a checkout, this one by default."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    found = modules(root)
    files, lines = Counter[str](), Counter[str]()
    folders = Counter(path.parent for path, _ in found if path.name != "__init__.py")
    for path, length in found:
        files[path.parts[1]] += 1
        lines[path.parts[1]] += length
    print(f"{'package':20} {'files':>6} {'lines':>8}")
    for package in sorted(files):
        print(f"{package:20} {files[package]:6} {lines[package]:8,}")
    print(f"{'all':20} {sum(files.values()):6} {sum(lines.values()):8,}")
    tests = list((root / "tests").rglob("*.py"))
    print(f"{'tests':20} {len(tests):6} {sum(len(path.read_text().splitlines()) for path in tests):8,}")
    short = [path for path, length in found if length < SHORT and path.name != "__init__.py"]
    print(f"\n{len(short)} files under {SHORT} lines: {', '.join(map(str, short))}")
    print(f"over {LONG} lines: {', '.join(f'{path} ({n})' for path, n in found if n > LONG) or 'none'}")
    crowded = [f"{folder} ({count})" for folder, count in folders.items() if count > MOST_MODULES]
    print(f"folders of more than {MOST_MODULES} modules: {', '.join(crowded) or 'none'}")


if __name__ == "__main__":
    main()
