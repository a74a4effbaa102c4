"""Gymnasium's environments, slower: ``type = "slowed_gym:SlowedGym"``, ``options.step_s``, ``wait_s``.

Both are ``slower_by`` times as long from ``slower_after_s`` seconds after the start.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_envs.core import Array, EnvironmentFactory, VectorEnvironment
from tianji_envs.gym import GymFactory


class SlowedEnvironment(VectorEnvironment):
    """Begins a step at the earliest ``step_s`` after the begin of the last step; the actor's time counts too.

    Args:
        environment: environment to slow down.
        step_s: least seconds from one step of all copies together to the next; the core stays busy.
        wait_s: seconds that each step of all copies together waits, as for a simulator elsewhere.
        slower_after_s: seconds after which both are ``slower_by`` times as long.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        step_s: float,
        wait_s: float,
        slower_after_s: float,
        slower_by: float,
    ) -> None:
        self._environment = environment
        self._slower_at_s = time.monotonic() + slower_after_s
        self._slower_by = slower_by
        self._step_s = step_s
        self._wait_s = wait_s
        self._next_s = 0.0
        self.num_envs = environment.num_envs
        self.observation_space = environment.observation_space
        self.action_space = environment.action_space

    def reset(self, seed: int, observation: Array) -> None:
        """See ``VectorEnvironment.reset``."""
        self._environment.reset(seed, observation)

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """See ``VectorEnvironment.step``; the core stays busy, as with an environment that computes more."""
        while (now := time.monotonic()) < self._next_s:
            pass
        times = self._slower_by if now >= self._slower_at_s else 1.0
        self._next_s = now + self._step_s * times
        if self._wait_s:
            time.sleep(self._wait_s * times)
        self._environment.step(actions, observation, reward, terminated, truncated)

    def render(self) -> npt.NDArray[np.uint8]:
        """See ``VectorEnvironment.render``."""
        return self._environment.render()

    def close(self) -> None:
        """See ``VectorEnvironment.close``."""
        self._environment.close()


class SlowedGym(EnvironmentFactory):
    """Builds slowed copies of gymnasium's environments."""

    def check_id(self, id: str) -> None:  # noqa: A002 - the interface's word for it
        """See ``EnvironmentFactory.check_id``."""
        GymFactory().check_id(id)

    def make(
        self,
        id: str,  # noqa: A002
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render: bool = False,
        *,
        evaluation: bool = False,
        threads: int = 1,
    ) -> VectorEnvironment:
        """See ``EnvironmentFactory.make``; takes options of its own, and passes other ones on."""
        passed = dict(options or {})
        usual = {"step_s": 0.0, "wait_s": 0.0, "slower_after_s": 0.0, "slower_by": 1.0}
        own = [float(passed.pop(name, value)) for name, value in usual.items()]
        environment = GymFactory().make(
            id, num_envs, max_episode_steps, passed, render, evaluation=evaluation, threads=threads
        )
        return SlowedEnvironment(environment, *own)
