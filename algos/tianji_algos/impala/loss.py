"""IMPALA's loss (Espeholt et al., 2018, section 4.2), as the derivative that the update needs.

The targets are constants, so what is left is simple enough to differentiate by hand; what remains for the
network is to carry two arrays backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_algos.distributions import Distribution
from tianji_algos.impala.vtrace import VTrace
from tianji_algos.on_policy.rollout import PolicyMinibatch

Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "rho", "clip_fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class IMPALAMinibatch(PolicyMinibatch):
    """Sequences of T steps for one gradient update, B of them.

    Attributes:
        observation: of T + 1 rows, the last for what the last step led to: ``[(T + 1) * B, ...]``, time
            first, or ``Sequences``.
        experience: where the samples lie in ``[T, B]``, as flat indices.
        reward: ``[T, B]``.
        terminated: ``[T, B]`` bool.
        mask: ``[T, B]`` bool: the step is experience.
    """

    experience: npt.NDArray[np.intp]
    reward: Floats
    terminated: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class IMPALALoss:
    """The loss on one minibatch.

    Attributes:
        distribution: of actions.
        vtrace: what the targets are.
        is_corrected: for how likely the actions were; else as if the current policy had acted.
        value_coef: weight of the value loss.
        entropy_coef: weight of the entropy bonus.
        is_mean: over all learners' samples; else the sum.
    """

    distribution: Distribution
    vtrace: VTrace
    is_corrected: bool
    value_coef: float
    entropy_coef: float
    is_mean: bool

    def gradient(
        self, policy: Floats, value: Floats, batch: IMPALAMinibatch
    ) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the network's outputs.

        Args:
            policy: ``[(T + 1) * B, outputs]``, time first.
            value: ``[(T + 1) * B]``.
            batch: what the outputs are for; it has at least one sample.

        Returns:
            Derivatives by ``policy`` and by ``value``, 0 where there is no experience, and the
            ``DIAGNOSTICS`` in order.
        """
        where, count = batch.experience, np.float32(batch.samples)
        log_prob, entropy = self.distribution.evaluate(np.take(policy.T, where, axis=1).T, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = np.exp(log_ratio)
        rows = np.zeros_like(batch.reward)
        rows.reshape(-1)[where] = ratio if self.is_corrected else np.float32(1.0)
        error, advantage = self.vtrace(
            rows, batch.reward, value.reshape(-1, rows.shape[1]), batch.terminated, batch.mask
        )
        gain = advantage.reshape(-1)[where]
        scale = 1.0 / batch.total if self.is_mean else 1.0
        d_log_prob = gain * np.float32(-scale)
        d_policy = np.zeros((policy.shape[1], len(policy)), np.float32)
        d_policy[:, where] = self.distribution.gradient(d_log_prob, -self.entropy_coef * scale).T
        d_value = np.zeros(len(value), np.float32)
        np.multiply(error.reshape(-1), np.float32(-self.value_coef * scale), out=d_value[: error.size])
        diagnostics = np.array(
            (
                -np.dot(gain, log_prob) / count,
                0.5 * np.square(error).sum() / count,
                entropy.mean(),
                (ratio - 1.0 - log_ratio).mean(),  # Schulman's low-variance estimate of the divergence
                np.minimum(ratio, np.float32(self.vtrace.rho_bar)).mean(),
                np.count_nonzero(ratio > self.vtrace.rho_bar) / count,
            ),
            np.float32,
        )
        return d_policy.T, d_value, diagnostics
