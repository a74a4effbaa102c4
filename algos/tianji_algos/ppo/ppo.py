"""Proximal policy optimisation (Schulman et al., 2017): loss, update rule and agent.

``rollout.py`` has the advantages and the minibatches; those of a network that remembers are whole sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from tianji_algos.core import Fields, Spaces
from tianji_algos.distributions import Distribution
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.normalized_values import RecordedValues
from tianji_algos.on_policy import Arrays, PolicyAgent, PolicyEmbryo
from tianji_algos.optim import Diagnostics
from tianji_algos.ppo.rollout import PPOMinibatch, PPORollout, SampleRollout, SequenceRollout
from tianji_algos.ppo.settings import FASTEST, SLOWEST, PPOAgentSettings, PPOSettings
from tianji_algos.registry import kernel
from tianji_algos.rollout_observations import Observations
from tianji_algos.schedules import remaining

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
DIVERGENCE: Final = DIAGNOSTICS.index("approx_kl")
FACTOR: Final = 1.5
"""Factor by which an adaptive learning rate changes at a time."""


class PPOLoss:
    """The loss on one minibatch (equation 9).

    Attributes:
        clip_range: epsilon; set anew by its schedule.
    """

    def __init__(self, distribution: Distribution, settings: PPOSettings) -> None:
        self.clip_range = settings.clip_range
        self._distribution = distribution
        self._settings = settings

    def __call__(
        self, policy: torch.Tensor, value: torch.Tensor, batch: PPOMinibatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this learner's part of the mean over all samples, and the ``DIAGNOSTICS`` of its own.

        Args:
            policy: ``[B, outputs]``; more rows where ``batch.outputs`` says which are samples.
            value: ``[B]``, likewise.
            batch: what the outputs are for; it has at least one sample.
        """
        settings, epsilon = self._settings, self.clip_range
        if batch.outputs is not None:
            policy, value = policy.index_select(0, batch.outputs), value.index_select(0, batch.outputs)
        log_prob, entropy = self._distribution.evaluate(policy, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon)
        gain = torch.minimum(ratio * batch.advantage, clipped * batch.advantage)  # equation 7

        square = (value - batch.target).square()
        if settings.clip_value:
            near = batch.value + (value - batch.value).clamp(-epsilon, epsilon)
            square = torch.maximum(square, (near - batch.target).square())

        each = -gain + settings.value_coef * 0.5 * square - settings.entropy_coef * entropy
        with torch.no_grad():
            divergence = ratio - 1.0 - log_ratio  # Schulman's low-variance estimate
            columns = (-gain, 0.5 * square, entropy, divergence, (clipped != ratio).float())
            diagnostics = torch.stack(columns).mean(dim=1)
        return each.sum() / batch.total, diagnostics


