"""``train`` and ``Run``: training from Python, and the results of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.config.source import KeyPath, flat, is_section
from tianji_cli.errors import RunFailed, TianjiError, UsageError, describe, errors_as
from tianji_cli.files.directories import temporary_directory
from tianji_cli.files.regular import read_json, read_toml
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory
from tianji_cli.launch.children import Child, python_command, supervised, wait_for_exit
from tianji_cli.telemetry.metrics import read_history

if TYPE_CHECKING:
    import pandas

END_S: Final = 60.0
"""Time limit of an interrupted training to save a checkpoint and end."""


class Run:
    """Results of a run, or of a running one so far; each access reads the files anew.

        run = tianji.Run("ppo_cartpole")              # the newest of that name
        run.metrics["returns.mean_100"]

    Args:
        run: a path, ``name/n``, or ``name`` for its newest run.
        out: directory in which to look for runs by name.

    Attributes:
        path: directory of the run.

    Raises:
        TianjiError: there is no such run.
    """

    def __init__(self, run: str | os.PathLike[str], out: str | os.PathLike[str] = DEFAULT_OUT) -> None:
        self._directory = RunDirectory.find(os.fspath(run), Path(out))
        self.path = self._directory.path

    def __fspath__(self) -> str:
        """Return the path of the run's directory."""
        return os.fspath(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config, section by section, as in ``config.toml``."""
        with errors_as(TianjiError, f"cannot read {self._directory.config}", OSError, ValueError):
            return read_toml(self._directory.config)

    @property
    def summary(self) -> dict[str, Any] | None:
        """Summary of the run, as in ``summary.json``; None before its end."""
        try:
            found: dict[str, Any] = read_json(self._directory.summary)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as cause:
            raise TianjiError(f"cannot read {self._directory.summary}: {describe(cause)}") from cause
        return found

    @property
    def metrics(self) -> dict[str, npt.NDArray[Any]]:
        """Columns ``[rows]`` of ``metrics.jsonl`` by name; tables have dotted names, as ``losses.entropy``.

        Numbers are float64, NaN where a row has none; counts that all rows have are int64; text is objects.
        A file of more than 2 GiB gives every second row, or third.
        """
        return _columns(self._history()[0])

    @property
    def evaluations(self) -> dict[str, npt.NDArray[Any]]:
        """Columns ``[evaluations]`` of evaluations during training, likewise; empty if there were none."""
        return _columns(self._history()[1])

    def _history(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Read snapshots and evaluations; none before the run has written any.

        Raises:
            TianjiError: the file is damaged, or cannot be read.
        """
        try:
            return read_history(self._directory.metrics)
        except FileNotFoundError:
            return [], []
        except (OSError, ValueError) as cause:
            raise TianjiError(f"cannot read {self._directory.metrics}: {describe(cause)}") from cause

    @property
    def frame(self) -> pandas.DataFrame:
        """The columns of ``metrics`` as a pandas DataFrame; pandas has to be installed.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas  # noqa: PLC0415 - most do without
        except ModuleNotFoundError as cause:
            raise UsageError(
                "Run.frame needs pandas: pip install pandas; Run.metrics does without"
            ) from cause
        return pandas.DataFrame(self.metrics)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Names of checkpoints for ``load``: ``best``, ``last``, and env steps of kept ones."""
        return self._directory.checkpoint_names


def train(
    config: str | os.PathLike[str],
    *,
    name: str | None = None,
    out: str | os.PathLike[str] = DEFAULT_OUT,
    init_from: str | os.PathLike[str] | None = None,
    quiet: bool = True,
    **sections: Mapping[str, Any],
) -> Run:
    """Train as ``tianji train CONFIG`` does, in separate processes, and wait for the end.

        run = tianji.train("configs/ppo_cartpole.toml", training={"learning_rate": 1e-3},
                           distribution={"actor": {"num": 2}})

    After an interruption (Ctrl-C) the training saves a checkpoint, and the interruption is raised again here.

    Args:
        config: a TOML file, or the name of a shipped one.
        name: name of the experiment, in place of the config's.
        out: directory of runs.
        init_from: a run, ``"RUN:CHECKPOINT"`` or a file of safetensors to begin with.
        quiet: show nothing; else show the command's output in this process's.
        sections: values in place of the config's, by section and key: ``experiment={"seed": 3}`` is
            ``--set experiment.seed=3``.

    Raises:
        UsageError: the config cannot be run, or TianJi is importing the module that calls this; RunFailed:
            the training failed. Both have the command's message.
    """
    _refuse_in_import()
    words = [os.fspath(config), "--out", os.fspath(out), *(["--name", name] if name else [])]
    words += ["--init-from", os.fspath(init_from)] if init_from is not None else []
    words += ["--quiet"] if quiet else []
    words += [word for setting in _settings((), sections) for word in ("--set", setting)]
    with temporary_directory() as place:
        result = place / "summary.json"
        command = python_command("tianji_cli", "train", *words, "--json", str(result))
        child = Child(command, stdout=subprocess.DEVNULL if quiet else None, keep_errors=quiet)
        with supervised([child], END_S):
            wait_for_exit([child], None)
            ended = child.wait()
        if ended.status != 0:
            error = UsageError if ended.status == UsageError.exit_status else RunFailed
            shown = f"{ended.last_words}; the command has said why above"
            raise error(ended.last_words.removeprefix("tianji: error: ") if quiet else shown)
        return Run(json.loads(result.read_text(encoding="utf-8"))["run"])


def _refuse_in_import() -> None:
    """Refuse a training that a module begins while TianJi imports it: each would begin another one.

    Raises:
        UsageError: names the module, and the guard that it needs.
    """
    module, frame = "", sys._getframe(1)
    while (caller := frame.f_back) is not None:
        frame, name = caller, caller.f_globals.get("__name__", "")
        if module and name.startswith("tianji_cli."):
            raise UsageError(
                f"TianJi imports {module!r} for what a config names in it, and it calls tianji.train() "
                'as it is imported, without end: call it under `if __name__ == "__main__":`'
            )
        if frame.f_code.co_name == "<module>":
            module = module or name


def _settings(at: KeyPath, values: Mapping[str, Any]) -> Iterator[str]:
    """Write values as arguments of ``--set``; tables that are sections themselves, key by key."""
    for key, value in values.items():
        path = (*at, key)
        if (not at or is_section(path)) and isinstance(value, Mapping):
            yield from _settings(path, value)
        else:
            yield f"{'.'.join(path)}={_as_toml(value)}"


def _as_toml(value: Any) -> str:
    """Write a value on one line, as TOML.

    Raises:
        UsageError: TOML has no such value.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{json.dumps(str(key))} = {_as_toml(one)}" for key, one in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_as_toml, value)) + "]"
    if isinstance(value, str | os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, bool | int | float):
        return str(value).lower()
    raise UsageError(f"a config has no {type(value).__name__} such as {value!r}; TOML's values are right")


def _columns(read: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    rows = [{name: value for name, value in flat(row) if not isinstance(value, list)} for row in read]
    names = dict.fromkeys(name for row in rows for name in row)
    # A table that is null in some rows has columns of its own.
    tables = {name[:end] for name in names for end in range(len(name)) if name[end] == "."}
    tables |= {name for row in read for name, value in row.items() if isinstance(value, list)}
    return {name: _column([row.get(name) for row in rows]) for name in names if name not in tables}


def _column(values: list[Any]) -> npt.NDArray[Any]:
    if any(isinstance(value, str) for value in values):
        return np.array(values, object)
    if all(isinstance(value, bool) for value in values):
        return np.array(values, np.bool_)
    if all(type(value) is int for value in values):
        return np.array(values, np.int64)
    return np.array([np.nan if value is None else value for value in values], np.float64)
