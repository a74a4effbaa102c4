"""MADDPG in an environment: every agent acts on what it sees by itself, and explores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.core import Agent, Fields, Spaces, require_model
from tianji_algos.fields import FieldSpec
from tianji_algos.maddpg.actions import ActionBounds, gumbel
from tianji_algos.maddpg.settings import MADDPGAgentSettings
from tianji_algos.models.team_deterministic import TeamDeterministic
from tianji_algos.team import Records, Team

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class MADDPGAgent(Agent):
    """Acts for all agents of a team, each by its own observation; records the actions.

    Args:
        spaces: of one environment.
        model: the networks to act with.
        settings: of the exploration.
        num_envs: N, how many environments ``act`` serves at once.
        seed: of the exploration.

    Raises:
        UnsupportedSpaceError: the environment has no team, or actions are not bounded.
        UnsuitableModelError: the model is no ``TeamDeterministic``.
    """

    settings_type: ClassVar[type[MADDPGAgentSettings]] = MADDPGAgentSettings
    default_model: ClassVar[str] = "team_deterministic"
    default_embryo: ClassVar[str] = "maddpg"
    plays_in_team: ClassVar[bool] = True

    def __init__(
        self,
        spaces: Spaces,
        model: TeamDeterministic,
        settings: MADDPGAgentSettings,
        num_envs: int,
        seed: int,
    ) -> None:
        require_model(model, TeamDeterministic, "MADDPG", "team_deterministic")
        self.settings = settings
        self._executor = model.executor(num_envs)
        self._choice: _Choice = (
            _BoundedChoice(spaces.action, settings, seed)
            if isinstance(spaces.action, gym.spaces.Box)
            else _DiscreteChoice(settings, seed)
        )
        self.schedule(0)

    @classmethod
    def fields(cls, spaces: Spaces, settings: MADDPGAgentSettings) -> tuple[FieldSpec, ...]:  # noqa: ARG003
        """Record ``action`` as the environment gets it: ``[M]`` numbers of actions, or ``[M, A]``."""
        team = Team.of(spaces)
        if team.discrete:
            return (FieldSpec("action", np.min_scalar_type(team.most_actions - 1), (team.agents,)),)
        return (FieldSpec("action", np.dtype(np.float32), (team.agents, team.most_actions)),)

    def act(self, observation: Records, into: Fields) -> Array:
        """Draw actions from the policies and add exploration; write ``action [N, M, ...]``."""
        (outputs,) = self._executor(observation)
        actions = self._choice.exploring(outputs, observation)
        into["action"][...] = actions
        return actions

    def schedule(self, env_steps: int) -> None:
        """Set how much is explored."""
        self._choice.schedule(min(1.0, env_steps / self.settings.exploration_steps))

    def act_greedily(self, observation: Records) -> Array:
        """Choose each policy's most probable action, or the action itself."""
        (outputs,) = self._executor(observation)
        return self._choice.greedy(outputs, observation)

    def adopt(self, parameters: Floats) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)

    def reseed(self, seed: int) -> None:
        """Begin the exploration's random stream anew."""
        self._choice.rng = np.random.default_rng(seed)


class _Choice(ABC):
    """Turns actors' outputs ``[N, M, A]`` into actions of the environment.

    Attributes:
        rng: where random numbers come from.
    """

    rng: np.random.Generator

    @abstractmethod
    def schedule(self, share: float) -> None:
        """Set how much is explored after a share, 0 to 1, of the steps over which that falls."""

    @abstractmethod
    def exploring(self, outputs: Floats, seen: Records) -> Array:
        """Choose actions to learn from; ``outputs`` may be used up."""

    @abstractmethod
    def greedy(self, outputs: Floats, seen: Records) -> Array:
        """Choose the actions that are thought best; ``outputs`` may be used up."""


class _DiscreteChoice(_Choice):
    """Draws actions ``[N, M]`` from the policies, or with probability epsilon any that is available."""

    def __init__(self, settings: MADDPGAgentSettings, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._start, self._end = settings.epsilon_start, settings.epsilon_end
        self._epsilon = settings.epsilon_start

    def schedule(self, share: float) -> None:
        self._epsilon = self._start + share * (self._end - self._start)

    def exploring(self, outputs: Floats, seen: Records) -> Array:
        outputs[self.rng.random(outputs.shape[:2], dtype=np.float32) < self._epsilon] = 0.0
        outputs += gumbel(self.rng, outputs.shape)
        return self.greedy(outputs, seen)

    def greedy(self, outputs: Floats, seen: Records) -> Array:
        np.copyto(outputs, -np.inf, where=~seen["available"])
        best: Array = outputs.argmax(axis=2)
        return best


class _BoundedChoice(_Choice):
    """Gives actions ``[N, M, A]`` between bounds, with normally distributed noise."""

    def __init__(self, space: gym.spaces.Box, settings: MADDPGAgentSettings, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._bounds = ActionBounds(space)
        self._start, self._end = settings.noise_start, settings.noise_end
        self._deviation = settings.noise_start

    def schedule(self, share: float) -> None:
        self._deviation = self._start + share * (self._end - self._start)

    def exploring(self, outputs: Floats, seen: Records) -> Array:  # noqa: ARG002 - all numbers are available
        noise = self.rng.standard_normal(outputs.shape, dtype=np.float32)
        noise *= np.float32(self._deviation)
        np.tanh(outputs, out=outputs)
        outputs += noise
        return self._scaled(outputs)

    def greedy(self, outputs: Floats, seen: Records) -> Array:  # noqa: ARG002 - all numbers are available
        return self._scaled(np.tanh(outputs, out=outputs))

    def _scaled(self, actions: Floats) -> Floats:
        """Bring what is between -1 and 1, or just outside, between the bounds."""
        np.clip(actions, -1.0, 1.0, out=actions)
        actions *= self._bounds.half
        actions += self._bounds.middle
        return actions