class PPOEmbryo(PolicyEmbryo):
    """Trains an actor-critic on rollouts with the clipped surrogate loss.

    One epoch of one minibatch, in ``sync`` mode and without normalised advantages, is advantage actor-critic
    (Mnih et al., 2016): all ratios are 1 then, and nothing is clipped.
    """

    algorithm: ClassVar[str] = "PPO"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[PPOSettings]] = PPOSettings
    settings: PPOSettings
    _rollout: PPORollout
    _loss: Any
    """``PPOLoss``, or what stands in for it on a CPU; both have a ``clip_range``."""

    def __init__(self, spaces: Spaces, model: ActorCritic, settings: PPOSettings, seed: int) -> None:
        super().__init__(spaces, model, settings, seed)
        self._adapts = settings.learning_rate_schedule == "adaptive"
        self._began_at = settings.learning_rate
        self._diverged: float | torch.Tensor = 0.0
        self._samples = 0
        """Number of samples whose divergences ``_diverged`` sums in this epoch, where the rate adapts."""

    def _build_derivatives(self, distribution: Distribution) -> Callable[[Any], Diagnostics]:
        """Build the clipped surrogate loss."""
        if self._by_hand:
            self._loss = kernel("PPOLoss")(distribution, self.settings)
            return self._from_hand(self._loss)
        self._loss = PPOLoss(distribution, self.settings)
        return self._in_torch(self._loss)

    def _build_rollout(self, observations: Observations, memory: Arrays, *, is_recurrent: bool) -> PPORollout:
        """Build what shuffles samples, or sequences."""
        rollout: type[PPORollout] = SequenceRollout if is_recurrent else SampleRollout
        return rollout(self.settings, observations, memory)

    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[PPOMinibatch]:
        """Yield the minibatches of all epochs; fewer if the policy moves beyond ``target_kl``."""
        limit = self.settings.target_kl
        self._diverged, self._samples = 0.0, 0
        for minibatch in super().minibatches(fragments):
            yield minibatch
            if self._adapts:
                latest = self._latest[DIVERGENCE]
                own = latest if isinstance(latest, torch.Tensor) else float(latest)
                self._diverged += own * minibatch.samples
                self._samples += minibatch.samples
            if limit is not None and self._divergence(minibatch) > limit:
                self._end_epoch()
                return

    def _end_epoch(self) -> None:
        """Let an adaptive learning rate follow how far the policy is now from the one that acted."""
        if not self._adapts:
            return
        sums = torch.tensor([float(self._diverged), self._samples], dtype=torch.float64)
        self._learners.add_up(sums)
        total, samples = sums.tolist()
        divergence, wanted = total / max(samples, 1.0), self.settings.adaptive_kl
        optimizer = self._optimizer
        if divergence > 2.0 * wanted:
            optimizer.learning_rate = max(optimizer.learning_rate / FACTOR, SLOWEST)
        elif divergence < 0.5 * wanted:
            optimizer.learning_rate = min(optimizer.learning_rate * FACTOR, FASTEST)
        self._diverged, self._samples = 0.0, 0

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return what every update rule does, and an adaptive learning rate."""
        tensors, rest = super().state()
        if self._adapts:
            rest["learning_rate"] = self._optimizer.learning_rate
            rest["began_at"] = self._began_at
        return tensors, rest

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, at the learning rate that was reached."""
        super().load_state(tensors, rest)
        if self._adapts:
            self._optimizer.learning_rate = rest.get("learning_rate", self.settings.learning_rate)
            self._began_at = rest.get("began_at", self.settings.learning_rate)

    def adopt_settings(self, settings: PPOSettings) -> None:  # type: ignore[override]
        """Train by these settings from now on; an adaptive learning rate begins anew if it is another one.

        Another one than that which the present rate began with, in whichever update rule: see ``load_state``.
        """
        if self._adapts and settings.learning_rate != self._began_at:
            self._optimizer.learning_rate = self._began_at = settings.learning_rate
        super().adopt_settings(settings)

    def metrics(self) -> dict[str, float]:
        """Mean losses and diagnostics over the updates since the last call; empty if there were none."""
        means = super().metrics()
        explained = self._rollout.explained_variance
        return means and {**means, "clip_range": self._loss.clip_range, "explained_variance": explained}

    def schedule(self, env_steps: int) -> None:
        """Set learning rate and clip range for so many env steps seen."""
        if not self._adapts:
            super().schedule(env_steps)
        settings = self.settings
        share = remaining(settings.clip_range_schedule, settings.schedule_steps, env_steps)
        self._loss.clip_range = settings.clip_range * share

    def _divergence(self, batch: PPOMinibatch) -> float:
        """Estimate how far the policy has moved, over the samples of all learners in the last minibatch."""
        own = float(self._latest[DIVERGENCE])
        if self._learners.number == 1:
            return own
        divergence = torch.tensor([own * batch.samples / batch.total], dtype=torch.float64)
        self._learners.add_up(divergence)
        return float(divergence)


class PPOAgent(PolicyAgent):
    """Acts by sampling; records action, log-probability and value.

    Values are recorded here because an actor's core has time to spare and the learner's has not.
    """

    algorithm: ClassVar[str] = "PPO"
    settings_type: ClassVar[type[PPOAgentSettings]] = PPOAgentSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "ppo"

    def __init__(
        self, spaces: Spaces, model: ActorCritic, settings: BaseModel, num_envs: int, seed: int
    ) -> None:
        super().__init__(spaces, model, settings, num_envs, seed)
        self._values = RecordedValues.of(model)

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:
        """Record ``action`` as drawn, ``log_prob`` and, with a bootstrap row, ``value``."""
        agents = cls.distribution(spaces, settings).agents
        value = FieldSpec("value", np.dtype(np.float32), agents, bootstrap=True)
        return (*super().fields(spaces, settings), value)

    def record_value(self, value: npt.NDArray[np.float32], into: Fields) -> None:
        """Write ``value [N]``, as returns have it where the network gives normalised ones."""
        into["value"][...] = value.reshape(into["value"].shape)
        if self._values is not None:
            self._values.restore(into["value"])

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        """Act with these parameters from now on, and with the statistics of values among them."""
        super().adopt(parameters)
        if self._values is not None:
            self._values.adopt(parameters)

    def finish(self, fields: Fields, observation: npt.NDArray[Any]) -> None:
        """Write the value of the observation after the last step."""
        super().finish(fields, observation)
        _, value = self._executor.preview(observation)
        self.record_value(value, {"value": fields["value"][-1]})
