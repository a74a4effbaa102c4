"""Action masks of a single agent: the part ``action_mask`` of its observations.

A forbidden action gets so low a logit, or value, that no agent chooses it and no gradient goes through it.
(Records of teams have ``available`` in place of a mask; see ``team.py``.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Spaces
from tianji_algos.device import RecordParts, part_of_records
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.fields import ACTION_MASK, sizes_of_choices

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

FORBIDDEN: Final = -1e9
"""Logit or value of a forbidden action; finite, so that its product with a probability of 0 is 0."""


class MaskReader:
    """Reads masks ``[N, A]`` of observations; A counts the actions of all sets of a MultiDiscrete.

    A mask that leaves no action of a set, as it may after an episode's end, forbids none of them.

    Args:
        space: observation space; its dtype has the mask.
        sizes: number of actions of each choice.
    """

    def __init__(self, space: gym.Space[Any], sizes: Sequence[int]) -> None:
        assert space.dtype is not None
        self._dtype = space.dtype
        edges = [0, *accumulate(sizes)]
        self._choices = [slice(first, last) for first, last in pairwise(edges)]
        self._is_forbidden: Flags = np.empty(0, np.bool_)

    @classmethod
    def of(cls, spaces: Spaces) -> MaskReader | None:
        """Build the reader of an environment's masks; None if its observations have none.

        Raises:
            UnsupportedSpaceError: the mask does not have one number for each action.
        """
        space = spaces.observation
        if not isinstance(space, gym.spaces.Dict) or ACTION_MASK not in space.spaces:
            return None
        found, action = space.spaces[ACTION_MASK], spaces.action
        sizes = sizes_of_choices(action)
        wanted = sum(sizes)
        if not sizes:
            raise UnsupportedSpaceError(
                f"{ACTION_MASK!r} says which of single actions there are, and {action} has none; "
                "another name for that part of the observations would be right"
            )
        if found.shape != (wanted,):
            raise UnsupportedSpaceError(
                f"{ACTION_MASK!r} is {found}, and {action} has {wanted} actions: "
                f"a MultiBinary({wanted}) would be right"
            )
        return cls(space, sizes)

    def forbidden(self, observation: npt.NDArray[Any]) -> Flags:
        """Find the forbidden actions ``[..., A]`` of records ``[...]``; the next call reuses the array."""
        mask = observation[ACTION_MASK]
        if self._is_forbidden.shape != mask.shape:
            self._is_forbidden = np.empty(mask.shape, np.bool_)
        flags = self._is_forbidden
        np.equal(mask, 0, out=flags)
        for choice in self._choices:
            is_empty = flags[..., choice].all(axis=-1)
            if is_empty.any():
                flags[is_empty, choice] = False
        return flags

    def forbidden_in_torch(self, observation: torch.Tensor | RecordParts) -> torch.Tensor:
        """Find the forbidden actions ``[N, A]`` from the bytes of records ``[N, size]``."""
        flags = part_of_records(observation, self._dtype, ACTION_MASK) == 0
        choices = [flags[:, choice] for choice in self._choices]
        return torch.cat([choice & ~choice.all(dim=1, keepdim=True) for choice in choices], dim=1)

    def forbid(self, outputs: Floats, observation: npt.NDArray[Any]) -> None:
        """Set logits or values ``[N, A]`` of forbidden actions to ``FORBIDDEN``, in place.

        Args:
            observation: records of any shape, N in all.
        """
        np.copyto(outputs, np.float32(FORBIDDEN), where=self.forbidden(observation).reshape(outputs.shape))

    def forbidding(self, outputs: torch.Tensor, observation: Any) -> torch.Tensor:
        """Return logits or values ``[N, A]``, with ``FORBIDDEN`` for forbidden actions.

        Args:
            observation: any shape, N in all: records, or their bytes or parts on the outputs' device.
        """
        if isinstance(observation, RecordParts):
            forbidden = self.forbidden_in_torch(observation)
        elif isinstance(observation, torch.Tensor):
            forbidden = self.forbidden_in_torch(observation.reshape(-1, observation.shape[-1]))
        else:
            forbidden = torch.from_numpy(self.forbidden(observation).reshape(outputs.shape))
        return outputs.masked_fill(forbidden, FORBIDDEN)
