"""IMPALA's rollouts: minibatches of whole sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Fields
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.on_policy import Arrays, PolicyMinibatch, PolicyRollout
from tianji_algos.rollout_observations import Columns, Indices, Observations

_RECORDED: Final = ("action", "log_prob", "reward", "terminated", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class IMPALAMinibatch(PolicyMinibatch):
    """Sequences of T steps for one gradient update, B of them.

    Attributes:
        observation: of T + 1 rows, the last for what the last step led to: ``[(T + 1) * B, ...]``, time
            first, or ``Sequences``.
        experience: where the samples lie in ``[T, B]``, as flat indices.
        reward: ``[T, B]``.
        terminated: ``[T, B]`` bool.
        mask: ``[T, B]`` bool: the step is experience.
    """

    experience: Any
    reward: Any
    terminated: Any
    mask: Any


class IMPALARollout(PolicyRollout):
    """Sequences of a rollout: the T steps of each environment in each fragment.

    Args:
        memory: where minibatches are to be; what was recorded goes there once.
        is_recurrent: the network remembers, and takes ``Sequences``.
    """

    _columns: Columns
    _widths: npt.NDArray[np.int64]
    """Columns of each learner, ``[learners]``."""

    def __init__(
        self, settings: IMPALASettings, observations: Observations, memory: Arrays, *, is_recurrent: bool
    ) -> None:
        super().__init__(settings, observations, memory)
        self._is_recurrent = is_recurrent
        self._recorded: dict[str, npt.NDArray[Any]] = {}
        self._held: dict[str, Any] = {}
        """The same, where minibatches are to be."""

    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the sequences of fragments in."""
        self._observations.gather(fragments)
        self._columns = Columns(fragments)
        shape = self._columns.steps, self._columns.number
        for name in _RECORDED:
            fields = [fragment[name] for fragment in fragments]
            memory = self._recorded.get(name)
            if memory is None or memory.shape[:2] != shape:
                dtype = np.dtype(np.bool_) if name in ("terminated", "mask") else fields[0].dtype
                memory = np.empty((*shape, *fields[0].shape[2:]), dtype)
                self._recorded[name] = memory
            np.concatenate(fields, axis=1, out=memory, casting="unsafe")
        reward = self._recorded["reward"]
        reward[...] = self.scaled(reward, self.settings.reward_scale)
        self._held = {name: self._memory.put(field) for name, field in self._recorded.items()}
        self._widths = self._learners.compare(np.array([self._columns.number]))[:, 0]

    def minibatches(self, rng: np.random.Generator) -> Iterator[IMPALAMinibatch]:
        """Go through all sequences once, in random order, in minibatches of as many (give or take one).

        Those that hold no experience are left out: all learners know of them.
        """
        shares = self._columns.minibatches(rng, self.settings.minibatch_size, self._widths)
        samples = np.array([np.count_nonzero(self._recorded["mask"][:, share]) for share in shares])
        totals = self._learners.compare(samples).sum(axis=0)
        for share, total in zip(shares, totals.tolist(), strict=True):
            if total:
                yield self._minibatch(share, total)

    def _minibatch(self, columns: Indices, total: int) -> IMPALAMinibatch:
        """Put some of the sequences side by side."""
        memory = self._memory
        chosen = memory.put(columns)
        part = {name: memory.take(field, chosen, axis=1) for name, field in self._held.items()}
        experience = memory.put(np.flatnonzero(self._recorded["mask"][:, columns]))
        rows = self._columns.rows(columns, self._columns.steps + 1)
        observation: Any
        if self._is_recurrent:
            observation = self._columns.sequences(columns, self._observations.take(rows))
        else:
            observation = self._observations.take(rows.reshape(-1))
        action, log_prob = (
            memory.take(part[name].reshape(-1, *part[name].shape[2:]), experience)
            for name in ("action", "log_prob")
        )
        return IMPALAMinibatch(
            observation=observation,
            experience=experience,
            action=action,
            log_prob=log_prob,
            reward=part["reward"],
            terminated=part["terminated"],
            mask=part["mask"],
            total=total,
        )
