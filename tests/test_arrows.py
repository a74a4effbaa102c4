"""Who may import whom, and what no source file does. Read from the sources: nothing is run."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "tianji_cli": ROOT / "src/tianji_cli",
    "tianji_transports": ROOT / "transports/tianji_transports",
    "tianji_algos": ROOT / "algos/tianji_algos",
    "tianji_envs": ROOT / "envs/tianji_envs",
}
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


def parts_of(names: set[str]) -> set[str]:
    """The parts of ``tianji_cli`` among module names, such as ``config``."""
    return {name.split(".")[1] for name in names if name.startswith("tianji_cli.")}


def test_the_walk_sees_imports_wherever_they_are() -> None:
    source = "def f():\n    from tianji_envs import core\nimport tianji_algos.core\nload('tianji_cli.x:Y')"
    seen = imported(ast.parse(source))
    assert {"tianji_envs.core", "tianji_algos.core", "tianji_cli.x"} <= seen
    assert len(SOURCES) > 50


@pytest.mark.parametrize("package", ["tianji_transports", "tianji_algos", "tianji_envs"])
def test_the_lower_packages_import_neither_the_command_nor_one_another(package: str) -> None:
    others = set(FOLDERS) - {package}
    assert {name for name in imports_of(FOLDERS[package]) if name.split(".")[0] in others} == set()


@pytest.mark.parametrize(("part", "below"), [("config", {"data"}), ("data", set()), ("throughput", set())])
def test_config_data_and_throughput_are_at_the_bottom(part: str, below: set[str]) -> None:
    allowed = {part, "errors", *below}
    assert parts_of(imports_of(FOLDERS["tianji_cli"] / part)) <= allowed


def test_commands_are_at_the_top() -> None:
    importers = {
        path.relative_to(FOLDERS["tianji_cli"]).parts[0]
        for path, tree in trees(FOLDERS["tianji_cli"])
        if "commands" in parts_of(imported(tree))
    }
    assert importers <= {"main.py", "commands"}


@pytest.mark.parametrize(
    ("part", "above"),
    [("bench", {"profiling", "scaling"}), ("profiling", {"scaling"}), ("scaling", set())],
)
def test_what_measures_is_imported_by_commands_and_by_what_measures_more(part: str, above: set[str]) -> None:
    importers = {
        path.relative_to(FOLDERS["tianji_cli"]).parts[0]
        for path, tree in trees(FOLDERS["tianji_cli"])
        if part in parts_of(imported(tree))
    }
    assert importers <= {"commands", part, *above}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_file_is_longer_than_600_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_file_unpickles_swallows_everything_or_exits_at_once(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {"pickle", "cPickle", "dill", "cloudpickle", "marshal"} & imported(tree)
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"line {node.lineno}"
        assert not (isinstance(node, ast.Attribute) and node.attr == "_exit"), f"line {node.lineno}"
