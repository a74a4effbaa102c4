"""Reads the program's own command line, for the reference, and parses the commands of pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import typer

from tianji_cli.main import app


def command_of(words: Sequence[str]) -> tuple[Any, Any, list[str]]:
    """Return the command that words name, the context above it, and the remaining words.

    Raises:
        typer's UsageError: the command does not exist.
    """
    command: Any = typer.main.get_command(app)
    above, rest, name = None, list(words), "tianji"
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, rest or ["--help"], parent=above, resilient_parsing=not rest)
        rest = [*context._protected_args, *context.args]
        if not rest:
            break
        above = context
        name, command, rest = command.resolve_command(context, rest)
    return command, above, rest


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Parse a command line, without its first word, as the program does, but call nothing.

    Raises:
        typer's UsageError: the program would refuse the command line.
        typer.Exit: the command line has ``--help`` or the like.
    """
    command, above, rest = command_of([word for word in words if word != "--debug"])
    parameters: dict[str, Any] = command.make_context(command.name, rest, parent=above).params
    return parameters


def all_commands() -> Iterator[tuple[str, Any, Any]]:
    """Yield the commands in the order of the help: full name, command, and the context above it."""
    top: Any = typer.main.get_command(app)
    for name, command in top.commands.items():
        if not hasattr(command, "commands"):
            found, above, _ = command_of([name, "-"])
            yield name, found, above
            continue
        for below in command.commands:
            found, above, _ = command_of([name, below, "-"])
            yield f"{name} {below}", found, above
