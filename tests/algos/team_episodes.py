"""Records, spaces and hand-made episodes of teams, for tests that need no environment."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.batch import SequenceBatch
from tianji_algos.core import Spaces
from tianji_algos.team import Records
from tianji_envs.team import TeamSpace

Floats = npt.NDArray[np.float32]


def team_spaces(
    agents: int = 3, observation: int = 4, actions: int = 5, state: int = 0, *, truncates: bool = False
) -> Spaces:
    return Spaces(
        TeamSpace(agents, observation, actions, state, truncates=truncates),
        gym.spaces.MultiDiscrete([actions] * agents),
    )


def empty_records(spaces: Spaces, *shape: int) -> Records:
    """Records of zeros in which everything is available and every agent lives."""
    records = np.zeros(shape, spaces.observation.dtype)
    records["available"] = records["alive"] = True
    return records


def random_records(spaces: Spaces, rng: np.random.Generator, *shape: int) -> Records:
    records = empty_records(spaces, *shape)
    for name in ("observation", "reward", "state"):
        if name in (records.dtype.names or ()):
            records[name] = rng.standard_normal(records[name].shape)
    records["available"] = rng.random(records["available"].shape) < 0.6
    records["available"][..., 0] |= ~records["available"].any(axis=-1)
    return records


def random_batch(
    spaces: Spaces, lengths: Sequence[int], terminated: Sequence[bool], most: int, seed: int = 0
) -> SequenceBatch:
    """Episodes of those lengths, L = ``most``, the last observation repeated beyond their ends."""
    rng = np.random.default_rng(seed)
    episodes, steps = len(lengths), np.arange(most)
    assert isinstance(spaces.action, gym.spaces.MultiDiscrete)
    seen = random_records(spaces, rng, episodes, most + 1)
    action = rng.integers(spaces.action.nvec, size=(episodes, most, len(spaces.action.nvec)))
    reward = rng.standard_normal((episodes, most)).astype(np.float32)
    for episode, length in enumerate(lengths):
        seen[episode, length:] = seen[episode, length]
        reward[episode, steps >= length] = 0.0
    return SequenceBatch(
        observation=seen,
        fields={"action": action.astype(np.uint8)},
        reward=reward,
        length=np.array(lengths, np.int32),
        terminated=np.array(terminated),
    )
