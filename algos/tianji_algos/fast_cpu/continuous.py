"""The actor of SAC and TD3 on a CPU, and their losses for fully connected networks, differentiated by hand.

``sac/sac.py`` and ``td3/td3.py`` say what is computed, and why. All arrays are feature-major, ``[width, B]``,
as in the layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.batch import Batch
from tianji_algos.core import Executor
from tianji_algos.distributions import normal_log_prob
from tianji_algos.fast_cpu.layers import dense_network, gradient_views, select_layers, value_views
from tianji_algos.models.actor_q import Actor, Critics, MLPActorQ, MLPDeterministicQ, MLPGaussianQ, part_of
from tianji_algos.models.layers import flat_views
from tianji_algos.optim import Differentiated
from tianji_algos.sac.settings import LEAST_LOG_STD, MOST_LOG_STD, SACSettings
from tianji_algos.settings import ActorQSettings
from tianji_algos.td3.settings import TD3Settings

Floats = npt.NDArray[np.float32]

_LOG_2: Final = np.float32(math.log(2.0))


Layers = tuple[list[Floats], list[Floats]]
"""Weights and biases of a network, or their derivatives."""


class _Actor:
    """An actor over the parameters of its network."""

    def __init__(self, actor: Actor, activation: str) -> None:
        self._encode = actor.encoder
        self._network = dense_network(value_views(actor), "layers", activation)

    def forward(self, observation: npt.NDArray[Any]) -> Floats:
        """Compute ``[outputs, B]``; reused by the next call."""
        return self._network.forward(self._encode(observation))

    def backward(self, d_outputs: Floats, gradients: Layers) -> None:
        """Write the gradient of the last ``forward``, given ``[outputs, B]``."""
        self._network.backward(d_outputs, *gradients)


class ActorExecutor(Executor):
    """The actor's forward pass over a flat array of its own."""

    def __init__(self, model: MLPActorQ) -> None:
        self._encode = model.actor.encoder
        self._flat, arrays = flat_views(model.actor.layers, "layers")
        self._layers = dense_network(arrays, "layers", model.settings.activation)
        self._where = part_of(model, model.actor)

    def adopt(self, parameters: Floats) -> None:
        """Copy the actor's part of ``parameters [parameter_count]`` in."""
        np.copyto(self._flat, parameters[self._where])

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Return the actor's outputs of ``observation [N, ...]``; they are reused by the next call."""
        return (self._layers.forward(self._encode(observation)).T,)


class _Critics:
    """Q functions over the parameters of their networks; they keep the last forward pass for its derivatives.

    Args:
        number: use the first so many; None: all.
    """

    def __init__(self, critics: Critics, activation: str, number: int | None = None) -> None:
        self._encode = critics.encoder
        arrays = value_views(critics)
        self._networks = [dense_network(arrays, prefix, activation) for prefix in _prefixes(critics)[:number]]
        self._values = np.empty((0, 0), np.float32)
        self._rows = self._d_action = np.empty((0, 0), np.float32)

    def forward(self, observation: npt.NDArray[Any], action: Floats) -> Floats:
        """Compute ``[C, B]`` of actions ``[A, B]``; reused by the next call."""
        features = self._encode.features
        if self._values.shape[1] != len(observation):
            self._values = np.empty((len(self._networks), len(observation)), np.float32)
            self._rows = np.empty((len(observation), features + len(action)), np.float32)
            self._d_action = np.empty(action.shape, np.float32)
        self._rows[:, :features] = self._encode(observation)
        self._rows[:, features:] = action.T
        for network, values in zip(self._networks, self._values, strict=True):
            values[:] = network.forward(self._rows)[0]
        return self._values

    def backward(self, d_values: Floats, gradients: Sequence[Layers]) -> None:
        """Write the gradient of the last ``forward``, given ``[C, B]``."""
        for network, d_value, layers in zip(self._networks, d_values, gradients, strict=True):
            network.backward(d_value[None], *layers)

    def backward_to_action(self, d_values: Floats) -> Floats:
        """Return the derivative by the actions of the last ``forward``, ``[A, B]``, given ``[C, B]``."""
        actions = slice(self._encode.features, None)
        total = np.zeros_like(self._d_action)
        for network, d_value in zip(self._networks, d_values, strict=True):
            network.backward(d_value[None], None, None, self._d_action, actions)
            total += self._d_action
        return total


