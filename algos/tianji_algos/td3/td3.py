"""TD3 (Fujimoto et al., 2018, algorithm 1): twin Q functions, smoothed targets, and a policy that lags.

It reads from top to bottom: the losses of the Q functions and the policy, ``update`` (gradients and steps),
and the agent.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.batch import Batch
from tianji_algos.continuous import ActorQEmbryo, ContinuousAgent, DeterministicRule, Transitions, td_loss
from tianji_algos.core import Spaces, UpdateResult
from tianji_algos.models.actor_q import Actor, Critics, DeterministicActorQ, MLPDeterministicQ, part_of
from tianji_algos.optim import Differentiated, Norm, TargetNetwork, average_gradients
from tianji_algos.registry import kernel
from tianji_algos.rules import ActionRule
from tianji_algos.schedules import falling
from tianji_algos.td3.settings import TD3AgentSettings, TD3Settings

Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("critic_loss", "policy_loss", "mean_q", "td_error")


class TD3Embryo(ActorQEmbryo):
    """TD3's update rule, with the losses of the Q functions and, every few updates, of the policy."""

    algorithm: ClassVar[str] = "TD3"
    contract: ClassVar[type[DeterministicActorQ]] = DeterministicActorQ
    example: ClassVar[str] = "mlp_deterministic_q"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[TD3Settings]] = TD3Settings
    settings: TD3Settings
    model: DeterministicActorQ

    def __init__(self, spaces: Spaces, model: DeterministicActorQ, settings: TD3Settings, seed: int) -> None:
        super().__init__(spaces, model, settings, seed)
        self._target_actor = TargetNetwork(model.actor, self._flat[part_of(model, model.actor)])
        self._networks["target_actor"] = self._target_actor.model
        model.pair_targets(self._target_actor.model, self._target_critics.model)
        if self._by_hand:
            actor, critics = self._target_actor.model, self._target_critics.model
            assert isinstance(model, MLPDeterministicQ)
            assert isinstance(actor, Actor)
            assert isinstance(critics, Critics)
            self._hand = kernel("TD3.derivatives")(model, critics, actor, settings, self._rng)
        self._policy_loss = torch.zeros((), device=self._flat.device)
        self._actor_norm: Norm = 0.0 if self._by_hand else self._policy_loss
        self.schedule(0)

    # The losses.

    def critic_loss(self, seen: Transitions) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the loss of the Q functions, their mean value and absolute errors ``[B]``."""
        settings = self.settings
        with torch.no_grad():
            action = self._target_actor.model(seen.next_observation).tanh()
            noise = self._draw(len(action)) * settings.target_noise
            noise.clamp_(-settings.target_noise_clip, settings.target_noise_clip)
            action = (action + noise).clamp(-1.0, 1.0)
            value = self._target_critics.model(seen.next_observation, action).amin(dim=0)
            target = seen.reward + seen.discount * value
        return td_loss(self.model.critics(seen.observation, seen.action), target, seen.weight)

    def policy_loss(self, seen: Transitions) -> torch.Tensor:
        """Return minus the mean value of the policy's actions by the first Q function."""
        action = self.model.actor(seen.observation).tanh()
        loss: torch.Tensor = -(self.model.critics(seen.observation, action)[0] * seen.weight).mean()
        return loss

    # The gradients of the losses, and the steps of the optimizers.

    def update(self, batch: Batch) -> UpdateResult:
        """Take all gradients at the same parameters, then a step of each optimizer."""
        self._normalizer.update_drawn(batch.observation, self._learners)
        if self._by_hand:
            diagnostics, errors = self._differentiate_by_hand(self._normalizer.seen_batch(batch))
        else:
            diagnostics, errors = self._differentiate(self._seen(batch))
        average_gradients(self._gradient, self._learners)
        critic_norm = self._step(self._optimizer)
        if self._moves_policy(self._optimizer.steps):
            self._actor_norm = self._step(self._actor_adam)
            self._target_actor.follow(self.settings.target_tau)
            self._target_critics.follow(self.settings.target_tau)
        self._means.add(diagnostics, self._actor_norm, critic_norm)
        return self._result(errors)

    def _differentiate_by_hand(self, batch: Batch) -> Differentiated:
        """Write the same gradients as ``_differentiate``, without autograd."""
        loss, mean_q, error, errors = self._hand.fit_critics(batch)
        if self._moves_policy(self._optimizer.steps + 1):
            self._policy_loss.fill_(self._hand.fit_actor(batch))
        return (loss, float(self._policy_loss), mean_q, error), errors

    def _differentiate(self, seen: Transitions) -> Differentiated:
        """Write the gradients of the losses; return the diagnostics and the absolute errors ``[B]``."""
        self._gradient.zero_()
        critic_loss, mean_q, errors = self.critic_loss(seen)
        critic_loss.backward(inputs=self._critics_parameters)  # type: ignore[no-untyped-call]
        if self._moves_policy(self._optimizer.steps + 1):
            policy_loss = self.policy_loss(seen)
            policy_loss.backward(inputs=self._actor_parameters)  # type: ignore[no-untyped-call]
            self._policy_loss = policy_loss.detach()
        diagnostics = critic_loss.detach(), self._policy_loss, mean_q, errors.mean()
        return torch.stack(diagnostics), errors

    def _moves_policy(self, update: int) -> bool:
        """Whether an update, counted from 1, also moves the policy and the target networks."""
        return update % self.settings.policy_delay == 0


class TD3Agent(ContinuousAgent):
    """Adds noise to the policy's actions."""

    algorithm: ClassVar[str] = "TD3"
    contract: ClassVar[type[DeterministicActorQ]] = DeterministicActorQ
    settings_type: ClassVar[type[TD3AgentSettings]] = TD3AgentSettings
    default_model: ClassVar[str] = "mlp_deterministic_q"
    default_embryo: ClassVar[str] = "td3"

    def __init__(
        self,
        spaces: Spaces,
        model: DeterministicActorQ,
        settings: TD3AgentSettings,
        num_envs: int,
        seed: int,
    ) -> None:
        super().__init__(spaces, model, settings, num_envs, seed)
        self._settings = settings
        self._deviation: Floats = np.full((num_envs, 1), settings.noise_start, np.float32)

    def schedule(self, env_steps: int) -> None:
        """Set the deviation of the noise, where it changes over training."""
        super().schedule(env_steps)
        settings = self._settings
        if settings.noise_schedule == "linear":
            self._deviation[:] = falling(
                settings.noise_start, settings.noise_end, settings.noise_steps, env_steps
            )

    def explore_as(self, first: int, of: int) -> None:
        """Set the deviation of each environment, where they differ."""
        settings = self._settings
        if settings.noise_schedule == "per_actor":
            share = (first + np.arange(len(self._deviation))) / max(1, of - 1)
            ratio = settings.noise_end / settings.noise_start
            self._deviation[:, 0] = settings.noise_start * ratio**share

    @classmethod
    def rule(cls, spaces: Spaces, settings: Any) -> ActionRule:  # noqa: ARG003 - always the same
        """Take the policy's actions."""
        return DeterministicRule(spaces.action)

    def _explore(self, outputs: Floats, actions: Floats) -> None:
        self._rng.standard_normal(dtype=np.float32, out=self._noise)
        self._noise *= self._deviation
        np.tanh(outputs, out=actions)
        actions += self._noise
        np.clip(actions, -1.0, 1.0, out=actions)
