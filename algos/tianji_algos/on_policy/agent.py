"""What agents that sample from a policy have in common: PPO's and IMPALA's."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from tianji_algos.core import Agent, Fields, Spaces, require_model
from tianji_algos.distributions import Distribution, distribution_for
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_critic import ActorCritic


class PolicyAgent(Agent):
    """Acts by sampling; records the action and its log-probability.

    Args:
        spaces: of one environment.
        model: the network to act with.
        settings: an instance of ``settings_type``.
        num_envs: N, how many environments ``act`` serves at once.
        seed: of the exploration.

    Raises:
        UnsupportedSpaceError: the action space is none that can be sampled from.
        UnsuitableModelError: the model is no ``ActorCritic``.
    """

    algorithm: ClassVar[str]
    """What it is called in errors."""
    contract: ClassVar[type[torch.nn.Module]] = ActorCritic
    """What its networks derive from."""

    def __init__(
        self, spaces: Spaces, model: ActorCritic, settings: BaseModel, num_envs: int, seed: int
    ) -> None:
        require_model(model, self.contract, self.algorithm, self.default_model)
        self.settings = settings
        self._distribution = self.distribution(spaces)
        self._executor = model.executor(num_envs)
        self._rng = np.random.default_rng(seed)
        self._action = np.empty((num_envs, *self._distribution.action_shape), self._distribution.action_dtype)

    @classmethod
    def distribution(cls, spaces: Spaces) -> Distribution:
        """Give what the policy chooses from."""
        return distribution_for(spaces.action)

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:  # noqa: ARG003 - always the same
        """Record ``action`` as drawn (not clipped) and ``log_prob``."""
        distribution = cls.distribution(spaces)
        return (
            FieldSpec("action", distribution.action_dtype, distribution.action_shape),
            FieldSpec("log_prob", np.dtype(np.float32), distribution.agents),
        )

    def act(self, observation: npt.NDArray[Any], into: Fields) -> npt.NDArray[Any]:
        """Sample actions for ``observation [N, ...]``; write action and log_prob ``[N, ...]``."""
        policy, value = self._executor(observation)
        self._distribution.sample(policy, self._rng, self._action, into["log_prob"])
        into["action"][...] = self._action
        self.record_value(value, into)
        return self._distribution.for_environment(self._action)

    def record_value(self, value: npt.NDArray[np.float32], into: Fields) -> None:
        """Record the value ``[N]`` of a step, if the update rule asks for it."""

    def begin(self, fields: Fields) -> None:
        """Write what the network remembers."""
        self._executor.record(fields)

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Let the network forget earlier episodes."""
        self._executor.forget(where)

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Choose the likeliest actions."""
        policy, _ = self._executor(observation)
        return self._distribution.for_environment(self._distribution.mode(policy))

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)

    def reseed(self, seed: int) -> None:
        """Begin the exploration's random stream anew."""
        self._rng = np.random.default_rng(seed)
