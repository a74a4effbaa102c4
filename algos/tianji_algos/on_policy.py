"""Shared parts of PPO, IMPALA and MAPPO: the agent that samples from a policy, and the base of their updates.

The updates themselves are in each algorithm's file. Each loss exists in torch, on the network's device, with
tensors as minibatches, so that an update reads nothing to the host. On a CPU, ``fast_cpu`` has its
derivatives by the network's outputs by hand, with arrays as minibatches.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from tianji_algos.action_mask import MaskReader
from tianji_algos.core import Agent, Fields, RolloutEmbryo, Spaces, require_model
from tianji_algos.device import Uploads, is_on_host
from tianji_algos.distributions import Distribution, distribution_for
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.recurrent import RecurrentActorCritic
from tianji_algos.normalization import DiscountedReturns, Normalizer, acting_executor, normalizer_of
from tianji_algos.optim import Diagnostics, OptimizedEmbryo
from tianji_algos.rollout_observations import Observations, Sequences
from tianji_algos.rules import ActionRule
from tianji_algos.settings import PolicySettings

Floats = npt.NDArray[np.float32]


class PolicyAgent(Agent):
    """Acts by sampling; records the action and its log-probability.

    Raises:
        UnsupportedSpaceError: there is no distribution over the action space.
        UnsuitableModelError: the model is no ``ActorCritic``.
    """

    algorithm: ClassVar[str]
    """Name in error messages."""
    contract: ClassVar[type[torch.nn.Module]] = ActorCritic
    """Class that its networks derive from."""

    def __init__(
        self, spaces: Spaces, model: ActorCritic, settings: BaseModel, num_envs: int, seed: int
    ) -> None:
        require_model(model, self.contract, self.algorithm, self.default_model)
        self.settings = settings
        self._distribution = self.distribution(spaces, settings)
        self._executor = acting_executor(model, num_envs)
        self._mask = MaskReader.of(spaces)
        normalizer = normalizer_of(model)
        self._returns: DiscountedReturns | None = None
        if normalizer is not None and normalizer.returns is not None:
            self._returns = DiscountedReturns(num_envs, normalizer.asked.gamma)
        self._rng = np.random.default_rng(seed)
        self._action = np.empty((num_envs, *self._distribution.action_shape), self._distribution.action_dtype)

    @classmethod
    def distribution(cls, spaces: Spaces, settings: Any) -> Distribution:
        """Return the distribution of the actions."""
        return distribution_for(spaces.action, scaled=scales_actions(settings))

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:
        """Record ``action`` as drawn (neither scaled nor clipped) and ``log_prob``."""
        distribution = cls.distribution(spaces, settings)
        return (
            FieldSpec("action", distribution.action_dtype, distribution.action_shape),
            FieldSpec("log_prob", np.dtype(np.float32), distribution.agents),
        )

    @classmethod
    def rule(cls, spaces: Spaces, settings: Any) -> ActionRule:
        """Describe in torch the mode and the samples of the actions' distribution."""
        return cls.distribution(spaces, settings).rule()

    def act(self, observation: npt.NDArray[Any], into: Fields) -> npt.NDArray[Any]:
        """Sample actions for ``observation [N, ...]``; write action and log_prob ``[N, ...]``."""
        policy, value = self._outputs(observation)
        self._distribution.sample(policy, self._rng, self._action, into["log_prob"])
        into["action"][...] = self._action
        self.record_value(value, into)
        return self._distribution.for_environment(self._action)

    def record_value(self, value: npt.NDArray[np.float32], into: Fields) -> None:
        """Record the value ``[N]`` of a step, if the update rule asks for it."""

    def begin(self, fields: Fields) -> None:
        """Write the network's state."""
        self._executor.record(fields)

    def finish(self, fields: Fields, observation: npt.NDArray[Any]) -> None:  # noqa: ARG002 - for subclasses
        """Sum up the discounted returns, where rewards are normalised."""
        if self._returns is not None:
            self._returns.record(fields)

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Clear the network's state of earlier episodes."""
        self._executor.forget(where)

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Choose the likeliest actions."""
        policy, _ = self._outputs(observation)
        return self._distribution.for_environment(self._distribution.mode(policy))

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)

    def _outputs(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Run the network; forbidden actions have the lowest logits."""
        policy, value = self._executor(observation)
        if self._mask is not None:
            self._mask.forbid(policy, observation)
        return policy, value


