"""Nothing that arrives is ever turned into code or into objects of its own choosing."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("src", "algos", "envs", "transports")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
METHODS = {"recv_pyobj", "send_pyobj", "recv_serialized", "allow_pickle"}
CALLS = {"eval", "exec", "__import__"}


def unsafe(tree: ast.AST) -> list[str]:
    """Expressions of a module that could run or build an object that a stranger has chosen."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [name for name in names if name.split(".")[0] in MODULES]
        elif isinstance(node, ast.Attribute):
            of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
            if node.attr in METHODS or (of_torch and node.attr in {"load", "save"}):
                found.append(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            found.append(node.func.id)
        elif isinstance(node, ast.keyword) and node.arg in METHODS:
            found.append(node.arg)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_file_unpickles_or_evaluates_anything(path: Path) -> None:
    assert unsafe(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "import torch\ntorch.load('x')",
        "socket.recv_pyobj()",
        "eval('1')",
        "np.load('x', allow_pickle=True)",
    ],
)
def test_what_is_unsafe_is_found(source: str) -> None:
    assert unsafe(ast.parse(source))
    assert not unsafe(ast.parse("model.eval()\nfrom json import loads"))
