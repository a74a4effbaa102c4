"""What an earlier session left for a group: parameters, the update rule's state, episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tianji_algos.core import Embryo
from tianji_cli.files.checkpoint import load_parameters, load_training
from tianji_cli.files.checkpoint_places import LAST, checkpoints_of
from tianji_cli.roles.learner.episodes import Episodes


@dataclass(frozen=True)
class Saved:
    """A checkpoint to go on from.

    Attributes:
        place: its directory.
        own: it is of the group itself. A group that the last session did not have begins with the first
            group's policy.
        tensors: of the update rule.
        document: the rest.
    """

    place: Path
    own: bool
    tensors: Mapping[str, torch.Tensor]
    document: Mapping[str, Any]

    @classmethod
    def find(cls, checkpoints: Path, group: int, *, own: bool) -> Saved:
        """Find where a group goes on.

        Args:
            checkpoints: of the run.
            group: number of the group.
            own: it goes on by itself; otherwise it begins with the first group's policy.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another schema.
        """
        place = checkpoints_of(checkpoints, group if own else 0) / LAST
        return cls(place, own, *load_training(place))

    def restore(self, embryo: Embryo) -> None:
        """Let an update rule go on.

        Raises:
            CheckpointError: the parameters are damaged, or of another model.
        """
        embryo.model.read_parameters(load_parameters(self.place, embryo.model))
        embryo.load_state(self.tensors, self.document["embryo"])

    def restore_episodes(self, episodes: Episodes) -> None:
        """Let returns and thresholds go on, which are the group's own."""
        if self.own:
            episodes.load_state(self.document["episodes"])
