"""IMPALA in an environment: samples from the policy, records how likely each action was."""

from __future__ import annotations

from typing import ClassVar

from tianji_algos.impala.settings import IMPALAAgentSettings
from tianji_algos.on_policy.agent import PolicyAgent


class IMPALAAgent(PolicyAgent):
    """Acts by sampling; records action and log-probability. Values are the learner's to compute."""

    algorithm: ClassVar[str] = "IMPALA"
    settings_type: ClassVar[type[IMPALAAgentSettings]] = IMPALAAgentSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "impala"
