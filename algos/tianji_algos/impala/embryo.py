"""IMPALA's update rule (Espeholt et al., 2018)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, RolloutEmbryo, Spaces, require_model
from tianji_algos.distributions import distribution_for
from tianji_algos.flat import flatten_parameters
from tianji_algos.impala.loss import DIAGNOSTICS, IMPALALoss, Minibatch
from tianji_algos.impala.rollout import Rollout
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.impala.vtrace import VTrace
from tianji_algos.means import Means
from tianji_algos.models.actor_critic import ActorCritic, RecurrentActorCritic
from tianji_algos.optimizers import build_optimizer
from tianji_algos.peers import ALONE, Peers
from tianji_algos.state import check_algorithm, copy_tensors, restore_tensors, tensors_of

Floats = npt.NDArray[np.float32]


class IMPALAEmbryo(RolloutEmbryo):
    """Trains an actor-critic on sequences that older policies may have made.

    One pass of the network over a minibatch gives policy, values and the values to bootstrap from; V-trace
    is computed from them, so that its targets are those of the current parameters at every update.

    Args:
        spaces: of one environment.
        model: trained in place, on its final device; its parameters move into one flat tensor.
        settings: hyperparameters.
        seed: of the order in which sequences are seen.

    Raises:
        UnsuitableModelError: the model is no ``ActorCritic``.
    """

    settings_type: ClassVar[type[IMPALASettings]] = IMPALASettings

    def __init__(self, spaces: Spaces, model: ActorCritic, settings: IMPALASettings, seed: int) -> None:
        require_model(model, ActorCritic, "IMPALA", "mlp_actor_critic")
        self.model: ActorCritic = model
        self.settings = settings
        self.uses_per_sample = float(settings.epochs)
        self._flat = flatten_parameters(model)
        self._backprop = model.backprop()
        self._peers: Peers = ALONE
        self._optimizer = build_optimizer(self._flat, settings)
        self._gradient = self._optimizer.gradient
        self._loss = IMPALALoss(
            distribution=distribution_for(spaces.action),
            vtrace=VTrace(
                gamma=settings.gamma,
                rho_bar=settings.rho_bar,
                c_bar=settings.c_bar,
                pg_rho_bar=settings.pg_rho_bar,
                decay=settings.vtrace_lambda,
            ),
            is_corrected=settings.correction == "vtrace",
            value_coef=settings.value_coef,
            entropy_coef=settings.entropy_coef,
            is_mean=settings.reduction == "mean",
        )
        is_recurrent = isinstance(model, RecurrentActorCritic)
        self._rollout = Rollout(spaces, settings, self._flat.device, is_recurrent=is_recurrent)
        self._rng = np.random.default_rng(seed)
        self._latest = np.zeros(len(DIAGNOSTICS), np.float32)
        self._means = Means((*DIAGNOSTICS, "gradient_norm"))

    def join(self, peers: Peers) -> None:
        """Learn from one rollout together: the update is the one that its whole minibatch would give."""
        self._peers = peers
        self._rollout.join(peers)

    def averaged_state(self) -> Sequence[torch.Tensor]:
        """Give what the optimizer remembers of gradients."""
        return tuple(self._optimizer.tensors().values())

    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[Minibatch]:
        """Yield the minibatches of all epochs."""
        self._rollout.gather(fragments)
        for _ in range(self.settings.epochs):
            yield from self._rollout.minibatches(self._rng)

    def update(self, batch: Minibatch) -> int:
        """Make one step of the optimizer."""

        def loss_gradient(policy: Floats, value: Floats) -> tuple[Floats, Floats]:
            d_policy, d_value, self._latest = self._loss.gradient(policy, value, batch)
            return d_policy, d_value

        if batch.samples:
            self._backprop(batch.observation, loss_gradient)
        else:
            self._gradient.zero_()
            self._latest = np.zeros(len(DIAGNOSTICS), np.float32)
        if self._peers.number > 1:
            self._peers.add_up(self._gradient)
        self._means.add(self._latest, self._optimizer.step())
        return batch.total

    def metrics(self) -> dict[str, float]:
        """Mean losses and diagnostics over the updates since the last call; empty if there were none."""
        means = self._means.take()
        return means and {**means, "learning_rate": self._optimizer.learning_rate}

    def schedule(self, env_steps: int) -> None:
        """Set the learning rate for so many env steps seen."""
        settings = self.settings
        if settings.schedule_steps is None or settings.learning_rate_schedule == "constant":
            return
        remaining = max(0.0, 1.0 - env_steps / settings.schedule_steps)
        self._optimizer.learning_rate = settings.learning_rate * remaining

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Give parameters, the optimizer's moments, and the state of the random stream."""
        rest = {
            "algorithm": "impala",
            "optimizer_steps": self._optimizer.steps,
            "rng": self._rng.bit_generator.state,
        }
        return copy_tensors(self._tensors()), rest

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; the learning rate is the settings' business.

        Raises:
            StateMismatchError: the state is not IMPALA's, or a tensor is missing, unknown or of another
                shape.
        """
        check_algorithm(rest, "impala")
        restore_tensors(self._tensors(), tensors)
        self._optimizer.steps = rest["optimizer_steps"]
        self._rng.bit_generator.state = rest["rng"]

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Name every tensor of the state, in place."""
        return tensors_of("model", self.model) | self._optimizer.tensors()
