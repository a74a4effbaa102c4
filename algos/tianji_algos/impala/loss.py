"""IMPALA's loss (Espeholt et al., 2018, section 4.2), as the derivative that the update needs, with V-trace.

The targets of V-trace are constants, so what is left is simple enough to differentiate by hand; what
remains for the network is to carry two arrays backwards. Sequences may have auto-reset steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.distributions import Distribution
from tianji_algos.on_policy.rollout import PolicyMinibatch

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class VTrace:
    """What values and policy are moved towards, given how likely each action is now and was then.

    The step after an episode's end only resets the environment: ``mask`` is False there, and nothing flows
    through it. The observation it starts from is the ended episode's last one, so ``value[t + 1]`` bootstraps
    a truncated step as it does any other; a terminated step has nothing to bootstrap from.

    Attributes:
        gamma: discount.
        rho_bar: truncation of ``rho`` in the values' targets; it decides which policy's value they are.
        c_bar: truncation of ``c``; it decides how far back a temporal difference is felt.
        pg_rho_bar: truncation of ``rho`` in the policy gradient.
        decay: lambda, a factor of ``c`` (remark 2).
    """

    gamma: float
    rho_bar: float
    c_bar: float
    pg_rho_bar: float
    decay: float

    def __call__(
        self,
        ratio: Floats,
        reward: Floats,
        value: Floats,
        terminated: npt.NDArray[Any],
        mask: npt.NDArray[Any],
    ) -> tuple[Floats, Floats]:
        """Compute targets and advantages.

        Args:
            ratio: ``[T, N]``, probability of each action under the current policy over that under the policy
                that acted.
            reward: ``[T, N]``.
            value: ``[T + 1, N]`` of the current network; the last row belongs to the observation after the
                last step.
            terminated: ``[T, N]``, bool or uint8.
            mask: ``[T, N]``, bool or uint8; where it is False, both results mean nothing and are 0.

        Returns:
            ``v_s - V(x_s)`` (equation 1), and ``rho_s (r_s + gamma v_{s+1} - V(x_s))``, the weight of the
            policy gradient (section 4.2); ``[T, N]`` each.
        """
        experience = mask.astype(bool)
        weight = np.where(experience, ratio, np.float32(0.0))
        discount = np.where(experience & ~terminated.astype(bool), np.float32(self.gamma), np.float32(0.0))
        gain = discount * value[1:]
        gain += reward
        gain -= value[:-1]  # r_t + gamma V(x_{t+1}) - V(x_t)
        trace = np.minimum(weight, np.float32(self.c_bar))
        trace *= np.float32(self.decay)
        trace *= discount  # gamma c_t
        error = np.minimum(weight, np.float32(self.rho_bar))
        error *= gain  # delta_t V
        carried = np.empty_like(error[0])
        for t in range(len(error) - 2, -1, -1):  # remark 1
            np.multiply(trace[t], error[t + 1], out=carried)
            error[t] += carried
        gain[:-1] += discount[:-1] * error[1:]  # v_{t+1} in the place of V(x_{t+1})
        gain *= np.minimum(weight, np.float32(self.pg_rho_bar))
        return error, gain


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
