"""Example of a team's environment with PettingZoo's parallel interface; meeting.toml trains with it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

LAST = 9
LIMIT = 20


class Meeting(ParallelEnv):
    """Two walkers begin at the ends of a line of ten places; both get a reward of 1 when they meet."""

    metadata: ClassVar = {"name": "meeting"}

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []
        self._places_of_two = Box(0.0, 1.0, (2,), np.float32)
        self._moves = Discrete(3)

    def observation_space(self, agent: str) -> Box:  # noqa: ARG002 - both are alike
        """Space of observations: an agent's own place, and the other's."""
        return self._places_of_two

    def action_space(self, agent: str) -> Discrete:  # noqa: ARG002
        """Space of actions: left, stay, right."""
        return self._moves

    def reset(
        self,
        seed: int | None = None,  # noqa: ARG002 - nothing is left to chance
        options: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> tuple[Any, Any]:
        """Begin an episode; returns observations and empty infos."""
        self.agents = self.possible_agents[:]
        self._places = {"left": 0, "right": LAST}
        self._steps = 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        """Move both; returns observations, rewards, terminations, truncations and empty infos."""
        for agent, action in actions.items():
            self._places[agent] = min(LAST, max(0, self._places[agent] + int(action) - 1))
        self._steps += 1
        met = self._places["left"] == self._places["right"]
        late = self._steps == LIMIT
        seen, agents = self._seen(), self.agents
        if met or late:
            self.agents = []
        rewards = dict.fromkeys(agents, float(met))
        ended, cut = dict.fromkeys(agents, met), dict.fromkeys(agents, late and not met)
        return seen, rewards, ended, cut, {agent: {} for agent in agents}

    def _seen(self) -> dict[str, Any]:
        left, right = self._places["left"] / LAST, self._places["right"] / LAST
        return {"left": np.array([left, right], np.float32), "right": np.array([right, left], np.float32)}


def parallel_env(**options: Any) -> Meeting:
    """Make the environment with the config's ``environment.options``."""
    return Meeting(**options)
