"""The part of update rules that follow one gradient with a single optimizer: all but MADDPG's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from tianji_algos.core import ALONE, Embryo, Peers
from tianji_algos.optim.optimizers import Optimizer
from tianji_algos.optim.state import Means, check_algorithm, copy_tensors, restore_tensors
from tianji_algos.settings import OptimizerSettings


class SingleOptimizer(Embryo):
    """An update rule's optimizer: its schedule, its part of a checkpoint, what is reported and averaged."""

    algorithm: ClassVar[str]
    """Name in error messages and, in small letters, in checkpoints."""

    settings: OptimizerSettings

    def __init__(self, settings: OptimizerSettings, optimizer: Optimizer, means: Means) -> None:
        self.settings = settings
        self._optimizer = optimizer
        self._means = means
        self._peers: Peers = ALONE

    def join(self, peers: Peers) -> None:
        """Learn from shares of one batch together: the update is the one that all of it would give."""
        self._peers = peers

    def averaged_state(self) -> Sequence[torch.Tensor]:
        """Return what the optimizer remembers of gradients."""
        return tuple(self._optimizer.tensors().values())

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
        """Return the parameters of all networks, what the optimizer remembers and what is counted."""
        rest = {"algorithm": self.algorithm.lower(), self._steps_key: self._optimizer.steps}
        return copy_tensors(self._tensors()), rest

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; what is scheduled is the settings' business.

        Raises:
            StateMismatchError: the state is another algorithm's, or a tensor is missing, unknown or of
                another shape.
        """
        check_algorithm(rest, self.algorithm.lower())
        restore_tensors(self._tensors(), tensors)
        self._optimizer.steps = rest[self._steps_key]

    @property
    def _steps_key(self) -> str:
        return f"{self._optimizer.name}_steps"

    @abstractmethod
    def _networks(self) -> dict[str, torch.Tensor]:
        """Name every tensor of the networks, in place."""

    def _tensors(self) -> dict[str, torch.Tensor]:
        return self._networks() | self._optimizer.tensors()
