"""PPO's update rule (Schulman et al., 2017)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, RolloutEmbryo, Spaces, require_model
from tianji_algos.distributions import distribution_for
from tianji_algos.flat import flatten_parameters
from tianji_algos.means import Means
from tianji_algos.models.actor_critic import ActorCritic, RecurrentActorCritic
from tianji_algos.observations import Observations
from tianji_algos.optimizers import build_optimizer
from tianji_algos.peers import ALONE, Peers
from tianji_algos.ppo.loss import DIAGNOSTICS, Minibatch, PPOLoss
from tianji_algos.ppo.rollout import Rollout, SampleRollout
from tianji_algos.ppo.sequence_rollout import SequenceRollout
from tianji_algos.ppo.settings import PPOSettings
from tianji_algos.sequences import at_outputs
from tianji_algos.state import check_algorithm, copy_tensors, restore_tensors, tensors_of

Floats = npt.NDArray[np.float32]


class PPOEmbryo(RolloutEmbryo):
    """Trains an actor-critic on rollouts with the clipped surrogate loss.

    One epoch of one minibatch, in step and with advantages as they are, is advantage actor-critic (Mnih et
    al., 2016): all ratios are 1 then, and nothing is clipped.

    Args:
        spaces: of one environment.
        model: trained in place, on its final device; its parameters move into one flat tensor.
        settings: hyperparameters.
        seed: of the order in which samples are seen.

    Raises:
        UnsuitableModelError: the model is no ``ActorCritic``.
    """

    settings_type: ClassVar[type[PPOSettings]] = PPOSettings

    def __init__(self, spaces: Spaces, model: ActorCritic, settings: PPOSettings, seed: int) -> None:
        require_model(model, ActorCritic, "PPO", "mlp_actor_critic")
        self.model: ActorCritic = model
        self.settings = settings
        self.uses_per_sample = float(settings.epochs)
        self._flat = flatten_parameters(model)
        self._backprop = model.backprop()
        self._peers: Peers = ALONE
        self._optimizer = build_optimizer(self._flat, settings)
        self._gradient = self._optimizer.gradient
        self._loss = PPOLoss(
            distribution_for(spaces.action),
            settings.clip_range,
            settings.clip_value,
            settings.value_coef,
            settings.entropy_coef,
        )
        remembers = isinstance(model, RecurrentActorCritic)
        rollout: type[Rollout] = SequenceRollout if remembers else SampleRollout
        self._rollout = rollout(settings, Observations(spaces, self._flat.device))
        self._rng = np.random.default_rng(seed)
        self._latest = np.zeros(len(DIAGNOSTICS), np.float32)
        self._means = Means((*DIAGNOSTICS, "gradient_norm"))

    def join(self, peers: Peers) -> None:
        """Learn from one rollout together: the update is the one that its whole minibatch would give."""
        self._peers = peers
        self._rollout.join(peers)

    def averaged_state(self) -> Sequence[torch.Tensor]:
        """Give the optimizer's moments."""
        return tuple(self._optimizer.tensors().values())

    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[Minibatch]:
        """Yield the minibatches of all epochs; fewer if the policy moves beyond ``target_kl``."""
        self._rollout.gather(fragments)
        limit = self.settings.target_kl
        for _ in range(self.settings.epochs):
            for minibatch in self._rollout.minibatches(self._rng):
                yield minibatch
                if limit is not None and self._divergence(minibatch) > limit:
                    return

    def update(self, batch: Minibatch) -> int:
        """Make one step of the optimizer on the clipped gradient."""

        def loss_gradient(policy: Floats, value: Floats) -> tuple[Floats, Floats]:
            d_policy, d_value, self._latest = self._loss.gradient(policy, value, batch)
            return d_policy, d_value

        if len(batch.log_prob):
            chosen = batch.outputs
            self._backprop(
                batch.observation, loss_gradient if chosen is None else at_outputs(loss_gradient, chosen)
            )
        else:
            self._gradient.zero_()
            self._latest = np.zeros(len(DIAGNOSTICS), np.float32)
        if self._peers.number > 1:
            self._peers.add_up(self._gradient.mul_(len(batch.log_prob) / batch.total))
        self._means.add(self._latest, self._optimizer.step())
        return batch.total

    def metrics(self) -> dict[str, float]:
        """Mean losses and diagnostics over the updates since the last call; empty if there were none."""
        means = self._means.take()
        scheduled = {"learning_rate": self._optimizer.learning_rate, "clip_range": self._loss.clip_range}
        return means and {**means, **scheduled}

    def schedule(self, env_steps: int) -> None:
        """Set learning rate and clip range for so many env steps seen."""
        settings = self.settings
        if settings.schedule_steps is None:
            return
        remaining = max(0.0, 1.0 - env_steps / settings.schedule_steps)
        if settings.learning_rate_schedule == "linear":
            self._optimizer.learning_rate = settings.learning_rate * remaining
        if settings.clip_range_schedule == "linear":
            self._loss.clip_range = settings.clip_range * remaining

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Give parameters, the optimizer's moments, and the state of the random stream."""
        rest = {
            "algorithm": "ppo",
            f"{self._optimizer.name}_steps": self._optimizer.steps,
            "rng": self._rng.bit_generator.state,
        }
        return copy_tensors(self._tensors()), rest

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; learning rate and clip range are the settings' business.

        Raises:
            StateMismatchError: the state is not PPO's, or a tensor is missing, unknown or of another shape.
        """
        check_algorithm(rest, "ppo")
        restore_tensors(self._tensors(), tensors)
        self._optimizer.steps = rest[f"{self._optimizer.name}_steps"]
        self._rng.bit_generator.state = rest["rng"]

    def _divergence(self, batch: Minibatch) -> float:
        """Estimate how far the policy has moved, over the samples of all learners in the last minibatch."""
        own = float(self._latest[DIAGNOSTICS.index("approx_kl")])
        if self._peers.number == 1:
            return own
        divergence = torch.tensor([own * len(batch.log_prob) / batch.total], dtype=torch.float64)
        self._peers.add_up(divergence)
        return float(divergence)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Name every tensor of the state, in place."""
        return tensors_of("model", self.model) | self._optimizer.tensors()
