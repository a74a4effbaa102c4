"""Probes as whoever measures sees them: processes that are asked and answer."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import tomli_w
from cli.warm import WarmChild, WarmChildren, WarmCommands

from tianji_cli.config.loader import load_config
from tianji_cli.launch.children import python_command
from tianji_lab.profile.building import measuring_settings
from tianji_lab.profile.probe.pool import PROBE
from tianji_lab.profile.probe.protocol import (
    ANSWER,
    Acted,
    ActedWindow,
    Answer,
    Learned,
    LearnedWindow,
    Prepare,
    Prepared,
    Run,
    Step,
)

COMMAND = tuple(python_command(PROBE))

PPO: dict[str, Any] = {
    "experiment": {"stop": {"env_steps": 10_000}},
    "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
    "agent": {"type": "ppo"},
    "model": {"hidden": [8]},
    "training": {
        "rollout_steps": 256,
        "minibatch_size": 64,
        "epochs": 2,
        "normalize_observations": False,
        "normalize_rewards": False,
    },
    "distribution": {"actor": {"send_size": 16}},
}

DQN: dict[str, Any] = {
    "experiment": {"stop": {"env_steps": 10_000}},
    "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
    "agent": {"type": "dqn"},
    "model": {"hidden": [8]},
    "training": {"batch_size": 32, "replay_ratio": 4.0, "warmup_steps": 100, "publish_every": 5},
    "distribution": {"actor": {"send_size": 16}, "buffer": {"capacity": 5000}},
}

CONTROL: dict[str, Any] = {
    "experiment": {"stop": {"env_steps": 10_000}},
    "environment": {"type": "gym", "id": "Pendulum-v1", "num_envs": 4},
    "agent": {"type": "sac"},
    "model": {"hidden": [8], "critic_hidden": [8]},
    "training": {"batch_size": 32, "replay_ratio": 32.0, "warmup_steps": 100, "publish_every": 5},
    "distribution": {"actor": {"send_size": 4}, "buffer": {"capacity": 5000}},
}

SLOW = """
import sys, threading, time
import gymnasium, numpy as np
from tianji_envs.core import BaseEnv

class Slow(BaseEnv):
    def __init__(self, step_s=0.0):
        print("a banner of a library's")
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.step_s = step_s
        assert sys.stdin.read() == ""

    def reset(self, seed=None):
        return np.zeros(2, np.float32)

    def step(self, action):
        time.sleep(self.step_s)
        return np.zeros(2, np.float32), 1.0, False, False

class Threaded(Slow):
    def __init__(self):
        super().__init__()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.over.wait)
        self.thread.start()

    def close(self):
        self.over.set()
        self.thread.join()
"""
"""Environments of a user's own that take their time, print, and read what is on their standard input."""


def write_config(path: Path, config: dict[str, Any], **sections: dict[str, Any]) -> str:
    """Write a config, with some keys of its sections replaced; None leaves one out."""
    merged = {
        name: {key: value for key, value in {**table, **sections.get(name, {})}.items() if value is not None}
        for name, table in config.items()
    }
    path.write_text(tomli_w.dumps(merged))
    return str(path)


class Asked:
    """A probe, from its start to its end.

    Args:
        place: for what its roles write.
        warm: what begins it, with everything imported; this process if None.
    """

    def __init__(self, place: Path, warm: WarmCommands | None = None) -> None:
        self.process: WarmChild | subprocess.Popen[bytes] = (
            subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if warm is None
            else WarmChildren(warm).Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        self._place = place
        self._keys: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        if kind is not None:
            self.process.kill()
        self.process.wait()

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def hear(self) -> Answer:
        assert self.process.stdout is not None
        return ANSWER.validate_json(self.process.stdout.readline())

    def ask(self, step: Step) -> Answer:
        self.say(step.model_dump_json().encode())
        return self.hear()

    def prepare(self, key: str, config: str, *, share: int = 1, overrides: Sequence[str] = ()) -> Answer:
        """Prepare the role that the key begins with, beside all others, with the config's environments."""
        job = load_config(config, overrides)
        settings = measuring_settings(job, job.environment.num_envs, share)
        self._place.mkdir(exist_ok=True)
        step = preparation(key, config, (*overrides, *settings), self._place)
        keep = tuple(self._keys - {key})
        self._keys.add(key)
        return self.ask(step.model_copy(update={"keep": keep}))

    def prepared(self, key: str, config: str, *, share: int = 1, overrides: Sequence[str] = ()) -> Prepared:
        answer = self.prepare(key, config, share=share, overrides=overrides)
        assert isinstance(answer, Prepared), answer
        return answer

    def acted(self, key: str, **other: Any) -> tuple[ActedWindow, ...]:
        answer = self.ask(run(key, **other))
        assert isinstance(answer, Acted), answer
        return answer.windows

    def learned(self, key: str, **other: Any) -> tuple[LearnedWindow, ...]:
        answer = self.ask(run(key, **other))
        assert isinstance(answer, Learned), answer
        return answer.windows


def preparation(key: str, config: str, settings: Sequence[str], place: Path) -> Prepare:
    """Of the role that the key begins with."""
    role: Literal["actor", "learner"] = "actor" if key.startswith("actor") else "learner"
    return Prepare(key=key, role=role, config=config, overrides=tuple(settings), directory=str(place))


def run(key: str, **other: Any) -> Run:
    """Run two tiny windows on whatever cores there are; each ends only when something is finished."""
    usual: dict[str, Any] = {
        "cores": (),
        "threads": 1,
        "warm_s": 0.02,
        "window_s": 0.03,
        "windows": 2,
        "tail_s": 0.0,
        "enough_s": 60.0,
        "limit_s": 60.0,
    }
    return Run(key=key, **{**usual, **other})


def leaves(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Values of a config by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        found |= leaves(value, name) if isinstance(value, Mapping) else {name: value}
    return found
