"""Rolling a vector of environments out into memory, for the claims about what it writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tianji_envs.core import VectorEnvironment

# Most of the time of SMAX's tests is the compiler's, which optimises what runs for a moment.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@dataclass
class Rollout:
    """``[T, N, ...]``; ``observation`` has one row more; ``score`` and ``over`` are None without games."""

    actions: npt.NDArray[Any]
    observation: npt.NDArray[Any]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    score: npt.NDArray[np.float32] | None
    over: npt.NDArray[np.bool_] | None

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        return self.terminated | self.truncated

    @property
    def begun(self) -> npt.NDArray[np.bool_]:
        """The steps that only began an episode."""
        return np.concatenate([np.zeros_like(self.ended[:1]), self.ended[:-1]])


def roll_out(
    vector: VectorEnvironment,
    steps: int,
    seed: int = 5,
    act: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
    actions: npt.NDArray[Any] | None = None,
) -> Rollout:
    """Step with ``actions[t]``, ``act(observation)`` or actions drawn from ``seed``, into dirty memory."""
    n = vector.num_envs
    space = vector.observation_space
    assert space.shape is not None
    observation = np.full((steps + 1, n, *space.shape), 77, space.dtype)
    reward, score = np.full((2, steps, n), 77, np.float32)
    terminated, truncated, over = np.ones((3, steps, n), np.bool_)
    vector.action_space.seed(seed)
    vector.reset(seed, observation[0])
    done = []
    for t in range(steps):
        if actions is not None:
            done.append(actions[t])
        elif act is not None:
            done.append(act(observation[t]))
        else:
            done.append(np.stack([np.asarray(vector.action_space.sample()) for _ in range(n)]))
        vector.step(done[t], observation[t + 1], reward[t], terminated[t], truncated[t])
        if vector.games is not None:
            score[t], over[t] = vector.games.score, vector.games.over
    games = (None, None) if vector.games is None else (score, over)
    return Rollout(np.array(done), observation, reward, terminated, truncated, *games)


@pytest.fixture
def roll() -> Callable[..., Rollout]:
    """Roll a vector of environments out; see ``roll_out``."""
    return roll_out
