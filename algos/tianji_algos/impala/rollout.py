"""A rollout: the fragments of one round of updates, as sequences side by side in memory that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Fields
from tianji_algos.impala.loss import IMPALAMinibatch
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.on_policy.rollout import PolicyRollout
from tianji_algos.rollout_observations import Observations
from tianji_algos.sequences import Columns, Indices

_RECORDED: Final = ("action", "log_prob", "reward", "terminated", "mask")


class IMPALARollout(PolicyRollout):
    """Sequences of a rollout: the T steps of each environment in each fragment.

    Args:
        settings: the size of a minibatch, and the scale of rewards.
        observations: where the rollout's are held.
        is_recurrent: the network remembers, and takes ``Sequences``.
    """

    _columns: Columns
    _widths: npt.NDArray[np.int64]
    """Columns of each learner, ``[learners]``."""

    def __init__(self, settings: IMPALASettings, observations: Observations, *, is_recurrent: bool) -> None:
        super().__init__(observations)
        self._settings = settings
        self._is_recurrent = is_recurrent
        self._recorded: dict[str, npt.NDArray[Any]] = {}

    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the sequences of fragments in."""
        self._observations.gather(fragments)
        self._columns = Columns(fragments)
        shape = self._columns.steps, self._columns.number
        for name in _RECORDED:
            fields = [fragment[name] for fragment in fragments]
            memory = self._recorded.get(name)
            if memory is None or memory.shape[:2] != shape:
                memory = np.empty((*shape, *fields[0].shape[2:]), fields[0].dtype)
                self._recorded[name] = memory
            np.concatenate(fields, axis=1, out=memory)
        self._recorded["reward"] *= np.float32(self._settings.reward_scale)
        self._widths = self._peers.compare(np.array([self._columns.number]))[:, 0]

    def minibatches(self, rng: np.random.Generator) -> Iterator[IMPALAMinibatch]:
        """Go through all sequences once, in random order, in minibatches of as many (give or take one).

        Those that hold no experience are left out: all learners know of them.
        """
        shares = self._columns.deal(rng, self._settings.minibatch_size, self._widths)
        samples = np.array([np.count_nonzero(self._recorded["mask"][:, share]) for share in shares])
        totals = self._peers.compare(samples).sum(axis=0)
        for share, total in zip(shares, totals.tolist(), strict=True):
            if total:
                yield self._minibatch(share, total)

    def _minibatch(self, columns: Indices, total: int) -> IMPALAMinibatch:
        """Put some of the sequences side by side."""
        part = {name: np.take(field, columns, axis=1) for name, field in self._recorded.items()}
        mask = part["mask"].astype(bool)
        experience = np.flatnonzero(mask)
        rows = self._columns.rows(columns, self._columns.steps + 1)
        observation: Any
        if self._is_recurrent:
            observation = self._columns.sequences(columns, self._observations.take(rows))
        else:
            observation = self._observations.take(rows.reshape(-1))
        action, log_prob = (
            part[name].reshape(-1, *part[name].shape[2:])[experience] for name in ("action", "log_prob")
        )
        return IMPALAMinibatch(
            observation=observation,
            experience=experience,
            action=action,
            log_prob=log_prob,
            reward=part["reward"],
            terminated=part["terminated"].astype(bool),
            mask=mask,
            total=total,
        )
