"""PPO's loss, as the derivative that the update needs.

The clipped surrogate (Schulman et al., 2017, equation 7) and half the squared error of the value are simple
enough to differentiate by hand; what remains for the network is to carry two arrays backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.distributions import Distribution

Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Samples for one gradient update, ``[B, ...]`` each.

    Attributes:
        observation: what the network takes: an array, or a tensor where it computes; for one that remembers
            ``Sequences``, with steps that are no samples.
        action: as it was recorded.
        log_prob: of the action under the policy that acted.
        value: estimate at the time of acting.
        advantage: how much better than ``value`` the action turned out, normalised.
        target: what the value should have been: advantage (not normalised) plus value.
        total: samples of the minibatch over all learners: B, if there is only one.
        outputs: which of the network's outputs are the samples, ``[B]``; None says that all are, in order.
    """

    observation: Any
    action: npt.NDArray[Any]
    log_prob: Floats
    value: Floats
    advantage: Floats
    target: Floats
    total: int
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

    def gradient(self, policy: Floats, value: Floats, batch: Minibatch) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the network's outputs.

        Args:
            policy: ``[B, outputs]``.
            value: ``[B]``.
            batch: what the outputs are for.

        Returns:
            Derivatives by ``policy`` and by ``value``, and the ``DIAGNOSTICS`` in order.
        """
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
        d_log_prob /= -size
        d_policy = self.distribution.gradient(d_log_prob, -self.entropy_coef / float(size))

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
        error *= np.float32(self.value_coef) / size
        return d_policy, error, diagnostics

    def _value_error(self, value: Floats, batch: Minibatch) -> tuple[Floats, float]:
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
