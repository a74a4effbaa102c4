"""What update rules that train a policy on rollouts have in common: PPO's and IMPALA's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, Peers, RolloutEmbryo, Spaces, require_model
from tianji_algos.distributions import Distribution, distribution_for
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.through_time import RecurrentActorCritic
from tianji_algos.on_policy.rollout import PolicyMinibatch, PolicyRollout
from tianji_algos.on_policy.settings import PolicySettings
from tianji_algos.optim.optimizers import build_optimizer
from tianji_algos.optim.single_optimizer import SingleOptimizer
from tianji_algos.optim.state import Means, flatten_parameters, tensors_of
from tianji_algos.rollout_observations import Observations

Floats = npt.NDArray[np.float32]


class PolicyLoss(Protocol):
    """A loss that is differentiated by hand."""

    def gradient(self, policy: Floats, value: Floats, batch: Any) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the network's outputs for a minibatch; give the diagnostics beside that.

        With other learners this is their part of the derivative of one loss on all their samples.
        """


class PolicyEmbryo(SingleOptimizer, RolloutEmbryo):
    """Trains an actor-critic on rollouts.

    Args:
        spaces: of one environment.
        model: trained in place, on its final device; its parameters move into one flat tensor.
        settings: hyperparameters, an instance of ``settings_type``.
        seed: of the order in which samples are seen.

    Raises:
        UnsuitableModelError: the model is no ``ActorCritic``.
    """

    contract: ClassVar[type[torch.nn.Module]] = ActorCritic
    """What its networks derive from."""
    example_model: ClassVar[str] = "mlp_actor_critic"
    """Name of one of them."""
    diagnostics: ClassVar[tuple[str, ...]]
    """Names of the numbers that the loss gives."""
    settings: PolicySettings

    def __init__(self, spaces: Spaces, model: ActorCritic, settings: PolicySettings, seed: int) -> None:
        require_model(model, self.contract, self.algorithm, self.example_model)
        flat = flatten_parameters(model)
        means = Means((*self.diagnostics, "gradient_norm"))
        super().__init__(settings, build_optimizer(flat, settings), means)
        self.model: ActorCritic = model
        self.uses_per_sample = float(settings.epochs)
        self._backprop = model.backprop()
        self._loss = self._build_loss(self._distribution(spaces))
        self._rollout = self._build_rollout(
            Observations(spaces, flat.device), is_recurrent=isinstance(model, RecurrentActorCritic)
        )
        self._rng = np.random.default_rng(seed)
        self._latest = np.zeros(len(self.diagnostics), np.float32)

    def _distribution(self, spaces: Spaces) -> Distribution:
        """Give what the policy chooses from."""
        return distribution_for(spaces.action)

    @abstractmethod
    def _build_loss(self, distribution: Distribution) -> PolicyLoss:
        """Build the loss, of a policy that chooses from ``distribution``."""

    @abstractmethod
    def _build_rollout(self, observations: Observations, *, is_recurrent: bool) -> PolicyRollout:
        """Build what holds a rollout; a network that ``is_recurrent`` takes ``Sequences``."""

    def join(self, peers: Peers) -> None:
        """Learn from one rollout together: the update is the one that its whole minibatch would give."""
        super().join(peers)
        self._rollout.join(peers)

    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[Any]:
        """Yield the minibatches of all epochs."""
        self._rollout.gather(fragments)
        for _ in range(self.settings.epochs):
            yield from self._rollout.minibatches(self._rng)

    def update(self, batch: PolicyMinibatch) -> int:
        """Make one step of the optimizer."""

        def loss_gradient(policy: Floats, value: Floats) -> tuple[Floats, Floats]:
            d_policy, d_value, self._latest = self._loss.gradient(policy, value, batch)
            return d_policy, d_value

        if batch.samples:
            self._backprop(batch.observation, loss_gradient)
        else:
            self._optimizer.gradient.zero_()
            self._latest = np.zeros(len(self.diagnostics), np.float32)
        if self._peers.number > 1:
            self._peers.add_up(self._optimizer.gradient)
        self._means.add(self._latest, self._optimizer.step())
        return batch.total

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Give parameters, what the optimizer remembers, and the state of the random stream."""
        tensors, rest = super().state()
        return tensors, {**rest, "rng": self._rng.bit_generator.state}

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; what is scheduled is the settings' business.

        Raises:
            StateMismatchError: see ``SingleOptimizer``.
        """
        super().load_state(tensors, rest)
        self._rng.bit_generator.state = rest["rng"]

    def _networks(self) -> dict[str, torch.Tensor]:
        """Name every tensor of the network, in place."""
        return tensors_of("model", self.model)
