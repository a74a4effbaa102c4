"""The loss of PPO and MAPPO, differentiated by hand by the outputs of a network on a CPU.

``ppo/ppo.py`` says what is computed, and why.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tianji_algos.distributions import Distribution
from tianji_algos.fast_cpu.distributions import by_hand
from tianji_algos.ppo.ppo import PPOLoss, PPOMinibatch
from tianji_algos.ppo.settings import PPOSettings

Floats = npt.NDArray[np.float32]


class PPOLossByHand(PPOLoss):
    """PPO's loss on one minibatch, with its derivatives."""

    def __init__(self, distribution: Distribution, settings: PPOSettings) -> None:
        super().__init__(distribution, settings)
        self._probabilities = by_hand(distribution)
        self._clip_value = settings.clip_value
        self._value_coef = settings.value_coef
        self._entropy_coef = settings.entropy_coef

    def gradient(self, policy: Floats, value: Floats, batch: PPOMinibatch) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the network's outputs.

        Args:
            policy: ``[B, outputs]``; more rows where ``batch.outputs`` says which are samples.
            value: ``[B]``, likewise.
            batch: the minibatch that the outputs belong to, with at least one sample.

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
        log_prob, entropy = self._probabilities.evaluate(policy, batch.action)
        log_prob -= batch.log_prob
        ratio = np.exp(log_prob)
        gain = ratio * batch.advantage
        clipped_gain = np.clip(ratio, 1.0 - self.clip_range, 1.0 + self.clip_range)
        is_clipped = clipped_gain != ratio
        clipped_gain *= batch.advantage
        is_active = gain <= clipped_gain  # the minimum is the term that depends on the policy
        d_log_prob = np.where(is_active, gain, np.float32(0.0))
        d_log_prob /= np.float32(-batch.total)
        d_policy = self._probabilities.gradient(d_log_prob, -self._entropy_coef / batch.total)

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
        error *= np.float32(self._value_coef) / np.float32(batch.total)
        return d_policy, error, diagnostics

    def _value_error(self, value: Floats, batch: PPOMinibatch) -> tuple[Floats, float]:
        """Return the error that flows back, ``[B]``, and the mean of half its square."""
        error = value - batch.target
        if not self._clip_value:
            return error, 0.5 * float(np.dot(error, error)) / len(error)
        change = value - batch.value
        clipped_change = np.clip(change, -self.clip_range, self.clip_range)
        clipped_error = batch.value + clipped_change - batch.target
        is_worse = np.square(clipped_error) > np.square(error)  # then the clipped, constant, term counts
        is_worse &= clipped_change != change  # Rounding may make an unclipped error seem worse.
        loss = 0.5 * float(np.maximum(np.square(clipped_error), np.square(error)).mean())
        error[is_worse] = 0.0
        return error, loss
