"""DQN in an environment: takes the best action, or a random one now and then."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.core import Agent, Fields, Spaces, require_model
from tianji_algos.dqn.loss import pick
from tianji_algos.dqn.settings import DQNAgentSettings
from tianji_algos.fields import FieldSpec
from tianji_algos.models.q_network import QNetwork, count_actions
from tianji_algos.settings import falling

Floats = npt.NDArray[np.float32]


class DQNAgent(Agent):
    """Acts epsilon-greedily; records the action, and on demand how surprising its outcome was.

    Args:
        spaces: of one environment.
        model: the network to act with.
        settings: of the exploration.
        num_envs: N, how many environments ``act`` serves at once.
        seed: of the exploration.

    Raises:
        UnsupportedSpaceError: the action space is not Discrete.
        UnsuitableModelError: the model is no ``QNetwork``.
    """

    settings_type: ClassVar[type[DQNAgentSettings]] = DQNAgentSettings
    default_model: ClassVar[str] = "mlp_q"
    default_embryo: ClassVar[str] = "dqn"

    def __init__(
        self, spaces: Spaces, model: QNetwork, settings: DQNAgentSettings, num_envs: int, seed: int
    ) -> None:
        self.settings = settings
        self._actions = np.float32(count_actions(spaces.action))
        assert isinstance(spaces.action, gym.spaces.Discrete)
        require_model(model, QNetwork, "DQN", "mlp_q")
        self._first = int(spaces.action.start)
        self._executor = model.executor(num_envs)
        self._rng = np.random.default_rng(seed)
        self._draws = np.empty((2, num_envs), np.float32)
        self._is_random = np.empty(num_envs, np.bool_)
        self._action = np.empty(num_envs, np.int64)
        self._seen = _SeenValues(num_envs) if settings.priorities else None
        self._epsilon = np.empty(num_envs, np.float32)
        if settings.epsilon_schedule == "linear":
            self.schedule(0)
        else:
            self.explore_as(0, num_envs)

    @classmethod
    def fields(cls, spaces: Spaces, settings: DQNAgentSettings) -> tuple[FieldSpec, ...]:
        """Record ``action``, counted from 0, and ``priority`` if the settings ask for it."""
        action = FieldSpec("action", np.min_scalar_type(count_actions(spaces.action) - 1))
        return (action, FieldSpec("priority", np.dtype(np.float32))) if settings.priorities else (action,)

    def act(self, observation: npt.NDArray[Any], into: Fields) -> npt.NDArray[Any]:
        """Choose the best action, or with probability epsilon any; write ``action [N]``."""
        (q,) = self._executor(observation)
        np.argmax(q.T, axis=0, out=self._action)
        self._explore(self._action, self._epsilon)
        into["action"][...] = self._action
        if self._seen is not None:
            self._seen.append(q, self._action)
        return self._for_environment()

    def finish(self, fields: Fields, observation: npt.NDArray[Any]) -> None:
        """Write the priority of each step, ``[T, N]``; of those that are no experience, 0."""
        if self._seen is None:
            return
        (q,) = self._executor(observation)
        settings = self.settings
        fields["priority"][...] = self._seen.td_error(
            fields, q, settings.priority_gamma, settings.priority_reward_scale
        )

    def schedule(self, env_steps: int) -> None:
        """Set epsilon, where it falls over training."""
        settings = self.settings
        if settings.epsilon_schedule == "linear":
            self._epsilon[:] = falling(
                settings.epsilon_start, settings.epsilon_end, settings.epsilon_steps, env_steps
            )

    def explore_as(self, first: int, of: int) -> None:
        """Set the epsilon of each environment, where they differ."""
        settings = self.settings
        if settings.epsilon_schedule == "per_actor":
            share = np.arange(first, first + len(self._epsilon)) / max(1, of - 1)
            self._epsilon[:] = settings.epsilon_base ** (1.0 + settings.epsilon_alpha * share)

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Choose the best actions, or with probability ``eval_epsilon`` any."""
        (q,) = self._executor(observation)
        best: npt.NDArray[np.int64] = q.T.argmax(axis=0)
        if self.settings.eval_epsilon:
            self._explore(best, self.settings.eval_epsilon)
        best += self._first
        return best

    def adopt(self, parameters: Floats) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)

    def reseed(self, seed: int) -> None:
        """Begin the exploration's random stream anew."""
        self._rng = np.random.default_rng(seed)

    def _explore(self, actions: npt.NDArray[np.int64], epsilon: Floats | float) -> None:
        """Replace actions ``[N]`` by random ones, each with probability epsilon."""
        self._rng.random(dtype=np.float32, out=self._draws)
        luck, choice = self._draws
        np.less(luck, epsilon, out=self._is_random)
        choice *= self._actions
        np.copyto(actions, choice, where=self._is_random, casting="unsafe")

    def _for_environment(self) -> npt.NDArray[np.int64]:
        if self._first != 0:
            self._action += self._first
        return self._action


class _SeenValues:
    """What the network said while acting, so that a fragment's TD errors cost no second pass.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self._taken = np.empty((0, num_envs), np.float32)
        self._best = np.empty((1, num_envs), np.float32)
        self._steps = 0

    def append(self, q: Floats, action: npt.NDArray[Any]) -> None:
        """Note the values of one time step."""
        if self._steps == len(self._taken):
            longer = max(32, 2 * self._steps)
            self._taken = np.resize(self._taken, (longer, len(action)))
            self._best = np.resize(self._best, (longer + 1, len(action)))
        self._taken[self._steps] = pick(q, action)[0]
        np.maximum.reduce(q.T, out=self._best[self._steps])
        self._steps += 1

    def td_error(self, fields: Fields, last_q: Floats, gamma: float, reward_scale: float) -> Floats:
        """Give ``|r + gamma max Q' - Q|`` of each of a fragment's steps ``[T, N]``, and forget them.

        Args:
            fields: of a fragment whose T steps are the last that were noted.
            last_q: values of the observation after the last step, ``[N, A]``.
            gamma: discount.
            reward_scale: of the rewards.
        """
        steps = len(fields["reward"])
        first, stop = self._steps - steps, self._steps
        np.maximum.reduce(last_q.T, out=self._best[stop])
        error: Floats = self._best[first + 1 : stop + 1] * np.float32(gamma)
        error *= 1 - fields["terminated"]
        error += fields["reward"] * np.float32(reward_scale)
        error -= self._taken[first:stop]
        np.abs(error, out=error)
        error *= fields["mask"]
        self._steps = 0
        return error
