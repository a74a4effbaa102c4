"""PPO's update rule (Schulman et al., 2017)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch

from tianji_algos.core import Fields
from tianji_algos.distributions import Distribution
from tianji_algos.on_policy.on_policy import PolicyEmbryo
from tianji_algos.ppo.loss import DIAGNOSTICS, PPOLoss, PPOMinibatch
from tianji_algos.ppo.rollout import PPORollout, SampleRollout, SequenceRollout
from tianji_algos.ppo.settings import PPOSettings
from tianji_algos.rollout_observations import Observations


class PPOEmbryo(PolicyEmbryo):
    """Trains an actor-critic on rollouts with the clipped surrogate loss.

    One epoch of one minibatch, in step and with advantages as they are, is advantage actor-critic (Mnih et
    al., 2016): all ratios are 1 then, and nothing is clipped.
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
