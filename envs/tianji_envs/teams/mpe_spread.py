"""A policy made by hand for simple_spread: every agent moves to its own landmark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import gymnasium
import numpy as np

from tianji_envs.core import Array, VectorEnvironment
from tianji_envs.team import OBSERVATION

_MOST_AGENTS: Final = 8
"""All assignments are tried: 40,320 for eight."""

# Of mpe2's physics: a step of 0.1 moves an agent by 0.1 of its velocity, of which it then keeps 0.75 and
# gets 0.5 more in the direction in which it pushes.
_COASTS: Final = 0.1 / (1 - 0.75)
"""How far an agent that pushes no more still gets, by its velocity."""
_PUSH: Final = 0.5 * _COASTS
"""How much farther one push lets it get."""


def spread_heuristic(
    vector: VectorEnvironment, options: Mapping[str, Any]
) -> Callable[[Array], Array] | None:
    """Give the policy for such a vector.

    Args:
        vector: of simple_spread.
        options: what it was made with.

    Returns:
        From records ``[N]`` to actions; None if there are more than eight agents, or they do not see all
        landmarks.
    """
    agents = len(vector.agents)
    if agents > _MOST_AGENTS or options.get("num_landmark_neighbors") is not None:
        return None
    push = _push_both if isinstance(vector.action_space, gymnasium.spaces.Box) else _push_one
    assignments = np.array(list(itertools.permutations(range(agents))))

    def act(seen: Array) -> Array:
        return push(_misses(seen[OBSERVATION], assignments))

    return act


def _misses(observation: Array, assignments: Array) -> Array:
    """Say by how much agents would miss their landmarks if they pushed no more.

    Args:
        observation: ``[N, M, O]``: an agent's velocity, its position, all landmarks relative to it, others.
        assignments: ``[P, M]``, all: the landmark of each agent.

    Returns:
        ``[N, M, 2]``.
    """
    num_envs, agents, _ = observation.shape
    landmarks = observation[..., 4 : 4 + 2 * agents].reshape(num_envs, agents, agents, 2)
    distances = np.linalg.norm(landmarks, axis=-1)
    total = sum(distances[:, m, assignments[:, m]] for m in range(agents))  # [N, P]
    best = assignments[np.argmin(total, axis=1)]
    own = np.take_along_axis(landmarks, best[:, :, None, None], axis=2)[:, :, 0]
    return own - _COASTS * observation[..., :2]


def _push_one(misses: Array) -> Array:
    """Push along the axis of the larger miss, if that lessens it: 1 left, 2 right, 3 down, 4 up; else 0."""
    axis = np.argmax(np.abs(misses), axis=-1)
    larger = np.take_along_axis(misses, axis[..., None], axis=-1)[..., 0]
    return np.where(np.abs(larger) > _PUSH / 2, 1 + 2 * axis + (larger > 0), 0)


def _push_both(misses: Array) -> Array:
    """Push along both axes as far as needed: nothing, left, right, down, up, each from 0 to 1."""
    pushes = np.clip(misses / _PUSH, -1, 1)
    actions = np.zeros((*misses.shape[:-1], 5), np.float32)
    actions[..., [2, 4]] = np.maximum(pushes, 0)
    actions[..., [1, 3]] = np.maximum(-pushes, 0)
    return actions