def _prefixes(critics: Critics) -> list[str]:
    """Name the networks of Q functions."""
    return [f"networks.{k}" for k in range(len(critics.networks))]


class _ByHand:
    """Base of both algorithms' losses: values, and the derivative of their squared errors.

    Args:
        model: in its final memory, with the memory of its gradients.
        target: target Q functions.
        judges: number of Q functions whose values the actor maximises; None: all.
    """

    def __init__(
        self,
        model: MLPActorQ,
        target: Critics,
        settings: ActorQSettings,
        rng: np.random.Generator,
        judges: int | None = None,
    ) -> None:
        self._settings = settings
        self._rng = rng
        activation = model.settings.activation
        self._actor = _Actor(model.actor, activation)
        self._critics = _Critics(model.critics, activation)
        self._judges = _Critics(model.critics, activation, judges)  # For the actor's actions.
        self._target = _Critics(target, activation)
        self._actor_gradients = select_layers(gradient_views(model.actor), "layers")
        gradients = gradient_views(model.critics)
        self._critics_gradients = [select_layers(gradients, prefix) for prefix in _prefixes(model.critics)]

    def _fit_critics(self, batch: Batch, after: Floats, weight: Floats) -> tuple[float, float, float, Floats]:
        """Write the gradient of the critics' loss.

        Args:
            after: value of the next observation, ``[B]``.
            weight: importance weight of each sample, divided by B.

        Returns:
            Loss, mean value, mean error, and absolute errors ``[B]``.
        """
        target = batch.reward * np.float32(self._settings.reward_scale) + batch.discount * after
        values = self._critics.forward(batch.observation, batch.fields["action"].T)
        mean = float(values.mean())
        errors = values - target
        d_values = errors * weight
        loss = 0.5 * float(np.vdot(d_values, errors))
        self._critics.backward(d_values, self._critics_gradients)
        np.abs(errors, out=errors)
        magnitude: Floats = errors.mean(axis=0)
        return loss, mean, float(magnitude.mean()), magnitude

    def _draw(self, shape: tuple[int, ...]) -> Floats:
        """Draw from a standard normal distribution, ``[A, B]``, as the losses in torch do."""
        return self._rng.standard_normal(shape[::-1], dtype=np.float32).T


