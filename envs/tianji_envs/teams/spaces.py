"""How the spaces of a team's agents become those of one record (``TeamSpace``) and one array of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tianji_envs.errors import UnsupportedSpaceError

LARGEST: Final = 4096
"""Numbers that an agent may see; what is larger is an image."""

_FLAT: Final = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)

TeamActions = spaces.MultiDiscrete | spaces.Box


def flat_size(who: str, space: gymnasium.Space[Any]) -> int:
    """Count the numbers that ``flat`` makes of an element of ``space``.

    Args:
        who: what the error calls the one that sees it.
        space: of one agent.

    Raises:
        UnsupportedSpaceError: an image, or nothing of a fixed number of numbers.
    """
    if not isinstance(space, _FLAT):
        raise UnsupportedSpaceError(
            f"{who} sees {space}; Box, Discrete, MultiBinary and MultiDiscrete are supported, and a Dict of "
            "one of them as 'observation' and an 'action_mask'"
        )
    size = spaces.flatdim(space)
    is_image = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1
    if is_image or size > LARGEST:
        raise UnsupportedSpaceError(
            f"{who} sees {space}, an image; a team's agents see at most {LARGEST} numbers in a row"
        )
    return size


def flat(space: gymnasium.Space[Any], value: Any) -> npt.NDArray[Any]:
    """Give an element of ``space`` as numbers in a row: as it is, or one-hot where it is of ``Discrete``."""
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return np.ravel(value)
    return np.asarray(spaces.flatten(space, value))


def team_actions(name: str, agents: Mapping[str, gymnasium.Space[Any]]) -> TeamActions:
    """Put the action spaces of all agents into one.

    Args:
        name: what the error calls the environment.
        agents: their action spaces, by name.

    Returns:
        ``MultiDiscrete [M]`` of ``Discrete`` spaces, counted from 0; a float32 ``Box [M, A]`` of boxes, each
        in a row, in which the numbers that an agent does not have are bounded by 0 and 0.

    Raises:
        UnsupportedSpaceError: other spaces, or some of both kinds.
    """
    parts = list(agents.values())
    choices = [int(space.n) for space in parts if isinstance(space, spaces.Discrete)]
    if len(choices) == len(parts):
        return spaces.MultiDiscrete(choices)
    boxes = [space for space in parts if isinstance(space, spaces.Box)]
    if len(boxes) == len(parts):
        return _padded(boxes)
    raise UnsupportedSpaceError(
        f"{name}: agents act in {dict(agents)}; the spaces of a team's actions are all Discrete, or all Box"
    )


def _padded(boxes: Sequence[spaces.Box]) -> spaces.Box:
    low, high = np.zeros((2, len(boxes), max(spaces.flatdim(box) for box in boxes)), np.float32)
    for m, box in enumerate(boxes):
        size = spaces.flatdim(box)
        low[m, :size] = box.low.ravel()
        high[m, :size] = box.high.ravel()
    return spaces.Box(low, high, dtype=np.float32)
