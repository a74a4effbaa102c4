"""The `tianji` command: reads the command line, calls one function, turns errors into exit statuses.

A command's module is imported only when that command runs: `tianji --help` costs no more than typer.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import resource
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pkgutil import resolve_name
from shutil import get_terminal_size
from textwrap import wrap
from traceback import walk_tb
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from tianji_cli.commands import bench, declared
from tianji_cli.commands.profile import profile
from tianji_cli.config.trust import TRUST
from tianji_cli.errors import ConfigError, TianjiError, UsageError, printable
from tianji_cli.signals import INTERRUPTED, Interruption

MOST_OF_LINE: Final = 4096
"""Maximum characters of a line of a message: as many as a path may have."""

_FUNCTIONS: Final[dict[tuple[str | None, str | None], tuple[str, str]]] = {}
"""Module and name of a command's function, and the command's help, by its group and name."""


_SET: Final = "keys of a config are set as in --set training.learning_rate=0.001"


class _Commands(TyperGroup):
    """Imports the function of a command, which declares its options, only when that command runs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and further words; click raises an error for an unknown name."""
        name, command, rest = super().resolve_command(ctx, args)
        if (self.name, name) in _FUNCTIONS:
            function, help_ = _FUNCTIONS[self.name, name]
            own = typer.Typer(add_completion=False)
            # A shell that completes a word needs the parameters quickly, and calls nothing.
            called = (
                declared.declared(function)
                if ctx.resilient_parsing
                else resolve_name(f"tianji_cli.commands.{function}")
            )
            own.command(name=name, help=help_, epilog=_example(called))(called)
            command = typer.main.get_command(own)
            options = {option for one in command.params for option in one.opts}
            known = {"--", "--help", *options}
            asked = (word.partition("=")[0] for word in rest if word.startswith("--"))
            if "--set" in options and (wrong := next((one for one in asked if one not in known), None)):
                near = "".join(f" {one} is one;" for one in options if one.startswith(wrong))
                raise UsageError(f"no such option: {wrong};{near} {_SET}")
        return name, command, rest


def _example(function: Any) -> str | None:
    """Read the example in a command's docstring, for its help."""
    found = re.search(r"Example: .+", function.__doc__ or "")
    return found and found[0]


def _exit(status: int | None, **_options: object) -> None:
    raise typer.Exit(status or 0)


app = typer.Typer(
    name="tianji",
    cls=_Commands,
    result_callback=_exit,
    help="Distributed reinforcement learning with relaxed assignment dependencies.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
launch = typer.Typer(name="launch", cls=_Commands, help="Start a job on a cluster.", no_args_is_help=True)
app.add_typer(launch)
config = typer.Typer(
    name="config", cls=_Commands, help="Look at configs, or what keys they have.", no_args_is_help=True
)
app.add_typer(config)
app.add_typer(bench.app, name="bench")


def _add(name: str, function: str, help_: str, to: typer.Typer = app) -> None:
    """Add a command with its name and its line in the help; ``function`` returns the exit status."""
    _FUNCTIONS[to.info.name, name] = function, help_
    to.command(name=name, help=help_)(lambda: None)


@app.callback(invoke_without_command=True)
def common(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code that other users may change, and use places of theirs.")
    ] = False,
) -> None:
    """Distributed reinforcement learning with relaxed assignment dependencies."""
    del debug, trust  # Declared for the help's sake; main() takes them out wherever they stand.
    if show_version:
        typer.echo(f"tianji {version('tianji')}")
        raise typer.Exit


