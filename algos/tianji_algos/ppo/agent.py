"""PPO in an environment: samples from the policy, records what the update needs to know."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Agent, Fields, Spaces, require_model
from tianji_algos.distributions import distribution_for
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.ppo.settings import PPOAgentSettings


class PPOAgent(Agent):
    """Acts by sampling; records action, log-probability and value.

    Values are recorded here because an actor's core has time to spare and the learner's has not.

    Args:
        spaces: of one environment.
        model: the network to act with.
        settings: there is nothing to set.
        num_envs: N, how many environments ``act`` serves at once.
        seed: of the exploration.

    Raises:
        UnsupportedSpaceError: the action space is none that PPO can act in.
        UnsuitableModelError: the model is no ``ActorCritic``.
    """

    settings_type: ClassVar[type[PPOAgentSettings]] = PPOAgentSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "ppo"

    def __init__(
        self, spaces: Spaces, model: ActorCritic, settings: PPOAgentSettings, num_envs: int, seed: int
    ) -> None:
        require_model(model, ActorCritic, "PPO", "mlp_actor_critic")
        self.settings = settings
        self._distribution = distribution_for(spaces.action)
        self._executor = model.executor(num_envs)
        self._rng = np.random.default_rng(seed)
        self._action = np.empty((num_envs, *self._distribution.action_shape), self._distribution.action_dtype)

    @classmethod
    def fields(
        cls,
        spaces: Spaces,
        settings: PPOAgentSettings,  # noqa: ARG003 - the same in every configuration
    ) -> tuple[FieldSpec, ...]:
        """Record ``action`` as drawn (not clipped), ``log_prob`` and, with a bootstrap row, ``value``."""
        distribution = distribution_for(spaces.action)
        real = np.dtype(np.float32)
        return (
            FieldSpec("action", distribution.action_dtype, distribution.action_shape),
            FieldSpec("log_prob", real),
            FieldSpec("value", real, bootstrap=True),
        )

    def act(self, observation: npt.NDArray[Any], into: Fields) -> npt.NDArray[Any]:
        """Sample actions for ``observation [N, ...]``; write action, log_prob and value ``[N, ...]``."""
        policy, value = self._executor(observation)
        self._distribution.sample(policy, self._rng, self._action, into["log_prob"])
        into["action"][...] = self._action
        into["value"][...] = value
        return self._distribution.for_environment(self._action)

    def finish(self, fields: Fields) -> None:
        """Write the value of the observation after the last step."""
        _, value = self._executor(fields["observation"][-1])
        fields["value"][-1] = value

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
