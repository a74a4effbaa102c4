"""A rollout of a team: its samples are env steps, of which every living agent has its part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields
from tianji_algos.mappo.settings import MAPPOSettings
from tianji_algos.ppo.advantage import estimate_advantages
from tianji_algos.ppo.loss import PPOMinibatch
from tianji_algos.ppo.rollout import SMALL, SampleRollout

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamMinibatch(PPOMinibatch):
    """Samples for one gradient update: the steps of living agents, ``[B, ...]`` each.

    Attributes:
        env_steps: that they are parts of, over all learners.
    """

    env_steps: int


class TeamRollout(SampleRollout):
    """Env steps of a rollout, shuffled one by one; what they have of each agent stays together.

    Until a minibatch is put together, samples are ``[env steps, M, ...]``.
    """

    _settings: MAPPOSettings

    def _minibatch(self, number: int, samples: slice, total: int) -> TeamMinibatch:
        """Put together what living agents did; the network sees the others with them."""
        observation, _ = self._input(number, samples)
        parts = {name: _of_agents(rows[samples]) for name, rows in self._ordered.items()}
        is_alive = parts.pop("alive")
        living = int(np.count_nonzero(is_alive))
        outputs = None
        if living < len(is_alive):
            outputs = np.flatnonzero(is_alive)
            parts = {name: rows[outputs] for name, rows in parts.items()}
        if self._peers.number > 1:
            living = int(self._peers.compare(np.array([living])).sum())
        return TeamMinibatch(observation=observation, total=living, outputs=outputs, env_steps=total, **parts)

    def _normalize(self, columns: Mapping[str, npt.NDArray[Any]], edges: npt.NDArray[np.int64]) -> None:
        """Shift and scale the advantages of living agents; those of the others come as zeros."""
        advantage, alive = columns["advantage"], columns["alive"]
        slices = [slice(*edge) for edge in pairwise(edges[self._peers.index].tolist())]
        sums = np.array(
            [
                (
                    np.count_nonzero(alive[own]),
                    advantage[own].sum(dtype=np.float64),
                    np.square(advantage[own], dtype=np.float64).sum(),
                )
                for own in slices
            ]
        )
        self._peers.add_up(torch.from_numpy(sums))
        number, total, square = sums.T
        mean = total / np.maximum(number, 1.0)
        spread = np.sqrt(np.maximum(square / np.maximum(number, 1.0) - mean * mean, 0.0)) + SMALL
        for own, shift, scale in zip(slices, mean.tolist(), spread.tolist(), strict=True):
            advantage[own] -= shift
            advantage[own] /= scale

    def _fields(self, fragment: Fields) -> dict[str, npt.NDArray[Any]]:
        """Compute what a minibatch has of each step, ``[T * N, M, ...]``."""
        alive = fragment["observation"]["alive"]
        reward, value, is_end, mask = self._returns_of(fragment, alive)
        settings = self._settings
        advantage = estimate_advantages(
            reward * np.float32(settings.reward_scale),
            value,
            is_end,
            mask,
            settings.gamma,
            settings.gae_lambda,
        )
        target = advantage + value[:-1]
        advantage *= alive[:-1]
        columns = {
            "action": fragment["action"],
            "log_prob": fragment["log_prob"],
            "value": value[:-1],
            "advantage": advantage,
            "target": target,
            "alive": alive[:-1],
        }
        return {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in columns.items()}

    def _returns_of(
        self, fragment: Fields, alive: npt.NDArray[np.bool_]
    ) -> tuple[Floats, Floats, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Say what each agent's return consists of.

        Rewards of the team go on when an agent has died, and those that live know what they are worth. An
        agent's own end with it.

        Args:
            fragment: with ``terminated`` and ``mask``, ``[T, N]``.
            alive: ``[T + 1, N, M]``.

        Returns:
            Reward ``[T, N, M]``; value ``[T + 1, N, M]``; and where nothing follows, and what is experience,
            both ``[T, N, M]``, or ``[T, N, 1]`` where it is the same for all agents.
        """
        value = fragment["value"]
        is_end = fragment["terminated"][..., None].astype(np.bool_)
        mask = fragment["mask"][..., None].astype(np.bool_)
        if self._settings.rewards == "team":
            if not alive.all():
                living = np.maximum(alive.sum(axis=2, keepdims=True), 1).astype(np.float32)
                value = np.where(alive, value, (value * alive).sum(axis=2, keepdims=True) / living)
            return fragment["reward"][..., None], value, is_end, mask
        return fragment["observation"]["reward"][1:], value, is_end | ~alive[1:], mask & alive[:-1]


def _of_agents(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View ``[B, M, ...]`` as ``[B * M, ...]``."""
    return rows.reshape(-1, *rows.shape[2:])
