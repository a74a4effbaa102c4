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
from tianji_algos.models.teams.deterministic import TeamDeterministic
from tianji_algos.settings import falling
from tianji_algos.team import UNAVAILABLE, Records, Team

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
            _BoundedChoice(spaces.action, settings, num_envs, seed)
            if isinstance(spaces.action, gym.spaces.Box)
            else _DiscreteChoice(model.team, settings, num_envs, seed)
        )
        self.schedule(0)

    @classmethod
    def fields(cls, spaces: Spaces, settings: MADDPGAgentSettings) -> tuple[FieldSpec, ...]:  # noqa: ARG003
        """Record ``action`` as the environment gets it: ``[M]`` numbers of actions, or ``[M, A]``."""
        return (Team.of(spaces).action_field(),)

    def act(self, observation: Records, into: Fields) -> Array:
        """Draw actions from the policies and add exploration; write ``action [N, M, ...]``."""
        (outputs,) = self._executor(observation)
        actions = self._choice.exploring(outputs, observation)
        into["action"][...] = actions
        return actions

    def schedule(self, env_steps: int) -> None:
        """Set how much is explored."""
        self._choice.schedule(env_steps)

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
    """Turns actors' outputs ``[N, M, A]`` into actions of the environment, which the next call reuses.

    Attributes:
        rng: where random numbers come from.
    """

    rng: np.random.Generator

    @abstractmethod
    def schedule(self, env_steps: int) -> None:
        """Set how much is explored."""

    @abstractmethod
    def exploring(self, outputs: Floats, seen: Records) -> Array:
        """Choose actions to learn from; ``outputs`` may be used up."""

    @abstractmethod
    def greedy(self, outputs: Floats, seen: Records) -> Array:
        """Choose the actions that are thought best; ``outputs`` may be used up."""


class _DiscreteChoice(_Choice):
    """Draws actions ``[N, M]`` from the policies, or with probability epsilon any that is available."""

    def __init__(self, team: Team, settings: MADDPGAgentSettings, num_envs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._settings = settings
        each = (num_envs, team.agents)
        self._luck = np.empty(each, np.float32)
        self._is_random = np.empty(each, np.bool_)
        self._noise = np.empty((*each, team.most_actions), np.float32)
        self._unavailable = np.empty(self._noise.shape, np.bool_)
        self._action = np.empty(each, np.intp)

    def schedule(self, env_steps: int) -> None:
        """Set the share of random actions."""
        settings = self._settings
        self._epsilon = falling(
            settings.epsilon_start, settings.epsilon_end, settings.exploration_steps, env_steps
        )

    def exploring(self, outputs: Floats, seen: Records) -> Array:
        """Draw by the Gumbel-max trick; with every logit 0 all actions are alike."""
        self.rng.random(dtype=np.float32, out=self._luck)
        np.less(self._luck, self._epsilon, out=self._is_random)
        np.copyto(outputs, np.float32(0.0), where=self._is_random[..., None])
        outputs += gumbel(self.rng, self._noise)
        return self.greedy(outputs, seen)

    def greedy(self, outputs: Floats, seen: Records) -> Array:
        """Choose the most probable available action."""
        np.logical_not(seen["available"], out=self._unavailable)
        np.copyto(outputs, UNAVAILABLE, where=self._unavailable)
        return outputs.argmax(axis=2, out=self._action)


class _BoundedChoice(_Choice):
    """Gives actions ``[N, M, A]`` between bounds, with normally distributed noise."""

    def __init__(
        self, space: gym.spaces.Box, settings: MADDPGAgentSettings, num_envs: int, seed: int
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self._settings = settings
        self._bounds = ActionBounds(space)
        self._noise = np.empty((num_envs, *space.shape), np.float32)

    def schedule(self, env_steps: int) -> None:
        """Set the deviation of the noise."""
        settings = self._settings
        self._deviation = falling(
            settings.noise_start, settings.noise_end, settings.exploration_steps, env_steps
        )

    def exploring(self, outputs: Floats, seen: Records) -> Array:  # noqa: ARG002 - all numbers are available
        """Add noise before the bounds are applied."""
        self.rng.standard_normal(dtype=np.float32, out=self._noise)
        self._noise *= np.float32(self._deviation)
        np.tanh(outputs, out=outputs)
        outputs += self._noise
        return self._scaled(outputs)

    def greedy(self, outputs: Floats, seen: Records) -> Array:  # noqa: ARG002 - all numbers are available
        """Give what the policy says."""
        return self._scaled(np.tanh(outputs, out=outputs))

    def _scaled(self, actions: Floats) -> Floats:
        """Bring what is between -1 and 1, or just outside, between the bounds."""
        np.clip(actions, -1.0, 1.0, out=actions)
        actions *= self._bounds.half
        actions += self._bounds.middle
        return actions
