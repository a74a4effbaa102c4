"""A rollout: the fragments of one round of updates, as sequences side by side in memory that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, Spaces
from tianji_algos.impala.loss import Minibatch
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.observations import Observations
from tianji_algos.peers import ALONE, Peers
from tianji_algos.sequences import Columns

Indices = npt.NDArray[np.intp]

_RECORDED: Final = ("action", "log_prob", "reward", "terminated", "mask")


class Rollout:
    """Sequences of a rollout: the T steps of each environment in each fragment.

    Args:
        spaces: of one environment.
        settings: the size of a minibatch, and the scale of rewards.
        device: where the network computes.
        is_recurrent: the network remembers, and takes ``Sequences``.
    """

    _columns: Columns

    def __init__(
        self, spaces: Spaces, settings: IMPALASettings, device: torch.device, *, is_recurrent: bool
    ) -> None:
        self._settings = settings
        self._observations = Observations(spaces, device)
        self._is_recurrent = is_recurrent
        self._recorded: dict[str, npt.NDArray[Any]] = {}
        self._peers: Peers = ALONE
        self._numbers = np.zeros(1, np.int64)

    def join(self, peers: Peers) -> None:
        """Hold this learner's share of every rollout from now on."""
        self._peers = peers

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
        self._numbers = np.zeros(self._peers.number, np.int64)
        self._numbers[self._peers.index] = self._columns.number
        self._peers.add_up(torch.from_numpy(self._numbers))

    def minibatches(self, rng: np.random.Generator) -> Iterator[Minibatch]:
        """Go through all sequences once, in random order, in minibatches of as many (give or take one).

        Every learner makes as many: from each minibatch it has a share that is as large as its share of the
        rollout.
        """
        own, every = self._columns.number, int(self._numbers.sum())
        count = max(1, round(every * self._columns.steps / self._settings.minibatch_size))
        count = min(count, int(self._numbers.max()))  # No minibatch is empty.
        order = rng.permutation(own) if count > 1 else np.arange(own)
        edges = np.linspace(0, own, count + 1).astype(np.int64)
        shares = [order[start:stop] for start, stop in pairwise(edges.tolist())]
        totals = np.array([np.count_nonzero(self._recorded["mask"][:, share]) for share in shares])
        self._peers.add_up(torch.from_numpy(totals))
        for share, total in zip(shares, totals.tolist(), strict=True):
            if total:
                yield self._minibatch(share, total)

    def _minibatch(self, columns: Indices, total: int) -> Minibatch:
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
        return Minibatch(
            observation=observation,
            experience=experience,
            action=action,
            log_prob=log_prob,
            reward=part["reward"],
            terminated=part["terminated"].astype(bool),
            mask=mask,
            total=total,
        )
