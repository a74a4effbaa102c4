"""One PettingZoo parallel environment as a ``BaseEnv`` whose observations are a team's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tianji_envs.core import BaseEnv
from tianji_envs.errors import BrokenEnvironmentError, UnsupportedSpaceError
from tianji_envs.team import ALIVE, AVAILABLE, OBSERVATION, REWARD, STATE, TeamSpace
from tianji_envs.teams.spaces import flat, flat_size, team_actions

MASK: Final = "action_mask"
"""PettingZoo's name for the part of a Dict observation that says which actions are legal."""

ByAgent = Mapping[str, Any]


class ParallelEnv(Protocol):
    """What is needed of PettingZoo's class of that name."""

    possible_agents: Sequence[str]
    agents: Sequence[str]

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Say what an agent sees."""

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Say what an agent does."""

    def reset(self, seed: int | None = None) -> tuple[ByAgent, Any]:
        """Begin an episode: observations, infos."""

    def step(self, actions: dict[str, Any]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, Any]:
        """Act: observations, rewards, terminations, truncations, infos."""

    def state(self) -> npt.NDArray[Any]:
        """Show all there is; where there is a ``state_space``."""

    def render(self) -> Any:
        """Draw the current state."""

    def close(self) -> None:
        """Free what it holds."""


class _Member:
    """One agent: its spaces, and its parts of the record."""

    def __init__(self, name: str, index: int, sees: gymnasium.Space[Any], acts: gymnasium.Space[Any]) -> None:
        self.name = name  # As error messages say it.
        self.index = index
        self.is_masked = isinstance(sees, spaces.Dict) and MASK in sees.spaces
        self.sees = sees["observation"] if isinstance(sees, spaces.Dict) and self.is_masked else sees
        self.size = flat_size(name, self.sees)
        self.acts = acts
        self.count = int(acts.n) if isinstance(acts, spaces.Discrete) else spaces.flatdim(acts)
        self.row: npt.NDArray[np.float32]
        self.choices: npt.NDArray[np.bool_] | None = None

    def write_to(self, record: npt.NDArray[Any]) -> None:
        """Show all further observations in ``record``."""
        self.row = record[OBSERVATION][self.index, : self.size]
        if AVAILABLE in (record.dtype.names or ()):
            self.choices = record[AVAILABLE][self.index, : self.count]

    def show(self, seen: Any) -> None:
        """Write an observation, and which actions it leaves."""
        if self.choices is not None:
            self.choices[...] = seen[MASK] if self.is_masked else True
            if self.is_masked and not self.choices.any():
                raise BrokenEnvironmentError(f"{self.name} is alive, and its {MASK} leaves it no action")
        if self.is_masked:
            seen = seen["observation"]
        row = flat(self.sees, seen)
        if row.shape != self.row.shape:
            raise BrokenEnvironmentError(
                f"{self.name} sees an array of shape {np.shape(seen)}, its observation_space is {self.sees}"
            )
        self.row[...] = row

    def action(self, given: Any) -> Any:
        """Give the agent's own action, out of its row of the team's."""
        if isinstance(self.acts, spaces.Discrete):
            return given + int(self.acts.start)
        return given[: self.count].reshape(self.acts.shape)


