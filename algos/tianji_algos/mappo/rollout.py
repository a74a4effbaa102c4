"""A rollout of a team: its samples are env steps, of which every living agent has its part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Fields
from tianji_algos.mappo.settings import MAPPOSettings
from tianji_algos.ppo.advantage import estimate_advantages
from tianji_algos.ppo.loss import PPOMinibatch
from tianji_algos.ppo.rollout import SampleRollout
from tianji_algos.sequences import Indices

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
    _env_steps: list[int]
    """Of each minibatch of this epoch, over all learners."""

    def _deal(self, rng: np.random.Generator) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Shuffle env steps; minibatches have equally many of them, give or take one."""
        order, edges = super()._deal(rng)
        self._env_steps = np.diff(edges).sum(axis=0).tolist()
        return order, edges

    def _count(
        self, columns: Mapping[str, npt.NDArray[Any]], edges: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Count the steps of living agents in each minibatch, over all learners."""
        own = np.array([np.count_nonzero(columns["alive"][part]) for part in self._own(edges)], np.int64)
        counts: npt.NDArray[np.int64] = self._peers.compare(own).sum(axis=0)
        return counts

    def _minibatch(self, number: int, samples: slice, total: int) -> TeamMinibatch:
        """Put together what living agents did; the network sees the others with them."""
        observation, _ = self._input(number, samples)
        parts = {name: _of_agents(rows[samples]) for name, rows in self._ordered.items()}
        is_alive, outputs = parts.pop("alive"), None
        if not is_alive.all():
            outputs = np.flatnonzero(is_alive)
            parts = {name: rows[outputs] for name, rows in parts.items()}
        env_steps = self._env_steps[number]
        return TeamMinibatch(
            observation=observation, total=total, outputs=outputs, env_steps=env_steps, **parts
        )

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
        """Describe what each agent's return consists of.

        Rewards of the team go on when an agent has died, and those that live know what they are worth: the
        value of who is dead is the mean of theirs. That is our own; Yu et al. (2022) show the value network
        zeros in place of what a dead agent would see. An agent's own rewards end with it.

        Args:
            fragment: with ``terminated`` and ``mask``, ``[T, N]``.
            alive: ``[T + 1, N, M]``.

        Returns:
            Reward; value ``[T + 1, N, M]``; where nothing follows; and what is experience. All but the value
            are ``[T, N, M]``, or ``[T, N, 1]`` where they are the same for all agents.
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
