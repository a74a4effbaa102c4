"""Two agents that may do what a mask says, in their infos or observations; anything else is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

ACTIONS = 4
STEPS = 8


class Signals:
    """Each step allows an agent two of four actions, and pays it 1 for the one that it sees.

    Args:
        shows: where the mask is, ``"info"`` or ``"observation"``.
        numbers: how many a mask has; four would be right.
    """

    metadata: dict[str, Any] = {}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, shows: str = "info", numbers: int = ACTIONS) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []
        self._shows, self._numbers = shows, numbers

    def observation_space(self, agent: str) -> Any:  # noqa: ARG002 - alike
        seen = spaces.Box(0, 1, (ACTIONS,), np.float32)
        if self._shows == "info":
            return seen
        return spaces.Dict(observation=seen, action_mask=spaces.MultiBinary(ACTIONS))

    def action_space(self, agent: str) -> Any:  # noqa: ARG002 - alike
        return spaces.Discrete(ACTIONS)

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._steps = self.possible_agents[:], 0
        return self._show()

    def step(self, actions: dict[str, int]) -> Any:
        assert all(self._masks[agent][action] for agent, action in actions.items()), "all are there"
        paid = {agent: float(action == self._right[agent]) for agent, action in actions.items()}
        self._steps += 1
        over = self._steps == STEPS
        self.agents = [] if over else self.agents
        seen, infos = self._show()
        return seen, paid, dict.fromkeys(paid, over), dict.fromkeys(paid, False), infos

    def close(self) -> None:
        pass

    def _show(self) -> Any:
        agents = self.possible_agents
        there = {agent: self._rng.permutation(ACTIONS)[:2] for agent in agents}
        self._right = {agent: int(two[0]) for agent, two in there.items()}
        numbers = np.arange(self._numbers)
        self._masks = {agent: np.isin(numbers, two).astype(np.int8) for agent, two in there.items()}
        seen = {agent: np.eye(ACTIONS, dtype=np.float32)[self._right[agent]] for agent in agents}
        masks = {agent: {"action_mask": mask} for agent, mask in self._masks.items()}
        if self._shows == "info":
            return seen, masks
        return {agent: {"observation": seen[agent], **masks[agent]} for agent in agents}, {}


parallel_env = Signals