class PettingZooTeam(BaseEnv):
    """A team's environment.

    An agent is alive while it is among the environment's ``agents``; where time limits end the episode, those
    that they ended are so in the record that this step shows too, since what they see there is worth
    something. The episode ends when no agent is left, and is truncated if all that were left were.

    A record has a state where the environment declares a ``state_space`` that ``flat_size`` accepts, and its
    state is not just all observations in a row.

    Args:
        name: what error messages call the environment.
        env: not shared with anything.

    Raises:
        UnsupportedSpaceError: an agent sees images, or agents act in several ways.
    """

    def __init__(self, name: str, env: ParallelEnv) -> None:
        self._name = name
        self._env = env
        self.agents = tuple(env.possible_agents)
        self._members = {
            agent: _Member(f"{name}: {agent}", m, env.observation_space(agent), env.action_space(agent))
            for m, agent in enumerate(self.agents)
        }
        members = self._members.values()
        self.action_space = team_actions(
            name, {agent: member.acts for agent, member in self._members.items()}
        )
        self._is_discrete = isinstance(self.action_space, spaces.MultiDiscrete)
        self._state_space = self._find_state_space()
        self.observation_space = TeamSpace(
            agents=len(self.agents),
            observation=max(member.size for member in members),
            actions=max(member.count for member in members) if self._is_discrete else None,
            state=0 if self._state_space is None else spaces.flatdim(self._state_space),
        )
        self._record = np.zeros((), self.observation_space.dtype)
        for member in members:
            member.write_to(self._record)
        self._living: list[str] = []

    def _find_state_space(self) -> gymnasium.Space[Any] | None:
        space: gymnasium.Space[Any] | None = getattr(self._env, "state_space", None)
        if space is None:
            return None
        try:
            flat_size("state", space)
        except UnsupportedSpaceError:
            return None  # Learners make do with all observations.
        seen, _ = self._env.reset(seed=0)
        rows = [
            flat(member.sees, seen[agent]["observation"] if member.is_masked else seen[agent])
            for agent, member in self._members.items()
            if agent in seen
        ]
        is_no_more = np.array_equal(np.concatenate(rows), flat(space, self._env.state()))
        return None if is_no_more else space

    def reset(self, seed: int | None = None) -> npt.NDArray[Any]:
        """Begin an episode.

        Returns:
            A record, ``[]``; the next call writes into it again.
        """
        seen, _ = self._env.reset(seed=seed)
        self._living = list(self._env.agents)
        if not self._living:
            raise BrokenEnvironmentError(f"{self._name}: reset() leaves no agent alive")
        self._record[REWARD] = 0
        self._show(seen, self._living)
        return self._record

    def step(self, action: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], float, bool, bool]:
        """Act once.

        Args:
            action: ``[M]`` or ``[M, A]``; of agents that are not alive, anything.

        Returns:
            observation: a record, ``[]``; the next call writes into it again.
            reward: the sum of all agents'.
            terminated: of the team's episode.
            truncated: of the team's episode.
        """
        acting, members = self._living, self._members
        given = action.tolist() if self._is_discrete else action
        seen, rewards, ends, cuts, _ = self._env.step(
            {name: members[name].action(given[members[name].index]) for name in acting}
        )
        self._living = [name for name in self._env.agents if not (ends.get(name) or cuts.get(name))]
        over = not self._living
        only_cut = [name for name in acting if cuts.get(name) and not ends.get(name)] if over else []
        truncated = over and len(only_cut) == len(acting)
        part = self._record[REWARD]
        part[...] = 0
        for name, reward in rewards.items():
            part[members[name].index] = reward
        self._show(seen, only_cut if over else self._living)
        return self._record, float(sum(rewards.values())), over and not truncated, truncated

    def _show(self, seen: ByAgent, alive: Sequence[str]) -> None:
        """Write what the agents that are ``alive`` see, and the state; the others see nothing."""
        record, members = self._record, self._members
        record[OBSERVATION] = 0
        record[ALIVE] = False
        if self._is_discrete:
            available = record[AVAILABLE]
            available[...] = False
            available[:, 0] = True
        for name in alive:
            if name not in seen:
                raise BrokenEnvironmentError(
                    f"{self._name}: {name} is alive, and there is nothing that it sees"
                )
            record[ALIVE][members[name].index] = True
            members[name].show(seen[name])
        if self._state_space is not None:
            record[STATE] = flat(self._state_space, self._env.state())

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the current state."""
        frame = self._env.render()
        if not isinstance(frame, np.ndarray):
            raise BrokenEnvironmentError(f"{self._name} draws nothing: make it with render=True")
        return frame

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
