"""Agents with continuous actions, and updates of an actor and its Q functions: shared by SAC and TD3."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.action_mask import MaskReader
from tianji_algos.batch import Batch
from tianji_algos.bounds import ActionBounds
from tianji_algos.core import Agent, Fields, ReplayEmbryo, Spaces, UpdateResult, require_model
from tianji_algos.device import Exchange, is_on_host
from tianji_algos.errors import UnsuitableModelError
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_q import ActorQ, MLPActorQ, parts_of
from tianji_algos.normalization import Normalizer, acting_executor
from tianji_algos.optim import (
    ActorEmbryo,
    Adam,
    Differentiated,
    Means,
    Norm,
    TargetNetwork,
    adam_of,
    flatten_parameters,
    tensors_of,
)
from tianji_algos.rules import BoundedRule
from tianji_algos.settings import ActorQSettings, ContinuousAgentSettings

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class ContinuousAgent(Agent):
    """Acts by an actor network; records actions as the critics see them, from -1 to 1.

    Raises:
        UnsupportedSpaceError: the action space is no Box with bounds.
        UnsuitableModelError: the algorithm does not work with this kind of model.
    """

    algorithm: ClassVar[str]
    """Name in error messages."""
    contract: ClassVar[type[ActorQ]]
    """Class that its networks derive from."""

    def __init__(
        self, spaces: Spaces, model: ActorQ, settings: ContinuousAgentSettings, num_envs: int, seed: int
    ) -> None:
        require_model(model, self.contract, self.algorithm, self.default_model)
        self._bounds = ActionBounds(spaces.action)
        self._executor = acting_executor(model, num_envs)
        self._rng = np.random.default_rng(seed)
        self._noise = np.empty((num_envs, self._bounds.size), np.float32)
        self._chosen = np.empty_like(self._noise)
        self._warms_up = settings.uniform_warmup
        self._hold, self._held = settings.warmup_hold, 0

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:  # noqa: ARG003
        """Record ``action``, float32 from -1 to 1."""
        return (FieldSpec("action", np.dtype(np.float32), (ActionBounds(spaces.action).size,)),)

    def act(self, observation: Array, into: Fields) -> Array:
        """Choose an exploring action; write ``action [N, A]``."""
        actions = into["action"]
        if self._warms_up:
            if self._held % self._hold == 0:
                self._rng.random(dtype=np.float32, out=self._noise)
                self._noise *= 2.0
                self._noise -= 1.0
            self._held += 1
            np.copyto(actions, self._noise)
        else:
            (outputs,) = self._executor(observation)
            self._explore(outputs, actions)
        return self._bounds.scale(actions)

    @abstractmethod
    def _explore(self, outputs: Floats, actions: Floats) -> None:
        """Write exploring actions ``[N, A]``, from -1 to 1, given the actor's outputs."""

    def schedule(self, env_steps: int) -> None:
        """End the warm-up with the first policy that has seen env steps."""
        if env_steps > 0:
            self._warms_up = False

    def act_greedily(self, observation: Array) -> Array:
        """Choose the tanh of the actor's first A outputs, which is the middle of the policy."""
        (outputs,) = self._executor(observation)
        return self._bounds.scale(np.tanh(outputs[:, : self._bounds.size], out=self._chosen))

    def adopt(self, parameters: Floats) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)


