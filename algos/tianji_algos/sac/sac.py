"""SAC (Haarnoja et al., 2018b, algorithm 1): a policy rewarded for its entropy, and twin Q functions.

It reads from top to bottom: draws from the policy, the losses of the Q functions, the policy and the
temperature, ``update`` (gradients and steps), and the agent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.batch import Batch
from tianji_algos.continuous import ActorQEmbryo, ContinuousAgent, Transitions, td_loss
from tianji_algos.core import Spaces, UpdateResult
from tianji_algos.distributions import HALF_LOG_2PI
from tianji_algos.models.actor_q import Critics, GaussianActorQ, MLPGaussianQ, part_of
from tianji_algos.optim import Differentiated, average_gradients
from tianji_algos.registry import kernel
from tianji_algos.rules import ActionBounds, ActionRule, BoundedRule, normal_noise
from tianji_algos.sac.settings import LEAST_LOG_STD, MOST_LOG_STD, SACAgentSettings, SACSettings

Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("critic_loss", "policy_loss", "mean_q", "td_error", "entropy", "temperature")


def squashed_draw(outputs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return actions ``[B, A]`` and their log-probabilities ``[B]``, differentiably.

    Args:
        outputs: means and logarithms of standard deviations ``[B, 2 A]``.
        noise: standard normal, ``[B, A]``.
    """
    mean, log_std = outputs.chunk(2, dim=1)
    log_std = log_std.clamp(LEAST_LOG_STD, MOST_LOG_STD)
    drawn = torch.addcmul(mean, log_std.exp(), noise)
    normal = -0.5 * noise.square() - log_std - HALF_LOG_2PI
    # log(1 - tanh(u)^2), the logarithm of tanh's derivative, without the square that rounds to 1.
    slope = 2.0 * (math.log(2.0) - drawn - torch.nn.functional.softplus(-2.0 * drawn))
    return drawn.tanh(), (normal - slope).sum(dim=1)