class SACByHand(_ByHand):
    """Differentiates SAC's losses.

    Args:
        target_entropy: target entropy of the policy.
    """

    def __init__(
        self,
        model: MLPGaussianQ,
        target: Critics,
        settings: SACSettings,
        target_entropy: float,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(model, target, settings, rng)
        self._log_temperature = model.log_temperature.detach().numpy()
        assert model.log_temperature.grad is not None
        self._d_log_temperature = model.log_temperature.grad.numpy()
        self._learns_temperature = settings.temperature is None
        self._target_entropy = target_entropy

    def __call__(self, batch: Batch) -> Differentiated:
        """Write all gradients; returns the diagnostics and the absolute errors ``[B]``."""
        temperature = np.exp(self._log_temperature)
        weight = batch.weight / np.float32(len(batch.weight))

        drawn = _SquashedDraw(self._actor.forward(batch.next_observation), self._draw)
        after = self._target.forward(batch.next_observation, drawn.action).min(axis=0)
        after -= temperature * drawn.log_prob
        critic_loss, mean_q, error, errors = self._fit_critics(batch, after, weight)

        drawn = _SquashedDraw(self._actor.forward(batch.observation), self._draw)
        values = self._judges.forward(batch.observation, drawn.action)
        least = values.min(axis=0)
        policy_loss = float(np.vdot(weight, temperature * drawn.log_prob - least))
        d_action = self._judges.backward_to_action(np.where(values == least, -weight, np.float32(0.0)))
        self._actor.backward(drawn.gradient(d_action, temperature * weight), self._actor_gradients)

        log_prob = float(drawn.log_prob.mean())
        if self._learns_temperature:
            self._d_log_temperature[...] = -(log_prob + self._target_entropy)
        return (critic_loss, policy_loss, mean_q, error, -log_prob, float(temperature)), errors


class _SquashedDraw:
    """Actions ``[A, B]`` that are tanh of a draw, and their log-probabilities ``[B]``.

    Args:
        outputs: means and logarithms of standard deviations, ``[2 A, B]``; copied.
        draw: gives standard normal noise of a shape.
    """

    def __init__(self, outputs: Floats, draw: Any) -> None:
        mean, log_std = np.split(outputs, 2)
        self._inside = (log_std >= LEAST_LOG_STD) & (log_std <= MOST_LOG_STD)
        log_std = np.clip(log_std, np.float32(LEAST_LOG_STD), np.float32(MOST_LOG_STD))
        noise: Floats = draw(mean.shape)
        self._spread: Floats = np.exp(log_std) * noise
        drawn = mean + self._spread
        self.action: Floats = np.tanh(drawn)
        slope = np.float32(2.0) * (_LOG_2 - drawn - np.logaddexp(np.float32(-2.0) * drawn, np.float32(0.0)))
        self.log_prob: Floats = normal_log_prob(noise, log_std) - np.add.reduce(slope)

    def gradient(self, d_action: Floats, d_log_prob: Floats) -> Floats:
        """Derive by the outputs, ``[2 A, B]``.

        Args:
            d_action: derivative of the loss by each action, ``[A, B]``.
            d_log_prob: derivative of the loss by each log-probability, ``[B]``.
        """
        action = self.action
        # d log(1 - tanh(u)^2) / du = -2 tanh(u), and d tanh(u) / du = 1 - tanh(u)^2.
        d_drawn = np.float32(2.0) * action * d_log_prob + d_action * (np.float32(1.0) - action * action)
        d_log_std = (d_drawn * self._spread - d_log_prob) * self._inside
        return np.concatenate((d_drawn, d_log_std))


class TD3ByHand(_ByHand):
    """Differentiates TD3's losses.

    Args:
        target_actor: target network of the actor.
    """

    def __init__(
        self,
        model: MLPDeterministicQ,
        target: Critics,
        target_actor: Actor,
        settings: TD3Settings,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(model, target, settings, rng, judges=1)
        self._target_actor = _Actor(target_actor, model.settings.activation)
        self._deviation = np.float32(settings.target_noise)
        self._most = np.float32(settings.target_noise_clip)

    def fit_critics(self, batch: Batch) -> tuple[float, float, float, Floats]:
        """Write the critics' gradient; returns loss, mean value, mean error, absolute errors ``[B]``."""
        action = np.tanh(self._target_actor.forward(batch.next_observation))
        noise = self._draw(action.shape) * self._deviation
        action += np.clip(noise, -self._most, self._most, out=noise)
        np.clip(action, np.float32(-1.0), np.float32(1.0), out=action)
        after = self._target.forward(batch.next_observation, action).min(axis=0)
        return self._fit_critics(batch, after, batch.weight / np.float32(len(batch.weight)))

    def fit_actor(self, batch: Batch) -> float:
        """Write the gradient of the actor; returns its loss."""
        weight = batch.weight / np.float32(len(batch.weight))
        action = np.tanh(self._actor.forward(batch.observation))
        values = self._judges.forward(batch.observation, action)
        loss = -float(np.vdot(weight, values[0]))
        d_action = self._judges.backward_to_action(-weight[None])
        d_action *= np.float32(1.0) - action * action
        self._actor.backward(d_action, self._actor_gradients)
        return loss
