"""Runs of the real command, each in a session of its own, so that whatever one leaves behind is found."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest
import tomli_w
from cli.sessions import PATIENCE_S, TIANJI, in_session, kill_session, stale_shared_memory, until
from cli.warm import WarmCommands

ACCOUNTS = ("received", "in_flight", "lost", "dropped")

BASE: dict[str, Any] = {
    "experiment": {"name": "run", "stop": {"env_steps": 2048}, "eval_episodes": 0, "plots": False},
    "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
    "agent": {"type": "ppo"},
    "model": {"type": "mlp_actor_critic", "hidden": [16]},
    "training": {"rollout_steps": 512, "minibatch_size": 128, "epochs": 2},
    "distribution": {
        "transport": "shm",
        "pin_cores": False,
        "actor": {"num": 1, "send_size": 16, "window": 2},
    },
}
ENDLESS = {"experiment": {"stop": {"env_steps": 10**9}}}
GOAL = """
import os
import gymnasium, setproctitle

class Goal(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.trains = setproctitle.getproctitle().startswith("tianji: actor")

    def step(self, action):
        observation, reward, *others = super().step(action)
        return observation, reward + 1e5 * (self.trains and os.path.exists("goal")), *others
"""
"""It pays enough for a run to end, in order, once a file is there; evaluations see nothing of it."""

LIMITS = {
    "deaf_s": "tianji_cli.signals:C_CALL_GRACE_S",
    "evaluator_start_s": "tianji_cli.root.observers.hangs:START_S",
    "late_s": "tianji_cli.root.observers.hangs:LATE_S",
    "examiner_hangs_s": "tianji_cli.root.observers.hangs:HANGS_S",
    "silent_s": "tianji_cli.launch.node:SILENT_S",
}
"""Limits that no config sets, and where the command has them."""

Config = dict[str, Any]


def merged(base: Config, *changes: Config) -> Config:
    result = {key: merged(value) if isinstance(value, dict) else value for key, value in base.items()}
    for change in changes:
        for key, value in change.items():
            table = result.get(key)
            nested = isinstance(value, dict) and isinstance(table, dict) and key != "stop"
            result[key] = merged(table, value) if nested else value
    return result


class Command:
    """One `tianji` command that is going on or over.

    Args:
        place: a directory for what it says.
        arguments: of `tianji`.
        environment: what its variables have besides ours.
        warm: what it begins by, with everything imported; a shell's way if None.
    """

    def __init__(
        self, place: Path, arguments: list[str], environment: dict[str, str], warm: WarmCommands | None
    ) -> None:
        place.mkdir(parents=True)
        self.place = place
        self.arguments = arguments
        with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
            variables = os.environ | {"TMPDIR": str(place.parent / "tmp"), "COLUMNS": "200"} | environment
            self.process = (
                _begin_cold(arguments, out, err, place.parent, variables)
                if warm is None
                else warm.begin(arguments, out.fileno(), err.fileno(), place.parent, variables)
            )
        self.pid = self.process.pid

    @property
    def stdout(self) -> str:
        return (self.place / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.place / "stderr").read_text()

    @property
    def last_words(self) -> str:
        return self.stderr.rstrip("\n").rpartition("\n")[2]

    def wait(self, status: int | None = None) -> int:
        try:
            ended = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still going: {in_session(self.pid)}\n{self.stderr}")
        if status is not None:
            assert ended == status, self.stdout + self.stderr
        assert "Traceback" not in self.stdout + self.stderr
        return ended

    def pids(self, title: str) -> list[int]:
        return [pid for pid, shown in in_session(self.pid).items() if shown.startswith(f"tianji: {title}")]

    def pid_of(self, title: str) -> int:
        return int(until(lambda: self.pids(title), f"{title} starts")[0])

    def kill(self, title: str, number: signal.Signals = signal.SIGKILL) -> int:
        pid = self.pid_of(title)
        os.kill(pid, number)
        return pid

    def signal_all(self, number: signal.Signals) -> None:
        os.killpg(self.pid, number)

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait until another one counts as another, also where a busy root heard late."""
        self.signal_all(signal.SIGINT)
        time.sleep(2.0)

    def wait_for_handlers(self) -> None:
        """Wait until it minds signals; what comes before that is the interpreter's to handle."""
        bit = 1 << (signal.SIGTERM - 1)

        def minds() -> bool:
            status = Path(f"/proc/{self.pid}/status").read_text()
            return bool(int(status.partition("SigCgt:")[2].split()[0], 16) & bit)

        until(minds, "signal handlers")

    def wait_for_all(self) -> None:
        """Wait until no process of the command is left."""
        until(lambda: not in_session(self.pid), f"{in_session(self.pid)} end")

    def end(self) -> None:
        kill_session(self.pid)
        self.process.wait()


def _begin_cold(
    arguments: list[str], out: IO[bytes], err: IO[bytes], cwd: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [TIANJI, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        cwd=cwd,
        env=environment,
        start_new_session=True,
    )


class Run:
    """A run directory and the command that trains in it."""

    def __init__(self, path: Path, command: Command) -> None:
        self.path = path
        self.command = command

    @property
    def rows(self) -> list[dict[str, Any]]:
        metrics = self.path / "metrics.jsonl"
        lines = metrics.read_bytes().split(b"\n")[:-1] if metrics.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def env_steps(self) -> int:
        return self._last("env_steps")

    @property
    def produced(self) -> int:
        return self._last("produced")

    def _last(self, column: str) -> int:
        metrics = self.path / "metrics.jsonl"
        lines = metrics.read_bytes().rpartition(b"\n")[0].splitlines() if metrics.exists() else []
        return int(json.loads(lines[-1])[column]) if lines else 0

    @property
    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return document

    @property
    def saved_env_steps(self) -> int:
        state = json.loads((self.path / "checkpoints/last/state.json").read_text())
        return int(state["progress"]["env_steps"])

    @property
    def log(self) -> str:
        """The root's log; empty if it has none."""
        file = self.path / "logs/root-0.log"
        return file.read_text() if file.exists() else ""

    def check_refusals(self, connections: int = 3, such_as: str = "of a connection") -> None:
        """No frame was refused, and at most so many connections: of processes that were killed as they
        connected, or of another test, to a port that it once had."""
        refusals = [line for line in self.log.splitlines() if " refused " in line]
        killed = "a control connection that did not come as far as to show a key"
        expected = [f"such as: {one}" for one in (such_as, killed)]
        assert all(any(one in line for one in expected) for line in refusals), refusals
        assert self.summary["rejected_frames"] <= connections

    def train_until(self, env_steps: int = 1) -> None:
        def trained() -> bool:
            assert self.command.process.poll() is None, self.command.stdout + self.command.stderr
            return self.env_steps >= env_steps

        until(trained, f"{env_steps} environment steps")

    def reach_goal(self) -> None:
        """Have a run of `Workplace.with_goal` end in order."""
        (self.command.place.parent / "goal").touch()

    def produce_until(self, env_steps: int) -> None:
        """Wait for steps that actors have made: learners may not get them yet."""
        until(lambda: self.produced >= env_steps, f"{env_steps} steps are made")

    def finish(self, status: int = 0) -> dict[str, Any]:
        """Wait for the end, and check what is true of every end."""
        self.command.wait(status)
        assert not (self.path / "job.key").exists()
        assert not (self.path / "production.bin").exists()
        summary = self.summary
        assert summary["produced"] == sum(summary[account] for account in ACCOUNTS), summary
        assert (self.path / "checkpoints/last/model.safetensors").is_file()
        if status == 1:
            assert self.command.last_words == f"tianji: error: {summary['reason']}"
        return summary


class Workplace:
    """Makes configs and starts commands in one directory.

    They begin warm, unless they are to begin cold or the interpreter is told where to look for modules.
    """

    def __init__(self, place: Path, warm: WarmCommands) -> None:
        self.place = place
        self._warm = warm
        self.commands: list[Command] = []
        self.environment: dict[str, str] = {}
        self.begins_cold = False
        self.base = merged(BASE)  # A test may change its own.
        (place / "tmp").mkdir()

    def command(self, *arguments: str) -> Command:
        place = self.place / f"command-{len(self.commands)}"
        warm = None if self.begins_cold or "PYTHONPATH" in self.environment else self._warm
        command = Command(place, list(arguments), self.environment, warm)
        self.commands.append(command)
        return command

    def config(self, *changes: Config) -> Path:
        path = self.place / "run.toml"
        path.write_text(tomli_w.dumps(merged(self.base, *changes)))
        return path

    until = staticmethod(until)

    stale_shared_memory = staticmethod(stale_shared_memory)

    def module(self, source: str) -> None:
        """Write my_env.py beside the config."""
        (self.place / "my_env.py").write_text(source)

    def customize(self, source: str) -> None:
        """Have every interpreter of later commands run code before anything else."""
        (self.place / "sitecustomize.py").write_text(source)
        places = str(self.place), os.environ.get("PYTHONPATH")
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))

    def shorten(self, **limits_s: float) -> None:
        """Set limits of `LIMITS`, in seconds, in later commands: no test could wait for theirs."""
        moved = ((*LIMITS[name].split(":"), limit_s) for name, limit_s in limits_s.items())
        self.customize("".join(f"import {module}\n{module}.{name} = {s}\n" for module, name, s in moved))

    def with_goal(self) -> Config:
        """Changes for a run that is finished once its test lets it `reach_goal`, and not before."""
        (self.place / "my_goal.py").write_text(GOAL)
        return {"experiment": {"stop": {"mean_return": 1e4}}, "environment": {"wrappers": ["my_goal:Goal"]}}

    def train(self, *changes: Config, options: tuple[str, ...] = ("--quiet",)) -> Run:
        runs = self.place / "out/run"
        before = len(list(runs.iterdir())) if runs.exists() else 0
        command = self.command("train", str(self.config(*changes)), "--out", "out", *options)
        return Run(runs / str(before + 1), command)

    def resume(self, run: Run, *options: str) -> Run:
        return Run(run.path, self.command("train", "--resume", str(run.path), "--quiet", *options))


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, warm_commands: WarmCommands) -> Iterator[Workplace]:
    """A directory to run commands in; afterwards nothing that they started or made is left elsewhere."""
    before = stale_shared_memory()
    place = Workplace(tmp_path, warm_commands)
    try:
        yield place
        for command in place.commands:
            assert command.process.poll() is not None, "a test waits for its commands"
            command.wait_for_all()
        assert stale_shared_memory() <= before
        assert list((tmp_path / "tmp").iterdir()) == []
    finally:
        for command in place.commands:
            command.end()


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of 4 MiB, or of the size asked for: the run directory's."""
    size = getattr(request, "param", "4m")
    place = tmp_path / "out"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"mounting takes root: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