class SACEmbryo(ActorQEmbryo):
    """SAC's update rule, with the losses of the Q functions, the policy and the temperature."""

    algorithm: ClassVar[str] = "SAC"
    contract: ClassVar[type[GaussianActorQ]] = GaussianActorQ
    example: ClassVar[str] = "mlp_gaussian_q"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[SACSettings]] = SACSettings
    settings: SACSettings
    model: GaussianActorQ

    def __init__(self, spaces: Spaces, model: GaussianActorQ, settings: SACSettings, seed: int) -> None:
        super().__init__(spaces, model, settings, seed)
        self._temperature_adam = self._optimize(part_of(model, model.log_temperature), "temperature")
        aim = settings.target_entropy
        self._target_entropy = -float(self._bounds.size) if aim is None else aim
        self._set_temperature(settings.temperature or settings.initial_temperature)
        if self._by_hand:
            critics = self._target_critics.model
            assert isinstance(model, MLPGaussianQ)
            assert isinstance(critics, Critics)
            self._differentiate_by_hand: Callable[[Batch], Differentiated] = kernel("SAC.derivatives")(
                model, critics, settings, self._target_entropy, self._rng
            )
        self.schedule(0)

    # The losses.

    def critic_loss(self, seen: Transitions) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the loss of the Q functions (equation 5), their mean value and absolute errors ``[B]``.

        With n-step returns the entropy of the steps in between does not count.
        """
        with torch.no_grad():
            outputs = self.model.actor(seen.next_observation)
            action, log_prob = squashed_draw(outputs, self._draw(len(outputs)))
            value = self._target_critics.model(seen.next_observation, action).amin(dim=0)
            value = value - self.model.log_temperature.exp() * log_prob
            target = seen.reward + seen.discount * value
        return td_loss(self.model.critics(seen.observation, seen.action), target, seen.weight)

    def policy_loss(self, seen: Transitions) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the policy (equation 9) and the log-probabilities ``[B]`` of its actions."""
        outputs = self.model.actor(seen.observation)
        action, log_prob = squashed_draw(outputs, self._draw(len(outputs)))
        value = self.model.critics(seen.observation, action).amin(dim=0)
        loss = ((self.model.log_temperature.detach().exp() * log_prob - value) * seen.weight).mean()
        return loss, log_prob.detach()

    def temperature_loss(self, log_prob: torch.Tensor) -> torch.Tensor:
        """Return the loss of the temperature (equation 18), by its logarithm as in the authors' code."""
        return -self.model.log_temperature * (log_prob.mean() + self._target_entropy)

    # The gradients of the losses, and the steps of the optimizers.

    def update(self, batch: Batch) -> UpdateResult:
        """Take all gradients at the same parameters, then a step of each optimizer."""
        self._normalizer.update_drawn(batch.observation, self._learners)
        if self._by_hand:
            diagnostics, errors = self._differentiate_by_hand(self._normalizer.seen_batch(batch))
        else:
            diagnostics, errors = self._differentiate(self._seen(batch))
        average_gradients(self._gradient, self._learners)
        critic_norm, actor_norm = self._step(self._optimizer), self._step(self._actor_adam)
        if self.settings.temperature is None:  # Adam's moments would move a fixed one.
            self._step(self._temperature_adam)
        self._target_critics.follow(self.settings.target_tau)
        self._means.add(diagnostics, actor_norm, critic_norm)
        return self._result(errors)

    def _differentiate(self, seen: Transitions) -> Differentiated:
        """Write the gradients of all losses; return the diagnostics and the absolute errors ``[B]``."""
        self._gradient.zero_()
        critic_loss, mean_q, errors = self.critic_loss(seen)
        critic_loss.backward(inputs=self._critics_parameters)  # type: ignore[no-untyped-call]
        policy_loss, log_prob = self.policy_loss(seen)
        policy_loss.backward(inputs=self._actor_parameters)  # type: ignore[no-untyped-call]
        log_temperature = self.model.log_temperature
        if self.settings.temperature is None:
            self.temperature_loss(log_prob).backward(inputs=[log_temperature])  # type: ignore[no-untyped-call]
        entropy, temperature = -log_prob.mean(), log_temperature.detach().exp()
        diagnostics = critic_loss, policy_loss, mean_q, errors.mean(), entropy, temperature
        return torch.stack(diagnostics).detach(), errors

    # The temperature, where it is fixed.

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; a fixed temperature comes from the settings."""
        super().load_state(tensors, rest)
        if self.settings.temperature is not None:
            self._set_temperature(self.settings.temperature)

    def _set_temperature(self, value: float) -> None:
        with torch.no_grad():
            self.model.log_temperature.fill_(math.log(value))


class SACAgent(ContinuousAgent):
    """Draws actions from the policy."""

    algorithm: ClassVar[str] = "SAC"
    contract: ClassVar[type[GaussianActorQ]] = GaussianActorQ
    settings_type: ClassVar[type[SACAgentSettings]] = SACAgentSettings
    default_model: ClassVar[str] = "mlp_gaussian_q"
    default_embryo: ClassVar[str] = "sac"

    @classmethod
    def rule(cls, spaces: Spaces, settings: Any) -> ActionRule:  # noqa: ARG003 - always the same
        """Take the middle of the policy, or draw from it."""
        return SquashedNormalRule(spaces.action)

    def _explore(self, outputs: Floats, actions: Floats) -> None:
        size = self._bounds.size
        self._rng.standard_normal(dtype=np.float32, out=self._noise)
        np.clip(outputs[:, size:], LEAST_LOG_STD, MOST_LOG_STD, out=actions)
        np.exp(actions, out=actions)
        actions *= self._noise
        actions += outputs[:, :size]
        np.tanh(actions, out=actions)


class SquashedNormalRule(BoundedRule):
    """Acts as ``SACAgent`` does: by the tanh of a normal distribution's mean, or of a draw."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__(ActionBounds(space))
        self.noise = normal_noise(self.action_shape)
        self.outputs = (
            self.action("action", "tanh of the mean, scaled to the bounds"),
            self.action("sampled_action", "tanh of mean + std * noise, scaled to the bounds"),
            self.number("mean", "of the normal distribution whose tanh is scaled to the bounds"),
            self.number("std", "its standard deviation"),
        )

    def forward(self, given: Sequence[torch.Tensor], noise: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Choose all numbers of an action."""
        assert noise is not None
        mean, log_std = (half.reshape(-1, *self.action_shape) for half in given[0].chunk(2, dim=1))
        std = log_std.clamp(LEAST_LOG_STD, MOST_LOG_STD).exp()
        return self.scaled(mean.tanh()), self.scaled((mean + std * noise).tanh()), mean, std

    def draw(self, rng: np.random.Generator, number: int) -> Floats:
        """Draw noise action by action, all numbers of each in a row."""
        return rng.standard_normal((number, *self.action_shape), dtype=np.float32)
