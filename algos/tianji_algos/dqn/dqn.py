"""DQN's update rule (Mnih et al., 2015), with double, n-step and weighted updates."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.batch import Batch
from tianji_algos.core import ReplayEmbryo, Spaces, require_model
from tianji_algos.device import uploads_to
from tianji_algos.dqn.loss import DIAGNOSTICS, DQNLoss, bootstrap
from tianji_algos.dqn.settings import DQNSettings
from tianji_algos.models.q_network import QNetwork, count_actions
from tianji_algos.optim.optimizers import Adam
from tianji_algos.optim.single_optimizer import SingleOptimizer
from tianji_algos.optim.state import Means, flatten_parameters, tensors_of
from tianji_algos.optim.target_network import TargetNetwork

Floats = npt.NDArray[np.float32]


class DQNEmbryo(SingleOptimizer, ReplayEmbryo):
    """Trains a Q network towards what a target network makes of the next observation.

    Args:
        spaces: of one environment.
        model: trained in place, on its final device; its parameters move into one flat tensor.
        settings: hyperparameters.
        seed: not used, since nothing is drawn here.

    Raises:
        UnsupportedSpaceError: the action space is not Discrete.
        UnsuitableModelError: the model is no ``QNetwork``.
    """

    algorithm: ClassVar[str] = "DQN"
    settings_type: ClassVar[type[DQNSettings]] = DQNSettings
    settings: DQNSettings

    def __init__(
        self,
        spaces: Spaces,
        model: QNetwork,
        settings: DQNSettings,
        seed: int,  # noqa: ARG002 - what every embryo is built with
    ) -> None:
        count_actions(spaces.action)
        require_model(model, QNetwork, "DQN", "mlp_q")
        flat = flatten_parameters(model)
        adam = Adam(flat, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
        super().__init__(settings, adam, Means((*DIAGNOSTICS, "gradient_norm")))
        self.model: QNetwork = model
        self._upload = uploads_to(flat.device)
        self._backprop = model.backprop()
        self._online = model.evaluation()
        self._target = TargetNetwork(model, flat)
        self._bootstrapped = self._target.model.evaluation()
        self._loss = DQNLoss(settings.huber_delta if settings.loss == "huber" else None)
        self._priorities: Floats = np.empty(0, np.float32)
        self._latest = (0.0, 0.0, 0.0)

    def update(self, batch: Batch) -> int:
        """Make one step of Adam, and let the target network follow when it is time."""
        next_observation = self._upload(batch.next_observation)
        observation = self._upload(batch.observation)  # Is on its way while the networks see the other.
        target = self._targets(batch, next_observation())

        def loss_gradient(q: Floats) -> tuple[Floats]:
            d_q, self._latest = self._loss.gradient(q, batch.fields["action"], target, batch.weight)
            return (d_q,)

        self._backprop(observation(), loss_gradient)
        if self._peers.number > 1:
            self._peers.add_up(self._optimizer.gradient.mul_(1.0 / self._peers.number))
        self._means.add(self._latest, self._optimizer.step())
        self._target.keep_up(self.settings, self._optimizer.steps)
        return len(target) * self._peers.number

    @property
    def priorities(self) -> Floats:
        """Absolute TD error ``[B]`` of each sample of the last update; reused by the next."""
        if self._priorities.shape != self._loss.td_error.shape:
            self._priorities = np.empty_like(self._loss.td_error)
        return np.abs(self._loss.td_error, out=self._priorities)

    def _targets(self, batch: Batch, next_observation: Any) -> Floats:
        """Compute ``reward + discount * Q(next observation)``, ``[B]``."""
        (next_q,) = self._bootstrapped(next_observation)
        chooser = self._online(next_observation)[0] if self.settings.double else next_q
        target = bootstrap(next_q, chooser)
        target *= batch.discount
        target += batch.reward * np.float32(self.settings.reward_scale)
        return target

    def _networks(self) -> dict[str, torch.Tensor]:
        """Name every tensor of both networks, in place."""
        return tensors_of("model", self.model) | tensors_of("target", self._target.model)
