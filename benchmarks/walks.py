"""Counts the files of the project that three walks through its code pass, by tracing real trainings.

python benchmarks/walks.py [--tree PATH] [--walk sample|key|death]... [--json PATH]

Works on any checkout, also an old one: the script names only the project's modules `tianji_cli` and
`tianji_cli.config`. The training is an ordinary `tianji train` with one of the checkout's configs, except
that each of its Python processes runs this script first, which begins to trace and then runs the requested
module. A file counts if it lies in `src`, `transports`, `algos` or `envs` and a function or a line of it is
on the walk:

- **sample**: `env.step` to the gradient and back as parameters (`ppo_cartpole`, shm, in `sync` mode, in
  which all cycles are alike). Counts the functions that run in *each* of 20 cycles of the actor, from one
  newer policy to the next, and in *each* of 20 cycles of the learner, from one publication to the next.
  Leaves out functions that run once or now and then (building, reports, checkpoints); includes other work of
  a role between two fragments or rollouts, such as a look at the control channel.
- **key**: `distribution.buffer.priority_updates` to the line that obeys it (`dqn_cartpole_apex`). Counts the
  functions that hold the key or its value (as text, as a document, as a record of the config, or as the
  result of a comparison; in a variable or in an attribute of `self`) and are on the call stack when the key
  is parsed, checked, put into a record, sent to another process, received there, read, compared or tested:
  in the root, the fork server and the process that obeys. The file that declares the key counts, too.
- **death**: a killed actor to the line that the user reads (`ppo_cartpole`). Counts the functions of the root
  and its fork server with a line that ran for the first time between the SIGKILL and the line on stderr, and
  the functions that received its text.

For each file the script prints the functions on the walk, each with its line and the reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

SOURCES: Final = ("src", "transports", "algos", "envs")
WARM_UP: Final = 5
CYCLES: Final = 20
WARM_UP_S: Final = 3.0
"""Seconds after a training's first line until all code that runs now and then has run once."""
KEY: Final = "priority_updates"
DEAD: Final = "SIGKILL"
"""Word in the line that tells the user of the death."""
TREE, WALK, OUT, PYTHON = "WALKS_TREE", "WALKS_WALK", "WALKS_OUT", "WALKS_PYTHON"
"""Environment variables that configure the traced processes."""
LIMIT_S: Final = 300.0

PASSING: Final = {
    "loads": "parsed",
    "__init__": "recorded",
    "model_validate": "checked",
    "model_validate_json": "checked",
    "model_dump_json": "sent",
    "validate_json": "received",
}
"""Functions of tomllib and pydantic, with the word for the key's step through each."""

Record = dict[str, Any]


# In the traced processes.


class Recorder:
    """Appends records of this process, each a line of JSON, to a file named by the process id."""

    def __init__(self) -> None:
        tree = Path(os.environ[TREE])
        self.out = Path(os.environ[OUT])
        self._roots = tuple(f"{tree / source}{os.sep}" for source in SOURCES)
        self._skip = len(f"{tree}{os.sep}")

    def is_project(self, code: CodeType) -> bool:
        """Whether a function belongs to the project."""
        return code.co_filename.startswith(self._roots)

    def write(self, records: Iterable[Record]) -> None:
        """Append records at once, since a process may be killed at any time."""
        with (self.out / f"{os.getpid()}.jsonl").open("a") as file:
            file.writelines(f"{json.dumps(record)}\n" for record in records)

    def place(self, how: str, code: CodeType, line: int = 0) -> Record:
        """Make a record of a function, or of a line of it."""
        return {
            "file": code.co_filename[self._skip :],
            "function": code.co_qualname,
            "line": line or code.co_firstlineno,
            "how": how,
            "process": os.getpid(),
            "parent": os.getppid(),
            "at": time.monotonic(),
        }


def record_cycles(recorder: Recorder) -> None:
    """Record the functions that run in each cycle of an actor or a learner.

    A cycle ends when the endpoint returns a newer policy, or has published one.
    """
    cycles: list[list[CodeType]] = []
    begun: dict[CodeType, None] = {}
    stepped: dict[CodeType, None] = {}
    "Functions of the cycle since the first one of an environment."
    past = 0

    def trace(frame: FrameType, event: str, value: object) -> None:
        nonlocal past
        code, caller = frame.f_code, frame.f_back
        if event == "call":
            if recorder.is_project(code):
                into = stepped if stepped or "tianji_envs" in code.co_filename else begun
                if caller is not None and recorder.is_project(caller.f_code):
                    into.setdefault(caller.f_code)
                into.setdefault(code)
            return
        if event != "return" or "tianji_transports" not in code.co_filename or caller is None:
            return
        publishes = code.co_name == "publish"
        adopts = code.co_name == "latest" and value is not None
        if not (publishes or adopts) or "tianji_transports" in caller.f_code.co_filename:
            return
        past += 1
        if past > WARM_UP:
            cycles.append([*stepped, *(one for one in begun if one not in stepped)])
        begun.clear()
        stepped.clear()
        if len(cycles) == CYCLES:
            sys.setprofile(None)
            always = set[CodeType].intersection(*map(set, cycles))
            role = "learner" if publishes else "actor"
            recorder.write(recorder.place(role, code) for code in cycles[0] if code in always)

    sys.setprofile(trace)


