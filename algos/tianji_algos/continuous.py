"""Shared parts of SAC and TD3: the agent with bounded actions, the loss of critics, and what is trained."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.action_mask import MaskReader
from tianji_algos.batch import Batch
from tianji_algos.core import Agent, Fields, ReplayEmbryo, Spaces, UpdateResult, require_model
from tianji_algos.device import Exchange, is_on_host
from tianji_algos.errors import UnsuitableModelError
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_q import ActorQ, MLPActorQ, parts_of
from tianji_algos.normalization import Normalizer, acting_executor
from tianji_algos.optim import OptimizedEmbryo, TargetNetwork
from tianji_algos.rules import ActionBounds, BoundedRule
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


def td_loss(
    values: torch.Tensor, target: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss of Q functions, their mean value and absolute errors ``[B]``, means over critics.

    Args:
        values: by each Q function, ``[C, B]``.
        target: ``[B]``.
        weight: ``[B]``.
    """
    errors = values - target
    loss = 0.5 * (errors.square() * weight).sum(dim=0).mean()
    return loss, values.detach().mean(), errors.detach().abs().mean(dim=0)


class ActorQEmbryo(OptimizedEmbryo, ReplayEmbryo):
    """Networks, optimizers and checkpoint of an update rule with an actor and its Q functions.

    The updates are in each algorithm's file.

    Args:
        model: trained in place, on its final device; its parameters move into one flat tensor.
        seed: seed of the noise that updates draw.

    Raises:
        UnsupportedSpaceError: the action space is no Box with bounds.
        UnsuitableModelError: the algorithm does not work with this kind of model.
    """

    settings: ActorQSettings
    model: ActorQ
    normalizes: ClassVar[bool] = True
    norms: ClassVar[tuple[str, ...]] = ("actor_gradient_norm", "critic_gradient_norm")
    draws_apart: ClassVar[bool] = True
    _rng: np.random.Generator

    def __init__(self, spaces: Spaces, model: ActorQ, settings: ActorQSettings, seed: int) -> None:
        super().__init__(model, settings, seed)
        self._bounds = ActionBounds(spaces.action)
        MaskReader.of(spaces)  # Raises if there is a mask.
        try:
            actor, critics = parts_of(model)
        except ValueError as cause:
            what = f"{type(model).__name__} has no actor and critics apart: {cause}"
            raise UnsuitableModelError(f"{what}; the model {self.example!r} would be right") from cause
        self._actor_adam = self._optimize(actor, "actor")
        self._optimizer = self._optimize(critics, "critics")
        self._target_critics = TargetNetwork(model.critics, self._flat[critics])
        self._networks["target_critics"] = self._target_critics.model
        self._actor_parameters = list(model.actor.parameters())
        self._critics_parameters = list(model.critics.parameters())
        self._exchange = Exchange(self._flat.device)
        self._normalizer = Normalizer.of(model, spaces)
        self._choose_derivatives(
            fits=isinstance(model, MLPActorQ) and is_on_host(model),
            what_fits=f"the model {self.example!r} on a CPU",
        )

    def _result(self, errors: Floats | torch.Tensor) -> UpdateResult:
        """Count the uses of an update; its priorities are the absolute errors ``[B]``, if asked for."""
        priorities = self._exchange.to_host_if(errors, asked=self.prioritised)
        return UpdateResult(len(errors) * self._learners.number, priorities)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return all networks, the optimizers' moments and step counts, and the random stream."""
        tensors, rest = super().state()
        return tensors, rest | {"actor_steps": self._actor_adam.steps}

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; see ``OptimizedEmbryo``."""
        super().load_state(tensors, rest)
        self._actor_adam.steps = rest["actor_steps"]

    def _seen(self, batch: Batch) -> Transitions:
        """Bring a batch to the networks' device, as they see it."""
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
