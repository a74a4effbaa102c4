"""Reads the parameters of a command from its source, for completion in a shell; imports nothing heavy."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tianji_cli.commands import completion, options

_KEYWORDS: Final = {"metavar", "help", "autocompletion"}
"""Keywords of typer that matter to a shell."""


def declared(function: str) -> Callable[..., None]:
    """Make a function that has the parameters of a command, and does nothing.

    Its types tell a shell only whether a word follows, and whether several may.

    Args:
        function: module and name, such as ``train:train``.
    """
    module, _, name = function.partition(":")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_bytes())
    named = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    positional = found.args.args
    defaults = [None] * (len(positional) - len(found.args.defaults)) + found.args.defaults
    pairs = [*zip(positional, defaults, strict=True)]
    pairs += zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)

    def command(**_options: object) -> None:
        """Do nothing."""

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                one.arg,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is None else _literal(default),
                annotation=_annotation(one.annotation, named),
            )
            for one, default in pairs
        ]
    )
    return command


def _annotation(node: ast.expr | None, named: Mapping[str, ast.expr]) -> Any:
    """Read a parameter's type, and its options for typer."""
    match node:
        case ast.Name(id=name) if name in named:
            return _annotation(named[name], named)
        case ast.Name(id=name) if hasattr(options, name):
            return getattr(options, name)
        case ast.Subscript(
            value=ast.Name(id="Annotated"),
            slice=ast.Tuple(elts=[of, ast.Call(func=ast.Attribute(attr=kind)) as call]),
        ):
            keywords = {one.arg: _literal(one.value) for one in call.keywords if one.arg in _KEYWORDS}
            return Annotated[
                _annotation(of, named), getattr(typer, kind)(*map(_literal, call.args), **keywords)
            ]
    written = "" if node is None else ast.unparse(node)
    return bool if written == "bool" else list[str] if written.startswith("list[") else str


def _literal(node: ast.expr) -> Any:
    """Read a literal value, or a function of ``completion`` by its name; None for any other expression."""
    if isinstance(node, ast.Name):
        return getattr(completion, node.id, None)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
