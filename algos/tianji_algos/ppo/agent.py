"""PPO in an environment: samples from the policy, records what the update needs to know."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Fields, Spaces
from tianji_algos.fields import FieldSpec
from tianji_algos.on_policy.agent import PolicyAgent
from tianji_algos.ppo.settings import PPOAgentSettings


class PPOAgent(PolicyAgent):
    """Acts by sampling; records action, log-probability and value.

    Values are recorded here because an actor's core has time to spare and the learner's has not.
    """

    algorithm: ClassVar[str] = "PPO"
    settings_type: ClassVar[type[PPOAgentSettings]] = PPOAgentSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "ppo"

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:
        """Record ``action`` as drawn (not clipped), ``log_prob`` and, with a bootstrap row, ``value``."""
        agents = cls.distribution(spaces).agents
        value = FieldSpec("value", np.dtype(np.float32), agents, bootstrap=True)
        return (*super().fields(spaces, settings), value)

    def record_value(self, value: npt.NDArray[np.float32], into: Fields) -> None:
        """Write ``value [N]``."""
        into["value"][...] = value.reshape(into["value"].shape)

    def finish(self, fields: Fields, observation: npt.NDArray[Any]) -> None:
        """Write the value of the observation after the last step."""
        _, value = self._executor.preview(observation)
        self.record_value(value, {"value": fields["value"][-1]})
