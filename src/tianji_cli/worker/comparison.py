"""Comparison of an exported file with the policy itself: both see the same episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos import registry as algorithms
from tianji_algos.core import Agent
from tianji_algos.export import LAST_ACTION, NEXT_STATE, STATE, ExportedPolicy
from tianji_algos.normalization import acting_executor
from tianji_algos.rules import SAMPLED
from tianji_cli.files.exported import CHECKED, Act
from tianji_cli.roles.episodes import EpisodePlayer
from tianji_cli.worker.parts import SavedPolicy

Array = npt.NDArray[Any]

SIDE_BY_SIDE: Final = 8
"""Number of environments, stepped side by side."""
SEED: Final = 1
ACTION: Final = "action"


def compare(saved: SavedPolicy, policy: ExportedPolicy, act: Act) -> dict[str, float]:
    """Compare a file with the policy on at least ``CHECKED`` observations.

    Returns:
        The largest difference of each output, by its name; NaN if an output was NaN.
    """
    comparison = Comparison(saved, policy, act)
    environment = saved.parts.environment(SIDE_BY_SIDE, evaluation=True)
    try:
        player = EpisodePlayer(comparison, environment, SIDE_BY_SIDE * CHECKED, SEED)
        while comparison.seen < CHECKED:
            player.turn()
    finally:
        environment.close()
    return comparison.differences


class Comparison:
    """Plays as an agent does, and gives a file the same observations; see ``roles.policies.Policy``.

    If the file samples, the agent samples with the same noise: both draw it from the same stream. The other
    outputs of the file are compared with the outputs of tianji's own network and its rule.

    Attributes:
        seen: observations so far.
        differences: largest difference of each output so far, by its name.
    """

    def __init__(self, saved: SavedPolicy, policy: ExportedPolicy, act: Act) -> None:
        self._policy, self._rule, self._act = policy, policy.rule, act
        self._greedy = _agent(saved, policy)
        self._sampling = _agent(saved, policy) if policy.noise else None
        self._row = {
            field.name: np.zeros((SIDE_BY_SIDE, *field.shape), field.dtype)
            for field in saved.parts.agent_fields
        }
        self._executor = acting_executor(policy.model, SIDE_BY_SIDE)
        self._rng = np.random.default_rng(SEED)
        self._memory = {
            port.name: np.full((SIDE_BY_SIDE, *port.shape), port.initial, port.dtype)
            for port in policy.memory
        }
        self.seen = 0
        self.differences: dict[str, float] = {port.name: 0.0 for port in policy.decided}

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Reset the memory of the agents, the network and the file."""
        self._greedy.begin_episodes(where)
        if self._sampling is not None:
            self._sampling.begin_episodes(where)
        self._executor.forget(where)
        for port in self._policy.memory:
            self._memory[port.name][where] = port.initial

    def act_greedily(self, observation: Array) -> Array:
        """Choose actions as the agent does, and record the differences of the file."""
        noise = self._rule.draw(self._rng, len(observation))
        drawn = [noise for _ in self._policy.noise]
        inputs = [*self._policy.rows(observation), *self._memory.values(), *drawn]
        names = [port.name for port in self._policy.outputs]
        found = dict(zip(names, self._act(inputs), strict=True))
        given = [torch.from_numpy(output) for output in self._executor(observation)]
        decided = self._policy.decide(given, [torch.from_numpy(one) for one in inputs])
        wanted = {port.name: one.numpy() for port, one in zip(self._policy.decided, decided, strict=True)}
        action: Array
        wanted[ACTION] = action = self._greedy.act_greedily(observation)
        if self._sampling is not None:
            wanted[SAMPLED] = action = self._sampling.act(observation, self._row)
        for name, one in wanted.items():
            off = self._off(name, found, one, noise)
            self.differences[name] = float(np.maximum(self.differences[name], off))  # NaN stays.
        self._executor.note(action)
        remembered = {STATE: found.get(NEXT_STATE), LAST_ACTION: action}
        self._memory = {name: np.array(remembered[name]) for name in self._memory}
        self.seen += len(observation)
        return action

    def _off(self, name: str, found: Mapping[str, Array], wanted: Array, noise: Array) -> float:
        """Return the largest difference of an output.

        The difference of numbers is their distance, relative above 1. If file and agent chose different
        actions, the file's own numbers judge the agent's action: a greedy one by its lower score, a sampled
        one by its distance from the noise. Both are 0 at a tie.
        """
        if found[name].shape != wanted.shape:
            return math.inf
        scores = found[self._rule.outputs[-1].name]
        choices = self._rule.choices(wanted, scores) if name in (ACTION, SAMPLED) else []
        if not choices:
            return float(np.max(np.abs(found[name] - wanted) / np.maximum(1.0, np.abs(wanted))))
        chosen = [action for action, _ in self._rule.choices(found[name], scores)]
        if name == ACTION:
            off = [regret(*choice) for choice in choices]
        else:
            luck = noise.reshape(-1, len(choices)).T
            off = [missed_by(*choice, one) for choice, one in zip(choices, luck, strict=True)]
        differs = [a != action for a, (action, _) in zip(chosen, choices, strict=True)]
        return float(np.max(np.where(differs, off, 0.0)))


def _agent(saved: SavedPolicy, policy: ExportedPolicy) -> Agent:
    """Build an agent that acts with the exported policy, as at the end of training."""
    section = saved.parts.config.agent
    settings = section.settings
    if "eval_epsilon" in type(settings).model_fields:  # Random actions cannot be compared.
        settings = settings.model_copy(update={"eval_epsilon": 0.0})
    agent_type = algorithms.load("agent", section.type)
    agent: Agent = agent_type(saved.parts.spaces, policy.model, settings, SIDE_BY_SIDE, SEED)
    agent.schedule(saved.env_steps)
    return agent


def regret(action: Array, scores: Array) -> Array:
    """Return the gap of actions ``[R]`` to the highest of ``scores [R, A]``, relative above 1."""
    best = scores.max(axis=1)
    taken = np.take_along_axis(scores, action[:, None], axis=1)[:, 0]
    off: Array = (best - taken) / np.maximum(1.0, np.abs(best))
    return off


def missed_by(action: Array, logits: Array, luck: Array) -> Array:
    """Return the distance of noise ``[R]`` from the interval of actions ``[R]`` by ``logits [R, A]``."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    edges = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    above = np.take_along_axis(edges, action[:, None], axis=1)[:, 0]
    below = np.where(action == 0, 0.0, np.take_along_axis(edges, action[:, None] - 1, axis=1)[:, 0])
    off: Array = np.maximum(np.maximum(below - luck, luck - above), 0.0)
    return off