_add("new", "new:new", "Make a project to start from: an environment, a config, a test.")
_add("train", "train:train", "Train from a config, or go on with an earlier run.")
_add("sweep", "sweep:sweep", "Search for good values of a config's keys, by training.")
_add("eval", "eval:evaluate", "Play greedy episodes with a policy that a run has saved.")
_add("export", "export:export", "Write a policy into a file that acts without tianji, as ONNX.")
_add("watch", "watch:watch", "Show a run that is going on, until it is over, and then its result.")
_add("trace", "trace:trace", "Trace a run that is going on: a timeline of all its roles.")
_add("join", "join:join", "Take part in a job of another host, until it is over.")
app.command()(profile)
_add("list", "list:list_things", "List what a config can name; the configs that there are; runs.")
_add("show", "runs:show", "Show what a run is, how it stands and what it has left.")
_add("logs", "runs:logs", "Print what the processes of a run have written.")
_add("stop", "runs:stop", "Ask a run to save a checkpoint and end, and wait for it.")
_add("rm", "runs:rm", "Remove runs.")
_add("compare", "compare:compare", "Compare runs: curves, final returns, times, with intervals over seeds.")
_add("report", "report:report", "Write a page on runs: one HTML file, to be read without a network.")
_add("cp", "cp:cp", "Copy a config that comes with tianji, to change it.")
_add("check", "check:check", "Look for what would go wrong with an environment or a config, before it does.")
_add("doctor", "doctor:examine", "Look at this machine and say what would keep a training from running.")
_add("show", "config:show", "Print a config with every key, and where each value comes from.", config)
_add("diff", "config:diff", "Print what two configs or runs do not have in common.", config)
_add("schema", "config:schema", "Print the keys of a config as JSON Schema, for an editor.", config)
_add("slurm", "launch:slurm", "Write a batch script into a new run directory, and submit it.", launch)
_add("ray", "launch:ray", "Train here, with hosts of a Ray cluster.", launch)
_add("k8s", "launch:k8s", "Write the manifests of a job for Kubernetes, and apply them.", launch)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; the entry point of the `tianji` script."""
    # Every process of a job has to sum in the same order, or runs would not repeat themselves: workers set
    # their own numbers of threads, and libraries that read these variables at import get one thread.
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    # matplotlib's remarks on its cache would disturb a display.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    _raise_descriptor_limit()
    _obey_locale()
    # A run executes and trusts the files in its directories: only its user may write there.
    os.umask(os.umask(0) | 0o022)
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Every command takes --debug and --trust, before or after its name; child commands inherit --trust.
    if "--trust" in words:
        os.environ[TRUST] = "1"
    rest = [word for word in words if word not in {"--debug", "--trust"}]
    sys.exit(_status_of(rest, debug="--debug" in words))


def _obey_locale() -> None:
    """Write to a terminal in ASCII if the user's locale is C; Python would write UTF-8 all the same.

    Python also replaces C as LC_CTYPE by C.UTF-8 in the environment, so LC_CTYPE alone says nothing. A system
    without any locale, such as a container, most often shows UTF-8.
    """
    wanted = {name: os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")}
    if wanted["LC_CTYPE"] in {"C.UTF-8", "C.utf8", "UTF-8"}:
        wanted["LC_CTYPE"] = ""
    locale = next(filter(None, wanted.values()), "")
    if locale not in {"C", "POSIX"} or {"PYTHONUTF8", "PYTHONIOENCODING"} & os.environ.keys():
        return
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.reconfigure(encoding="ascii", errors="backslashreplace")


def _raise_descriptor_limit() -> None:
    """Let this process and its children open as many files and connections as the system grants.

    The soft limit is 1,024 on most systems, for the sake of ``select``, which tianji never calls with a
    descriptor beyond that.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # A system may refuse; then the soft limit counts.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _status_of(arguments: Sequence[str], *, debug: bool) -> int:
    """Run a command, and turn its exceptions into an exit status and a message of a few lines."""
    if "_TIANJI_COMPLETE" in os.environ:
        return _completed()
    try:
        app(args=arguments, prog_name="tianji")
    except TianjiError as error:
        if debug:
            raise
        # A config's problems begin with their file, like a compiler's.
        _complain(str(error) if isinstance(error, ConfigError) else f"tianji: error: {error}")
        return error.exit_status
    except (Interruption, KeyboardInterrupt):
        _complain("tianji: interrupted")
        return INTERRUPTED
    except SystemExit as ended:
        return _status_left(ended)
    except Exception as error:
        if debug:
            raise
        _complain(f"tianji: error: {_cause(error)}\n(--debug shows where it came from)")
        return 1
    return 0


def _status_left(ended: SystemExit) -> int:
    """Pass on the exit status of typer or rich (a closed pipe); 1, and a message, if another module exits."""
    *_, (frame, line) = walk_tb(ended.__traceback__)
    if str(frame.f_globals.get("__name__")).startswith(("click.", "rich.", "typer.", "tianji_")):
        return ended.code if isinstance(ended.code, int) else 1
    where = f"{frame.f_code.co_filename}:{line}"
    _complain(f"tianji: error: sys.exit({ended.code!r}) in {where} has ended the command")
    return 1


def _cause(error: Exception) -> str:
    """Describe the error that ended a command; names standard output if that cannot be written."""
    from tianji_cli.conditions import explained  # noqa: PLC0415 - `--help` does without

    if (
        isinstance(error, OSError)
        and error.filename is None
        and error.errno in {errno.ENOSPC, errno.EIO, errno.EPIPE}
    ):
        try:
            sys.stdout.write("\n")  # The text that failed has left the buffer: flush a new one.
            sys.stdout.flush()
        except OSError as cause:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # The interpreter flushes it, too.
            return f"cannot write to standard output: {cause.strerror}"
    return explained(error)


def _completed() -> int:
    """Complete a word for a shell, and print no error into its line; typer reads the word from variables."""
    try:
        app(prog_name="tianji")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except (Exception, Interruption, KeyboardInterrupt):  # noqa: BLE001
        return 1
    return 0


def _complain(message: str) -> None:
    """Write to stderr: on a terminal long lines break between words, in a pipe they stay whole."""
    # A foreign file may have very long lines; people read shorter ones.
    message = "\n".join(line[:MOST_OF_LINE] for line in printable(message).split("\n"))
    if sys.stderr.isatty():
        width = max(20, get_terminal_size().columns)
        lines = [
            wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in message.split("\n")
        ]
        message = "\n".join("\n".join(parts) for parts in lines)
    sys.stderr.write(f"{message}\n")


if __name__ == "__main__":
    main()
