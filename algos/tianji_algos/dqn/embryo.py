"""DQN's update rule (Mnih et al., 2015), with double, n-step and weighted updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.adam import Adam
from tianji_algos.batch import Batch
from tianji_algos.core import ReplayEmbryo, Spaces, require_model
from tianji_algos.device import uploads_to
from tianji_algos.dqn.loss import DIAGNOSTICS, DQNLoss, bootstrap
from tianji_algos.dqn.settings import DQNSettings
from tianji_algos.flat import flatten_parameters
from tianji_algos.means import Means
from tianji_algos.models.q_network import QNetwork, count_actions
from tianji_algos.peers import ALONE, Peers
from tianji_algos.state import check_algorithm, copy_tensors, restore_tensors, tensors_of
from tianji_algos.target_network import TargetNetwork

Floats = npt.NDArray[np.float32]


class DQNEmbryo(ReplayEmbryo):
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

    settings_type: ClassVar[type[DQNSettings]] = DQNSettings

    def __init__(
        self,
        spaces: Spaces,
        model: QNetwork,
        settings: DQNSettings,
        seed: int,  # noqa: ARG002 - what every embryo is built with
    ) -> None:
        count_actions(spaces.action)
        require_model(model, QNetwork, "DQN", "mlp_q")
        self.model: QNetwork = model
        self.settings = settings
        flat = flatten_parameters(model)
        self._upload = uploads_to(flat.device)
        self._backprop = model.backprop()
        self._online = model.evaluation()
        self._target = TargetNetwork(model, flat)
        self._bootstrapped = self._target.model.evaluation()
        self._peers: Peers = ALONE
        self._adam = Adam(flat, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
        self._loss = DQNLoss(settings.huber_delta if settings.loss == "huber" else None)
        self._priorities: Floats = np.empty(0, np.float32)
        self._latest = (0.0, 0.0, 0.0)
        self._means = Means((*DIAGNOSTICS, "gradient_norm"))

    def join(self, peers: Peers) -> None:
        """Learn from equal shares of one batch together: the update is the one that all of it would give."""
        self._peers = peers

    def averaged_state(self) -> Sequence[torch.Tensor]:
        """Give Adam's moments."""
        return self._adam.mean, self._adam.square

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
            self._peers.add_up(self._adam.gradient.mul_(1.0 / self._peers.number))
        self._means.add(self._latest, self._adam.step())
        if self.settings.target_update == "soft":
            self._target.follow(self.settings.target_tau)
        elif self._adam.steps % self.settings.target_every == 0:
            self._target.follow(1.0)
        return len(target) * self._peers.number

    @property
    def priorities(self) -> Floats:
        """Absolute TD error ``[B]`` of each sample of the last update; reused by the next."""
        if self._priorities.shape != self._loss.td_error.shape:
            self._priorities = np.empty_like(self._loss.td_error)
        return np.abs(self._loss.td_error, out=self._priorities)

    def metrics(self) -> dict[str, float]:
        """Mean losses and diagnostics over the updates since the last call; empty if there were none."""
        means = self._means.take()
        return means and {**means, "learning_rate": self._adam.learning_rate}

    def schedule(self, env_steps: int) -> None:
        """Set the learning rate for so many env steps seen."""
        settings = self.settings
        remaining = settings.remaining(settings.learning_rate_schedule, env_steps)
        self._adam.learning_rate = settings.learning_rate * remaining

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Give the parameters of both networks, Adam's moments and what is counted."""
        rest = {"algorithm": "dqn", "adam_steps": self._adam.steps}
        return copy_tensors(self._tensors()), rest

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; the learning rate is the settings' business.

        Raises:
            StateMismatchError: the state is not DQN's, or a tensor is missing, unknown or of another shape.
        """
        check_algorithm(rest, "dqn")
        restore_tensors(self._tensors(), tensors)
        self._adam.steps = rest["adam_steps"]

    def _targets(self, batch: Batch, next_observation: Any) -> Floats:
        """Compute ``reward + discount * Q(next observation)``, ``[B]``."""
        (next_q,) = self._bootstrapped(next_observation)
        chooser = self._online(next_observation)[0] if self.settings.double else next_q
        target = bootstrap(next_q, chooser)
        target *= batch.discount
        target += batch.reward * np.float32(self.settings.reward_scale)
        return target

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Name every tensor of the state, in place."""
        networks = tensors_of("model", self.model) | tensors_of("target", self._target.model)
        return networks | self._adam.tensors()
