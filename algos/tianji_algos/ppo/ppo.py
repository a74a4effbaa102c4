"""Proximal policy optimisation (Schulman et al., 2017): agent, loss and update rule.

The clipped surrogate (equation 7) and half the squared error of the value are simple enough to differentiate
by hand; the network carries the two derivatives backwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, Spaces
from tianji_algos.distributions import Distribution
from tianji_algos.fields import FieldSpec
from tianji_algos.on_policy import PolicyAgent, PolicyEmbryo
from tianji_algos.ppo.rollout import PPOMinibatch, PPORollout, SampleRollout, SequenceRollout
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_algos.rollout_observations import Observations

Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


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


@dataclass
class PPOLoss:
    """The loss on one minibatch.

    Attributes:
        clip_range: epsilon of the clipped surrogate; set anew by its schedule.
        clip_value: clip the value's change by ``clip_range``, too.
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
        """Return the error that flows back, ``[B]``, and the mean of half its square."""
        error = value - batch.target
        if not self.clip_value:
            return error, 0.5 * float(np.dot(error, error)) / len(error)
        change = value - batch.value
        clipped_error = batch.value + np.clip(change, -self.clip_range, self.clip_range) - batch.target
        is_worse = np.square(clipped_error) > np.square(error)  # then the clipped, constant, term counts
        loss = 0.5 * float(np.maximum(np.square(clipped_error), np.square(error)).mean())
        error[is_worse] = 0.0
        return error, loss


class PPOEmbryo(PolicyEmbryo):
    """Trains an actor-critic on rollouts with the clipped surrogate loss.

    One epoch of one minibatch, in ``sync`` mode and without normalised advantages, is advantage actor-critic
    (Mnih et al., 2016): all ratios are 1 then, and nothing is clipped.
    """

    algorithm: ClassVar[str] = "PPO"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[PPOSettings]] = PPOSettings
    settings: PPOSettings
    _loss: PPOLoss

    def _build_loss(self, distribution: Distribution) -> PPOLoss:
        """Build the clipped surrogate loss."""
        return PPOLoss(
            distribution,
            self.settings.clip_range,
            self.settings.clip_value,
            self.settings.value_coef,
            self.settings.entropy_coef,
        )

    def _build_rollout(self, observations: Observations, *, is_recurrent: bool) -> PPORollout:
        """Build what shuffles samples, or sequences."""
        rollout: type[PPORollout] = SequenceRollout if is_recurrent else SampleRollout
        return rollout(self.settings, observations)

    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[PPOMinibatch]:
        """Yield the minibatches of all epochs; fewer if the policy moves beyond ``target_kl``."""
        limit = self.settings.target_kl
        for minibatch in super().minibatches(fragments):
            yield minibatch
            if limit is not None and self._divergence(minibatch) > limit:
                return

    def metrics(self) -> dict[str, float]:
        """Mean losses and diagnostics over the updates since the last call; empty if there were none."""
        means = super().metrics()
        return means and {**means, "clip_range": self._loss.clip_range}

    def schedule(self, env_steps: int) -> None:
        """Set learning rate and clip range for so many env steps seen."""
        super().schedule(env_steps)
        settings = self.settings
        remaining = settings.remaining(settings.clip_range_schedule, env_steps)
        self._loss.clip_range = settings.clip_range * remaining

    def _divergence(self, batch: PPOMinibatch) -> float:
        """Estimate how far the policy has moved, over the samples of all learners in the last minibatch."""
        own = float(self._latest[DIAGNOSTICS.index("approx_kl")])
        if self._peers.number == 1:
            return own
        divergence = torch.tensor([own * batch.samples / batch.total], dtype=torch.float64)
        self._peers.add_up(divergence)
        return float(divergence)