def scales_actions(settings: Any) -> bool:
    """Whether an agent scales its actions; False for a user's own settings without that key."""
    return bool(getattr(settings, "scale_actions", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMinibatch:
    """Samples for one gradient update: steps that are experience.

    All are arrays for derivatives by hand, and tensors on the network's device for a loss in torch.

    Attributes:
        observation: the network's input: an array, or a tensor on its device; for a recurrent network
            ``Sequences``, with steps that are no samples.
        action: recorded actions, ``[samples, ...]``.
        log_prob: log-probability of each action under the policy that acted, ``[samples]``.
        total: samples of the minibatch over all learners, at least one; a single learner's own.
    """

    observation: Any
    action: Any
    log_prob: Any
    total: int

    @property
    def samples(self) -> int:
        """Number of samples of this learner."""
        return len(self.log_prob)


class Arrays:
    """Memory of minibatches that are arrays, for derivatives by hand."""

    def put(self, array: npt.NDArray[Any]) -> Any:
        """Return the array itself."""
        return array

    def take(self, rows: Any, numbers: Any, axis: int = 0) -> Any:
        """Take the rows ``numbers [K]`` along an axis; both arguments come from ``put``."""
        return np.take(rows, numbers, axis=axis)


class Tensors(Arrays):
    """Memory of minibatches that are tensors on a device, for a loss in torch."""

    def __init__(self, device: torch.device) -> None:
        self._upload = Uploads(device)

    def put(self, array: npt.NDArray[Any]) -> Any:
        """Return a copy of an array, which may change as soon as this returns, on the device."""
        return self._upload(array)

    def take(self, rows: Any, numbers: Any, axis: int = 0) -> Any:
        """Take the rows ``numbers [K]`` along an axis, on the device; both arguments come from ``put``."""
        return rows.index_select(axis, numbers)


class PolicyEmbryo(OptimizedEmbryo, RolloutEmbryo):
    """Update rule with an actor-critic, its optimizer and the memory of rollouts; subclasses do the updates.

    Args:
        model: trained in place, on its final device; its parameters move into one flat tensor.
        distribution: distribution of a sample's action; None: the one for the space of the actions.

    Raises:
        UnsuitableModelError: the model is no ``ActorCritic``.
    """

    contract: ClassVar[type[torch.nn.Module]] = ActorCritic
    example: ClassVar[str] = "mlp_actor_critic"
    settings: PolicySettings
    model: ActorCritic
    _rng: np.random.Generator
    _loss: Any
    """Function in torch of policy, value and minibatch: this learner's part of the loss, and the diagnostics.

    By hand, its ``gradient`` of the same returns derivatives by policy and value, and the diagnostics."""

    def __init__(
        self,
        spaces: Spaces,
        model: ActorCritic,
        settings: PolicySettings,
        seed: int,
        distribution: Distribution | None = None,
    ) -> None:
        super().__init__(model, settings, seed)
        self._optimizer = self._optimize()
        self.uses_per_sample = float(settings.epochs)
        self._choose_derivatives(fits=is_on_host(model), what_fits="a network on a CPU")
        self._mask = MaskReader.of(spaces)
        self._distribution = distribution or distribution_for(spaces.action)
        self._is_recurrent = isinstance(model, RecurrentActorCritic)
        self._normalizer = Normalizer.of(model, spaces)
        self._observations = Observations(spaces, self._flat.device, self._normalizer)
        nothing = np.zeros(len(self.diagnostics), np.float32)
        self._nothing: Diagnostics = nothing
        self._memory = Arrays()
        if self._by_hand:
            self._backprop = model.backprop()
        else:
            self._run = model.training_pass()
            self._nothing = torch.from_numpy(nothing).to(self._flat.device)
            self._memory = Tensors(self._flat.device)
        self._latest: Diagnostics = self._nothing
        """Diagnostics of the last update."""
        self._build_loss()

    @abstractmethod
    def _build_loss(self) -> None:
        """Build the loss by the settings; where ``_by_hand`` says so, the one with derivatives by hand."""

    def adopt_settings(self, settings: PolicySettings) -> None:
        """Train by these settings from now on, with a new loss."""
        super().adopt_settings(settings)
        self.uses_per_sample = float(settings.epochs)
        self._build_loss()

    def _differentiate(self, batch: PolicyMinibatch) -> Diagnostics:
        """Write the gradient of the loss on this learner's samples; returns the diagnostics."""
        if self._by_hand and batch.samples:
            return self._differentiate_by_hand(batch)
        self._gradient.zero_()
        if not batch.samples:  # Other learners have some.
            return self._nothing
        policy, value = self._run(batch.observation)
        if self._mask is not None:
            policy = self._mask.forbidding(policy, _records_of(batch.observation))
        diagnostics: torch.Tensor
        loss, diagnostics = self._loss(policy, value, batch)
        torch.autograd.backward(loss)
        return diagnostics

    def _differentiate_by_hand(self, batch: PolicyMinibatch) -> Floats:
        """Write the gradient without autograd; returns the diagnostics."""
        found: list[Floats] = []

        def loss_gradient(policy: Floats, value: Floats) -> tuple[Floats, Floats]:
            if self._mask is not None:
                policy = policy.copy(order="K")  # Autograd may still need the network's outputs.
                self._mask.forbid(policy, _records_of(batch.observation))
            d_policy, d_value, diagnostics = self._loss.gradient(policy, value, batch)
            found.append(diagnostics)
            return d_policy, d_value

        self._backprop(batch.observation, loss_gradient)
        return found[0]


def _records_of(observation: Any) -> Any:
    """Return the observations alone, also where a network takes them in ``Sequences``."""
    return observation.observation if isinstance(observation, Sequences) else observation
