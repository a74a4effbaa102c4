"""PPO's loss, as the derivative that the update needs.

The clipped surrogate (Schulman et al., 2017, equation 7) and half the squared error of the value are simple
enough to differentiate by hand; what remains for the network is to carry two arrays backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_algos.distributions import Distribution
from tianji_algos.on_policy.rollout import PolicyMinibatch

Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOMinibatch(PolicyMinibatch):
    """Samples for one gradient update, ``[B, ...]`` each.

    Attributes:
        value: estimate at the time of acting.
        advantage: how much better than ``value`` the action turned out, normalised.
        target: what the value should have been: advantage (not normalised) plus value.
        outputs: which of the network's outputs are the samples, ``[B]``; None says that all are, in order.
    """

    value: Floats
    advantage: Floats
    target: Floats
    outputs: npt.NDArray[np.intp] | None = None


@dataclass
class PPOLoss:
    """The loss on one minibatch.

    Attributes:
        distribution: of actions.
        clip_range: epsilon of the clipped surrogate; set anew by its schedule.
        clip_value: clip the value's change by ``clip_range``, too.
        value_coef: weight of the value loss.
        entropy_coef: weight of the entropy bonus.
    """

    distribution: Distribution
    clip_range: float
    clip_value: bool
    value_coef: float
    entropy_coef: float

    def gradient(self, policy: Floats, value: Floats, batch: PPOMinibatch) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the network's outputs.

        Args:
            policy: ``[B, outputs]``; more rows where ``batch.outputs`` says which are samples.
            value: ``[B]``, likewise.
            batch: what the outputs are for; it has at least one sample.

        Returns:
            Derivatives of the mean over all learners' samples by ``policy`` and by ``value``, 0 where there
            is no sample, and the ``DIAGNOSTICS`` of these samples in order.
        """
        chosen = batch.outputs
        if chosen is None:
            return self._of_samples(policy, value, batch)
        d_policy, d_value = np.zeros_like(policy), np.zeros_like(value)
        d_policy[chosen], d_value[chosen], diagnostics = self._of_samples(
            policy[chosen], value[chosen], batch
        )
        return d_policy, d_value, diagnostics

    def _of_samples(
        self, policy: Floats, value: Floats, batch: PPOMinibatch
    ) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the outputs ``[B, ...]`` that are samples."""
        size = np.float32(len(value))
        log_prob, entropy = self.distribution.evaluate(policy, batch.action)
        log_prob -= batch.log_prob
        ratio = np.exp(log_prob)
        gain = ratio * batch.advantage
        clipped_gain = np.clip(ratio, 1.0 - self.clip_range, 1.0 + self.clip_range)
        is_clipped = clipped_gain != ratio
        clipped_gain *= batch.advantage
        is_active = gain <= clipped_gain  # the minimum is the term that depends on the policy
        d_log_prob = np.where(is_active, gain, np.float32(0.0))
        d_log_prob /= np.float32(-batch.total)
        d_policy = self.distribution.gradient(d_log_prob, -self.entropy_coef / batch.total)

        error, value_loss = self._value_error(value, batch)
        diagnostics = np.array(
            (
                -np.minimum(gain, clipped_gain).mean(),
                value_loss,
                entropy.mean(),
                (ratio - 1.0 - log_prob).mean(),  # Schulman's low-variance estimate of the divergence
                np.count_nonzero(is_clipped) / size,
            ),
            np.float32,
        )
        error *= np.float32(self.value_coef) / np.float32(batch.total)
        return d_policy, error, diagnostics

    def _value_error(self, value: Floats, batch: PPOMinibatch) -> tuple[Floats, float]:
        """Give the error that flows back, ``[B]``, and the mean of half its square."""
        error = value - batch.target
        if not self.clip_value:
            return error, 0.5 * float(np.dot(error, error)) / len(error)
        change = value - batch.value
        clipped_error = batch.value + np.clip(change, -self.clip_range, self.clip_range) - batch.target
        is_worse = np.square(clipped_error) > np.square(error)  # then the clipped, constant, term counts
        loss = 0.5 * float(np.maximum(np.square(clipped_error), np.square(error)).mean())
        error[is_worse] = 0.0
        return error, loss
