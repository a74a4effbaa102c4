"""Small parallel environments, made by hand, for claims about teams whose members differ and leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Leaving = tuple[int, str]
"""After which step an agent leaves, and why: "dies" or "is cut"."""


class Leavers:
    """Agents see their number and the count of steps, so often as their number says, and get their number.

    Agent m has m + 2 actions, sees m + 1 numbers, and leaves as ``leaving`` says.
    """

    def __init__(self, leaving: Sequence[Leaving], returns: Mapping[str, int] | None = None) -> None:
        self.possible_agents = [f"agent_{m}" for m in range(len(leaving))]
        self.agents: list[str] = []
        self.leaving = dict(zip(self.possible_agents, leaving, strict=True))
        self.returns = dict(returns or {})
        self.count = 0
        self.got: list[dict[str, Any]] = []
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return spaces.Box(-9, 99, (self.possible_agents.index(agent) + 1,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return spaces.Discrete(self.possible_agents.index(agent) + 2)

    def _see(self, agent: str) -> Any:
        m = self.possible_agents.index(agent)
        return np.full(m + 1, 10 * m + self.count, np.float32)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seeds.append(seed)
        self.count = 0
        self.agents = self.possible_agents[:]
        return {agent: self._see(agent) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.got.append(actions)
        assert set(actions) == set(self.agents)
        self.count += 1
        acting = self.agents
        dies = {agent: self.leaving[agent] == (self.count, "dies") for agent in acting}
        cut = {agent: self.leaving[agent] == (self.count, "is cut") for agent in acting}
        self.agents = [agent for agent in acting if not (dies[agent] or cut[agent])]
        back = [agent for agent, step in self.returns.items() if step == self.count]
        self.agents += [agent for agent in back if agent not in self.agents]
        seen = {agent: self._see(agent) for agent in {*acting, *back}}
        rewards = {agent: float(self.possible_agents.index(agent) + 1) for agent in acting}
        return seen, rewards, dies, cut, {}

    def render(self) -> Any:
        return None

    def close(self) -> None:
        pass


class Masked(Leavers):
    """One more agent's view: each may choose its last action only, except where ``masks`` says otherwise."""

    masks: npt.NDArray[np.int8] | None = None

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        count = self.possible_agents.index(agent) + 2
        return spaces.Dict(
            observation=super().observation_space(agent), action_mask=spaces.MultiBinary(count)
        )

    def _see(self, agent: str) -> Any:
        mask = np.zeros(self.possible_agents.index(agent) + 2, np.int8)
        mask[-1] = 1
        return {"observation": super()._see(agent), "action_mask": mask if self.masks is None else self.masks}


class Telling(Leavers):
    """Each may choose the action that the count of steps says, and its info alone says so.

    Attributes:
        shown: by the count of steps, the mask in the first agent's info; None: it has none.
    """

    def __init__(self, leaving: Sequence[Leaving], shown: Mapping[int, Any] | None = None) -> None:
        super().__init__(leaving)
        self.shown = dict(shown or {})

    def _infos(self) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for m, agent in enumerate(self.possible_agents):
            mask = np.zeros(m + 2, np.int8)
            mask[self.count % (m + 2)] = 1
            infos[agent] = {"action_mask": mask}
        if self.count in self.shown:
            shown = self.shown[self.count]
            infos["agent_0"] = {} if shown is None else {"action_mask": shown}
        return infos

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        seen, _ = super().reset(seed)
        return seen, self._infos()

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        return *super().step(actions)[:4], self._infos()


class TellingTwice(Telling, Masked):
    """An agent's mask is in its observation, too: there it leaves the last action only."""


class Continuous(Leavers):
    """Agents whose actions are boxes of several shapes."""

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        shape = (2, 2) if agent == "agent_0" else (3,)
        return spaces.Box(-2, 1, shape, np.float32)
