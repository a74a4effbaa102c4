"""Steps that last as long as a config says: samplers that wait, as for a slow simulator or a robot."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_cli.config.schema import Environment
from tianji_envs.core import VectorEnvironment

Array = npt.NDArray[Any]


class PacedStep:
    """``step`` of a vector environment, which lasts as long as ``environment.step_ms`` says.

    The copies of an actor take turns: N of them last N times as long as one. What the environment itself
    takes is part of it.
    """

    def __init__(self, environment: VectorEnvironment, section: Environment, seed: int) -> None:
        self._environment = environment
        self._step_s = section.step_ms / 1e3
        self._jitter = section.step_jitter
        self._sleeps = section.step_work == "sleep"
        self._random = np.random.default_rng(seed)

    def __call__(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Step all copies, and wait for what is left of their time."""
        end_s = time.monotonic() + self._draw_s()
        self._environment.step(actions, observation, reward, terminated, truncated)
        if self._sleeps:
            time.sleep(max(0.0, end_s - time.monotonic()))
        else:
            while time.monotonic() < end_s:
                pass

    def _draw_s(self) -> float:
        copies = self._environment.num_envs
        if not self._jitter:
            return copies * self._step_s
        return self._step_s * (copies + self._jitter * float(self._random.uniform(-1, 1, copies).sum()))
