"""What update rules that train a policy on rollouts have in common: PPO's and IMPALA's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, RolloutEmbryo, Spaces, require_model
from tianji_algos.distributions import Distribution, distribution_for
from tianji_algos.flat import flatten_parameters
from tianji_algos.means import Means
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.through_time import RecurrentActorCritic
from tianji_algos.optimizer_choice import build_optimizer
from tianji_algos.peers import ALONE, Peers
from tianji_algos.policy_rollout import PolicyMinibatch, PolicyRollout
from tianji_algos.policy_settings import PolicySettings
from tianji_algos.rollout_observations import Observations
from tianji_algos.state import check_algorithm, copy_tensors, restore_tensors, tensors_of

Floats = npt.NDArray[np.float32]


class PolicyLoss(Protocol):
    """A loss that is differentiated by hand."""

    def gradient(self, policy: Floats, value: Floats, batch: Any) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the network's outputs for a minibatch; give the diagnostics beside that.

        With other learners this is their part of the derivative of one loss on all their samples.
        """


class PolicyEmbryo(RolloutEmbryo):
    """Trains an actor-critic on rollouts.

    Args:
        spaces: of one environment.
        model: trained in place, on its final device; its parameters move into one flat tensor.
        settings: hyperparameters, an instance of ``settings_type``.
        seed: of the order in which samples are seen.

    Raises:
        UnsuitableModelError: the model is no ``ActorCritic``.
    """

    algorithm: ClassVar[str]
    """What it is called in errors and, in small letters, in checkpoints."""
    contract: ClassVar[type[torch.nn.Module]] = ActorCritic
    """What its networks derive from."""
    example_model: ClassVar[str] = "mlp_actor_critic"
    """Name of one of them."""
    diagnostics: ClassVar[tuple[str, ...]]
    """Names of the numbers that the loss gives."""

    def __init__(self, spaces: Spaces, model: ActorCritic, settings: PolicySettings, seed: int) -> None:
        require_model(model, self.contract, self.algorithm, self.example_model)
        self.model: ActorCritic = model
        self.settings = settings
        self.uses_per_sample = float(settings.epochs)
        flat = flatten_parameters(model)
        self._backprop = model.backprop()
        self._peers: Peers = ALONE
        self._optimizer = build_optimizer(flat, settings)
        self._loss = self._build_loss(self._distribution(spaces))
        self._rollout = self._build_rollout(
            Observations(spaces, flat.device), is_recurrent=isinstance(model, RecurrentActorCritic)
        )
        self._rng = np.random.default_rng(seed)
        self._latest = np.zeros(len(self.diagnostics), np.float32)
        self._means = Means((*self.diagnostics, "gradient_norm"))

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
        self._peers = peers
        self._rollout.join(peers)

    def averaged_state(self) -> Sequence[torch.Tensor]:
        """Give what the optimizer remembers of gradients."""
        return tuple(self._optimizer.tensors().values())

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

    def metrics(self) -> dict[str, float]:
        """Mean losses and diagnostics over the updates since the last call; empty if there were none."""
        means = self._means.take()
        return means and {**means, "learning_rate": self._optimizer.learning_rate}

    def schedule(self, env_steps: int) -> None:
        """Set the learning rate for so many env steps seen."""
        settings = self.settings
        remaining = settings.remaining(settings.learning_rate_schedule, env_steps)
        self._optimizer.learning_rate = settings.learning_rate * remaining

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Give parameters, what the optimizer remembers, and the state of the random stream."""
        rest = {
            "algorithm": self.algorithm.lower(),
            f"{self._optimizer.name}_steps": self._optimizer.steps,
            "rng": self._rng.bit_generator.state,
        }
        return copy_tensors(self._tensors()), rest

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; what is scheduled is the settings' business.

        Raises:
            StateMismatchError: the state is another algorithm's, or a tensor is missing, unknown or of
                another shape.
        """
        check_algorithm(rest, self.algorithm.lower())
        restore_tensors(self._tensors(), tensors)
        self._optimizer.steps = rest[f"{self._optimizer.name}_steps"]
        self._rng.bit_generator.state = rest["rng"]

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Name every tensor of the state, in place."""
        return tensors_of("model", self.model) | self._optimizer.tensors()
