"""Who may import whom, and what no source file does."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "tianji": ROOT / "src/tianji",
    "tianji_cli": ROOT / "src/tianji_cli",
    "tianji_lab": ROOT / "src/tianji_lab",
    "tianji_plugins": ROOT / "src/tianji_plugins",
    "tianji_transports": ROOT / "transports/tianji_transports",
    "tianji_algos": ROOT / "algos/tianji_algos",
    "tianji_envs": ROOT / "envs/tianji_envs",
}
BASE = {"plan", "wire", "files", "config"}
BELOW = {
    "commands": {"runs", "root", "launch", "worker", "telemetry", *BASE},
    "runs": {"launch", "telemetry", *BASE},
    "root": {"launch", "telemetry", *BASE},
    "launch": {"worker", *BASE},
    "worker": {"roles", *BASE},
    "roles": BASE,
    "telemetry": BASE,
    "plan": {"wire", "files", "config"},
    "wire": {"files", "config"},
    "files": {"config"},
    "config": set(),
}
"""The rooms that each room of ``tianji_cli`` may import, from top to bottom."""
EXCEPTIONS = {"commands/eval.py": {"roles"}}
"""`tianji eval` plays by itself, without a worker: the evaluator's functions."""
SOURCES = [path for folder in FOLDERS.values() for path in sorted(folder.rglob("*.py"))]


def trees(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(tree: ast.AST) -> set[str]:
    """Every module that a file imports, at its top, inside functions and by name."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and str(node.value).startswith("tianji_"):
            found.add(str(node.value).partition(":")[0])  # Given to import_module.
    return found


def imports_of(folder: Path) -> set[str]:
    return {name for _, tree in trees(folder) for name in imported(tree)}


def rooms_of(names: set[str]) -> set[str]:
    """The rooms of ``tianji_cli`` among module names, such as ``config``."""
    return {name.split(".")[1] for name in names if name.startswith("tianji_cli.")} & set(BELOW)


def test_the_walk_sees_imports_wherever_they_are() -> None:
    source = "def f():\n    from tianji_envs import core\nimport tianji_algos.core\nload('tianji_cli.x:Y')"
    seen = imported(ast.parse(source))
    assert {"tianji_envs.core", "tianji_algos.core", "tianji_cli.x"} <= seen
    assert len(SOURCES) > 50


@pytest.mark.parametrize("package", ["tianji_transports", "tianji_algos", "tianji_envs", "tianji_plugins"])
def test_the_lower_packages_import_neither_the_command_nor_one_another(package: str) -> None:
    others = set(FOLDERS) - {package, "tianji_plugins"}
    assert {name for name in imports_of(FOLDERS[package]) if name.split(".")[0] in others} == set()


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_those_below_it(room: str) -> None:
    for path, tree in trees(FOLDERS["tianji_cli"] / room):
        seen = rooms_of(imported(tree)) - {room} - BELOW[room]
        assert seen <= EXCEPTIONS.get(f"{room}/{path.name}", set()), path


def test_the_table_names_every_room_and_has_no_circle() -> None:
    folders = {path.parent.name for path in FOLDERS["tianji_cli"].glob("*/__init__.py")}
    assert folders == set(BELOW)
    above: set[str] = set()
    for room, below in BELOW.items():
        assert not below & (above | {room}), room
        above.add(room)


def module_of(path: Path, folder: Path) -> str:
    return ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")


def graph_of(folders: Iterable[Path]) -> dict[str, set[str]]:
    """Each module of some packages, and those that it imports anywhere: for types and in functions, too."""
    trees_by_name = {module_of(path, folder): tree for folder in folders for path, tree in trees(folder)}
    graph: dict[str, set[str]] = {}
    for module, tree in trees_by_name.items():
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= inner & trees_by_name.keys() or {node.module}
        graph[module] = names & trees_by_name.keys() - {module}
    return graph


def test_no_modules_import_one_another_in_a_circle() -> None:
    graphlib.TopologicalSorter(graph_of(FOLDERS.values())).prepare()  # Raises CycleError.


def test_no_folders_of_the_algorithms_import_one_another_in_a_circle() -> None:
    graph = graph_of([FOLDERS["tianji_algos"]])
    arrows = {
        (module.split(".")[1], name.split(".")[1])
        for module, names in graph.items()
        for name in names
        if module.count(".") > 1 and name.count(".") > 1
    }
    folders: dict[str, set[str]] = {}
    for above, below in arrows:
        if above != below:
            folders.setdefault(above, set()).add(below)
    graphlib.TopologicalSorter(folders).prepare()  # Raises CycleError.
    kernels = {module for module in graph if module.startswith("tianji_algos.fast_cpu.")}
    found = [module for module, names in graph.items() if module not in kernels and names & kernels]
    assert not found, "kernels are found by their names"


def test_what_measures_is_known_to_commands_alone() -> None:
    importers = {
        path.relative_to(FOLDERS["tianji_cli"]).parts[0]
        for path, tree in trees(FOLDERS["tianji_cli"])
        if any(name.split(".")[0] == "tianji_lab" for name in imported(tree))
    }
    assert importers <= {"commands"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("tianji", ("tianji_lab", "torch", "gymnasium")),
        ("tianji_cli.main", ("tianji_lab", "torch", "gymnasium")),
        ("tianji_cli.commands.train", ("tianji_lab", "torch", "gymnasium")),
        ("tianji_cli.root.session", ("tianji_cli.roles", "tianji_cli.worker", "torch", "gymnasium")),
    ],
)
def test_an_import_does_without_what_is_slow_or_above(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    ).stdout.split()
    assert not [name for name in loaded if name in absent or name.startswith(tuple(f"{a}." for a in absent))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_file_unpickles_swallows_everything_or_exits_at_once(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {"pickle", "cPickle", "dill", "cloudpickle", "marshal"} & imported(tree)
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"line {node.lineno}"
        assert not (isinstance(node, ast.Attribute) and node.attr == "_exit"), f"line {node.lineno}"


DOCUMENTS = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
WRITTEN_BY_READERS = {
    "act.py", "child.py", "choosy.py", "counting.py", "my_grid.py", "my_networks.py", "plain_q.py",
    "scaling.py", "squares.py", "template_env.py", "test_scaling.py",
}  # fmt: skip
OF_OTHERS = {"cleanrl/dqn.py", "cleanrl/ppo.py", "cleanrl/cleanrl/ppo.py", "scripts/train.py"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_modules_that_exist(document: Path) -> None:
    text = re.sub(
        "^:::.*", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE
    )  # Those mkdocs finds.
    folders = [*FOLDERS.values(), *(ROOT / other for other in ("benchmarks", "docs", "tests"))]
    paths = [f"/{path.relative_to(ROOT)}" for folder in folders for path in folder.rglob("*.py")]
    files = set(re.findall(r"\w[\w/]*\.py\b", text)) - WRITTEN_BY_READERS - OF_OTHERS
    assert not [file for file in files if not any(path.endswith(f"/{file}") for path in paths)]
    modules = {name.replace(".", "/") for name in re.findall(r"\btianji_\w+(?:\.[a-z_]+)+", text)}
    assert not [one for one in modules if not any(f"/{one}." in path or f"/{one}/" in path for path in paths)]