class Compared:
    """Result of a comparison, True or False, that reports the code that tests it."""

    def __init__(self, truth: bool, tell: Callable[[str, FrameType | None], None]) -> None:
        self._truth, self._tell = truth, tell

    def __bool__(self) -> bool:
        self._tell("tested", sys._getframe(1))
        return self._truth


class Followed(str):
    """The key's value, which reports the code that compares it."""

    __slots__ = ("tell",)
    __hash__ = str.__hash__
    tell: Callable[[str, FrameType | None], None]

    def __eq__(self, other: object) -> Any:
        self.tell("compared", sys._getframe(1))
        return Compared(str(self) == other, self.tell)

    def __ne__(self, other: object) -> Any:
        self.tell("compared", sys._getframe(1))
        return Compared(str(self) != other, self.tell)


def record_key(recorder: Recorder) -> None:
    """Record the functions that hold the key on the call stack when it is read, checked or compared."""
    import pydantic  # noqa: PLC0415 - only in traced processes; the process that counts needs no package

    package = importlib.import_module("tianji_cli.config")
    modules = [
        importlib.import_module(f"{package.__name__}.{m.name}")
        for m in pkgutil.iter_modules(package.__path__)
    ]
    section = next(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, pydantic.BaseModel) and KEY in value.model_fields
    )
    libraries = tuple(str(Path(str(module.__file__)).parent) for module in (pydantic, tomllib))
    declared = Path(inspect.getfile(section)).relative_to(os.environ[TREE])
    told = set[tuple[str, CodeType, int]]()

    def tell(how: str, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            if (
                recorder.is_project(frame.f_code)
                and (how, frame.f_code, frame.f_lineno) not in told
                and holds(frame)
            ):
                told.add((how, frame.f_code, frame.f_lineno))
                stack.append(recorder.place(how, frame.f_code, frame.f_lineno))
            frame = frame.f_back
        if stack:
            recorder.write(reversed(stack))

    def holds(frame: FrameType) -> bool:
        own = frame.f_locals.get("self")
        return any(map(is_or_has_key, frame.f_locals.values())) or any(map(is_or_has_key, attributes(own)))

    def is_or_has_key(value: object, depth: int = 5) -> bool:
        kind = type(value)
        if issubclass(kind, (Followed, Compared, section)):
            return True
        if issubclass(kind, (str, bytes)):
            return KEY in str(value)
        if depth == 0:
            return False
        parts: Iterable[object] = ()
        if isinstance(value, dict):
            parts = [*value, *value.values()]
        elif issubclass(kind, pydantic.BaseModel) or dataclasses.is_dataclass(kind):
            parts = attributes(value)
        return any(is_or_has_key(part, depth - 1) for part in parts)

    def read(self: object, name: str) -> object:
        value = object.__getattribute__(self, name)
        if name != KEY:
            return value
        tell("read", sys._getframe(1))
        followed = Followed(value)
        followed.tell = tell
        return followed

    def trace(frame: FrameType, event: str, _value: object) -> None:
        code = frame.f_code
        passes = event == "call" and code.co_name in PASSING and code.co_filename.startswith(libraries)
        if passes and holds(frame):
            tell(PASSING[code.co_name], frame)

    place = recorder.place("declared", read.__code__, inspect.getsourcelines(section)[1])
    recorder.write([{**place, "file": str(declared), "function": section.__qualname__}])
    section.__getattribute__ = read  # type: ignore[method-assign]
    sys.setprofile(trace)


def attributes(value: object) -> list[object]:
    """Values of an object's attributes, read without calling the object's code."""
    try:
        return list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return []


def record_lines(recorder: Recorder) -> None:
    """Record the first run of each line of root and fork server, and functions that get a death's text."""
    seen = set[tuple[CodeType, int]]()
    given = set[CodeType]()

    def trace(frame: FrameType, event: str, _value: object) -> Any:
        code = frame.f_code
        if not recorder.is_project(code):
            return None
        if event == "line" and (code, frame.f_lineno) not in seen:
            seen.add((code, frame.f_lineno))
            recorder.write([recorder.place("line", code, frame.f_lineno)])
        elif event == "call" and code not in given:
            arguments = frame.f_locals.values()
            if any(isinstance(value, str) and DEAD in value for value in arguments):
                given.add(code)
                recorder.write([recorder.place("text", code)])
        return trace

    os.register_at_fork(after_in_child=lambda: sys.settrace(None))  # Workers are not on this walk.
    threading.settrace(trace)
    sys.settrace(trace)


RECORDS: Final = {"sample": record_cycles, "key": record_key, "death": record_lines}


def become(arguments: list[str]) -> None:
    """Begin to trace, then run ``-m MODULE ARGUMENT...`` as Python would."""
    at = arguments.index("-m")
    sys.executable = os.environ[PYTHON]
    sys.argv[1:] = arguments[at + 2 :]
    RECORDS[os.environ[WALK]](Recorder())
    runpy.run_module(arguments[at + 1], run_name="__main__", alter_sys=True)


# In the process that counts.


class Training:
    """A traced training of a checkout, and its records.

    Args:
        tree: root of the checkout.
        walk: key of ``RECORDS``.
        config: name of one of the checkout's configs.
        env_steps: end of training.
        settings: other changes to the config, each as for ``--set``.
    """

    def __init__(self, tree: Path, walk: str, config: str, env_steps: int, *settings: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="walks-")
        self._out = Path(self._directory.name)
        python = self._out / "python"
        python.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -P "{Path(__file__).resolve()}" --become "$@"\n'
        )
        python.chmod(0o700)
        environment = {**os.environ, TREE: str(tree), WALK: walk, OUT: str(self._out), PYTHON: str(python)}
        paths = [describe_package(tree, self._out), *(tree / source for source in SOURCES)]
        environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        stop = f"experiment.stop={{env_steps={env_steps},wall_s={LIMIT_S}}}"
        command = [str(python), "-m", "tianji_cli", "train", str(tree / "configs" / f"{config}.toml")]
        self._process = subprocess.Popen(
            [
                *command,
                *(f"--set={setting}" for setting in (stop, *settings)),
                "--out",
                str(self._out / "runs"),
            ],
            env=environment,
            cwd=self._out,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Process id of the root."""
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """Yield the lines that the training writes to stderr, until it ends."""
        assert self._process.stderr is not None
        yield from iter(self._process.stderr.readline, "")

    def kill_actor(self) -> None:
        """Kill the first actor that is found."""
        for pid in descendants(self.pid):
            if b"actor" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                return
        raise SystemExit("no actor was found")

    def records(self) -> list[Record]:
        """Wait for the training's end, and return the records of its processes, in the order of their ids."""
        said = list(self.lines())
        if self._process.wait() != 0:
            raise SystemExit("".join(said) or "the training failed")
        files = sorted(self._out.glob("*.jsonl"), key=lambda path: int(path.stem))
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        self._directory.cleanup()
        return found


def describe_package(tree: Path, directory: Path) -> Path:
    """Write metadata of an installed package, so that the entry points are those of this checkout."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    info = directory / "package" / f"{project['name']}-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in project["entry-points"].items()
        )
    )
    return info.parent


def descendants(pid: int) -> Iterator[int]:
    """Yield a process's children, and their descendants."""
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        yield child
        yield from descendants(child)


def walk_sample(tree: Path) -> list[Record]:
    """`env.step` to the gradient and back as parameters."""
    found = Training(
        tree, "sample", "ppo_cartpole", 2 * (WARM_UP + CYCLES) * 4096, "distribution.mode=sync"
    ).records()
    actor = [record for record in found if record["how"] == "actor"]
    learner = [record for record in found if record["how"] == "learner"]
    if not actor or not learner:
        raise SystemExit("the training was too short for the cycles")
    return actor + learner


def walk_key(tree: Path) -> list[Record]:
    """`distribution.buffer.priority_updates` to the line that obeys it."""
    training = Training(tree, "key", "dqn_cartpole_apex", 10_000)
    found = training.records()
    for record in found:
        if record["how"] == "tested":
            on_the_way = {training.pid, record["parent"], record["process"]}
            return [record for record in found if record["process"] in on_the_way]
    raise SystemExit(f"{KEY} was not obeyed")


def walk_death(tree: Path) -> list[Record]:
    """A killed actor to the line that the user reads."""
    training = Training(tree, "death", "ppo_cartpole", 4_000_000)
    killed_at, read_at = 0.0, 0.0
    for line in training.lines():
        if not killed_at and "steps" in line:
            time.sleep(WARM_UP_S)
            killed_at = time.monotonic()
            training.kill_actor()
        elif killed_at and DEAD in line:
            read_at = time.monotonic()
            print(f"the line: {line.strip()}")
            break
    if not read_at:
        raise SystemExit("no line told of the death")
    return sorted(
        (record for record in training.records() if killed_at <= record["at"] <= read_at),
        key=lambda record: float(record["at"]),
    )


WALKS: Final = {"sample": walk_sample, "key": walk_key, "death": walk_death}


def main() -> None:
    """Print the files of each walk with their functions, in the order of the walk."""
    if sys.argv[1:2] == ["--become"]:
        become(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--walk", choices=WALKS, action="append")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts: dict[str, dict[str, list[str]]] = {}
    for name in options.walk or WALKS:
        print(f"\n{name}: {str(WALKS[name].__doc__).splitlines()[0]}", flush=True)
        files: dict[str, list[str]] = {}
        for record in WALKS[name](options.tree.resolve()):
            passed = files.setdefault(record["file"], [])
            what = f"{record['function']}:{record['line']} {record['how']}"
            if what not in passed:
                passed.append(what)
        for number, (file, functions) in enumerate(files.items(), 1):
            print(f"{number:4} {file}\n       {', '.join(functions)}")
        print(f"{name}: {len(files)} files")
        counts[name] = files
    if options.json:
        options.json.write_text(json.dumps(counts, indent=2) + "\n")


if __name__ == "__main__":
    main()
