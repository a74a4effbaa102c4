"""IMPALA's update rule (Espeholt et al., 2018)."""

from __future__ import annotations

from typing import ClassVar

from tianji_algos.distributions import Distribution
from tianji_algos.impala.loss import DIAGNOSTICS, IMPALALoss, VTrace
from tianji_algos.impala.rollout import IMPALARollout
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.on_policy.on_policy import PolicyEmbryo
from tianji_algos.rollout_observations import Observations


class IMPALAEmbryo(PolicyEmbryo):
    """Trains an actor-critic on sequences that older policies may have made.

    One pass of the network over a minibatch gives policy, values and the values to bootstrap from; V-trace
    is computed from them, so that its targets are those of the current parameters at every update.
    """

    algorithm: ClassVar[str] = "IMPALA"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[IMPALASettings]] = IMPALASettings
    settings: IMPALASettings

    def _build_loss(self, distribution: Distribution) -> IMPALALoss:
        """Build the actor-critic loss with V-trace's targets."""
        settings = self.settings
        return IMPALALoss(
            distribution=distribution,
            vtrace=VTrace(
                gamma=settings.gamma,
                rho_bar=settings.rho_bar,
                c_bar=settings.c_bar,
                pg_rho_bar=settings.pg_rho_bar,
                decay=settings.vtrace_lambda,
            ),
            is_corrected=settings.correction == "vtrace",
            value_coef=settings.value_coef,
            entropy_coef=settings.entropy_coef,
            is_mean=settings.reduction == "mean",
        )

    def _build_rollout(self, observations: Observations, *, is_recurrent: bool) -> IMPALARollout:
        """Build what shuffles sequences."""
        return IMPALARollout(self.settings, observations, is_recurrent=is_recurrent)
