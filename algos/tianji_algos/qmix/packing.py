"""Episodes of different lengths, step by step and without what follows their ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.batch import SequenceBatch
from tianji_algos.models.teams.q_network import NO_ACTION
from tianji_algos.team import Records

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]


class PackedEpisodes:
    """The rows and steps of a batch, in the order of time; at each time the longest episodes come first.

    A row is what a team saw, R in all; a step leads from a row to another, U in all, in the order in which
    rows have them. Rows of the same episodes follow one another in the same order, so the first B rows are
    first observations, and step i leads to row B + i.

    Args:
        batch: B episodes.

    Attributes:
        sizes: how many episodes have a row at each time, from 0 to the longest episode's length.
        seen: records ``[R]``.
        last_action: what was done before each row, ``[R, M]``; ``NO_ACTION`` in the first.
        origin: the row that each step begins in, ``[U]``.
        action: of the step that begins in each row, ``[R, M]``; 0 where none does.
        reward: the team's for each step, ``[U, 1]``.
        goes_on: 0 for steps that terminated an episode, else 1; ``[U, 1]``.
    """

    def __init__(self, batch: SequenceBatch) -> None:
        episodes, most = batch.reward.shape
        order = np.argsort(-batch.length, kind="stable")
        length = batch.length[order]
        times = np.arange(length[0] + 1)[:, None]
        time, place = np.nonzero(times <= length)
        leads_on = time < length[place]
        self.sizes: list[int] = np.count_nonzero(times <= length, axis=1).tolist()
        self.seen: Records = batch.observation.reshape(-1).take(order[place] * (most + 1) + time, mode="clip")
        self.origin: Indices = np.flatnonzero(leads_on)
        time, place = time[self.origin], place[self.origin]
        steps = order[place] * most + time
        action = _steps_of(batch.fields["action"], steps)
        self.action = np.zeros((len(self.seen), *action.shape[1:]), np.int64)
        self.action[self.origin] = action
        self.reward: Floats = _steps_of(batch.reward, steps)[:, None]
        is_last = time == length[place] - 1
        self.goes_on: Floats = np.where(is_last & batch.terminated[order][place], 0.0, 1.0)[:, None].astype(
            np.float32
        )
        self.last_action = np.full_like(self.action, NO_ACTION)
        self.last_action[episodes:] = action


def _steps_of(field: npt.NDArray[Any], steps: Indices) -> npt.NDArray[Any]:
    """Take steps from a field ``[B, L, ...]``."""
    return field.reshape(-1, *field.shape[2:]).take(steps, axis=0, mode="clip")