class DeterministicRule(BoundedRule):
    """Acts by the tanh of an actor's outputs, without the noise of training."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__(ActionBounds(space))
        self.outputs = (self.action("action", "tanh of what the actor gives, scaled to the bounds"),)

    def forward(self, given: Sequence[torch.Tensor], noise: torch.Tensor | None) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """Choose all numbers of an action."""
        return (self.scaled(given[0].tanh()),)


class Transitions(NamedTuple):
    """A batch of transitions on the networks' device.

    Attributes:
        observation: ``[B, ...]``.
        action: ``[B, A]``, from -1 to 1.
        reward: scaled sum over n steps, ``[B]``.
        next_observation: ``[B, ...]``.
        discount: factor of the next observation's value, ``[B]``.
        weight: ``[B]``.
    """

    observation: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    next_observation: torch.Tensor
    discount: torch.Tensor
    weight: torch.Tensor


class ActorQEmbryo(ActorEmbryo, ReplayEmbryo):
    """Update rule of Q functions, towards bootstrapped targets, and of an actor that maximises their values.

    An update takes all gradients at the same parameters.

    Args:
        model: trained in place, on its final device; its parameters move into one flat tensor.
        diagnostics: names of the numbers that the losses report.
        seed: seed of the noise that updates draw.

    Raises:
        UnsupportedSpaceError: the action space is no Box with bounds.
        UnsuitableModelError: the algorithm does not work with this kind of model.
    """

    settings: ActorQSettings
    normalizes: ClassVar[bool] = True
    contract: ClassVar[type[ActorQ]]
    """Class that its networks derive from."""
    example: ClassVar[str]
    """Name of a model that would be right."""

    def __init__(
        self, spaces: Spaces, model: ActorQ, settings: ActorQSettings, diagnostics: tuple[str, ...], seed: int
    ) -> None:
        require_model(model, self.contract, self.algorithm, self.example)
        self._bounds = ActionBounds(spaces.action)
        MaskReader.of(spaces)  # Raises if there is a mask.
        flat = flatten_parameters(model)
        assert flat.grad is not None
        try:
            actor, critics = parts_of(model)
        except ValueError as cause:
            what = f"{type(model).__name__} has no actor and critics apart: {cause}"
            raise UnsuitableModelError(f"{what}; the model {self.example!r} would be right") from cause
        means = Means((*diagnostics, "actor_gradient_norm", "critic_gradient_norm"))
        critics_adam, actor_adam = (adam_of(flat, which, settings) for which in (critics, actor))
        super().__init__(settings, critics_adam, actor_adam, means, np.random.default_rng(seed))
        self.model: ActorQ = model
        self._flat, self._gradient = flat, flat.grad
        self._actor_parameters = list(model.actor.parameters())
        self._critics_parameters = list(model.critics.parameters())
        self._target_critics = TargetNetwork(model.critics, flat[critics])
        self._exchange = Exchange(flat.device)
        self._normalizer = Normalizer.of(model, spaces)
        self._choose_derivatives(
            model,
            fits=isinstance(model, MLPActorQ) and is_on_host(model),
            what_fits=f"the model {self.example!r} on a CPU",
        )
        self._differentiate: Callable[[Batch], Differentiated] = self._in_torch

    def update(self, batch: Batch) -> UpdateResult:
        """Take all gradients, then a step of each optimizer; priorities are means over critics."""
        self._normalizer.update_drawn(batch.observation, self._learners)
        if self._by_hand:
            batch = self._normalizer.seen_batch(batch)
        diagnostics, errors = self._differentiate(batch)
        if self._learners.number > 1:
            self._learners.add_up(self._gradient.mul_(1.0 / self._learners.number))
        critic_norm = self._step(self._optimizer)
        self._means.add(diagnostics, self._improve(), critic_norm)
        priorities = self._exchange.to_host_if(errors, asked=self.prioritised)
        return UpdateResult(len(errors) * self._learners.number, priorities)

    def _in_torch(self, batch: Batch) -> Differentiated:
        """Differentiate the losses with autograd."""
        self._gradient.zero_()
        return self._losses(self._seen(batch))

    @abstractmethod
    def _losses(self, seen: Transitions) -> tuple[torch.Tensor, torch.Tensor]:
        """Add all losses' gradients to those of the parameters, which are 0.

        Returns:
            The diagnostics, and the absolute errors ``[B]``.
        """

    def _td_loss(
        self, seen: Transitions, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the loss of the Q functions for ``target [B]``, mean value and absolute errors ``[B]``."""
        values = self.model.critics(seen.observation, seen.action)
        errors = values - target
        loss = 0.5 * (errors.square() * seen.weight).sum(dim=0).mean()
        return loss, values.detach().mean(), errors.detach().abs().mean(dim=0)

    @abstractmethod
    def _improve(self) -> Norm:
        """Step all optimizers but the critics', then the target networks; return the actor's norm."""

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return all networks, the optimizers' moments and step counts, and the random stream."""
        tensors, rest = super().state()
        return tensors, rest | {"actor_steps": self._actor_adam.steps}

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; see ``OptimizedEmbryo``."""
        super().load_state(tensors, rest)
        self._actor_adam.steps = rest["actor_steps"]

    def _seen(self, batch: Batch) -> Transitions:
        to_device = self._exchange.to_device
        return Transitions(
            observation=self._normalizer.seen(to_device(batch.observation)),
            action=to_device(batch.fields["action"]),
            reward=to_device(batch.reward) * self.settings.reward_scale,
            next_observation=self._normalizer.seen(to_device(batch.next_observation)),
            discount=to_device(batch.discount),
            weight=to_device(batch.weight),
        )

    def _draw(self, size: int) -> torch.Tensor:
        """Draw ``[B, A]`` from a standard normal distribution, alike on every device."""
        shape = (size, self._bounds.size)
        return self._exchange.to_device(self._rng.standard_normal(shape, dtype=np.float32))

    def _networks(self) -> dict[str, torch.Tensor]:
        """Name every tensor of all networks, in place."""
        return tensors_of("model", self.model) | tensors_of("target_critics", self._target_critics.model)

    def _optimizers(self) -> dict[str, Adam]:
        """Name the optimizers."""
        assert isinstance(self._optimizer, Adam)
        return {"actor": self._actor_adam, "critics": self._optimizer}
