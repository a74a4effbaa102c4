"""Observations as a policy sees them from step to step: the newest frames, or stacks of the last few."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tianji_envs.core import VectorEnvironment

Frames = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


class FrameStack(ABC):
    """Holds the frames of N environments that a policy sees. See ``frame_stack``.

    Attributes:
        seen: ``[N, *frame]``, or stacked ``[N, S, *frame]``, oldest first; frames from before an
            environment's episode are zeros. Overwritten from step to step.
    """

    seen: Frames

    @abstractmethod
    def push(self, frames: Frames) -> None:
        """Add the newest frames ``[N, *frame]``; without a stack they are not copied."""

    @abstractmethod
    def forget(self, where: Flags) -> None:
        """Forget the past where (``[N]``) the next frames are the first of an episode."""

    @abstractmethod
    def keep(self) -> None:
        """Copy what is seen into memory of its own: that of the newest frames goes away."""

    @abstractmethod
    def write(self, rows: Frames) -> None:
        """Write what is seen as rows ``[S, N, *frame]``."""


class NewestFrames(FrameStack):
    """No stack: a policy sees what is shown, where it was written."""

    def __init__(self, environment: VectorEnvironment) -> None:
        self._own = np.zeros(*_frames(environment))
        self.seen = self._own

    def push(self, frames: Frames) -> None:
        """See these."""
        self.seen = frames

    def forget(self, where: Flags) -> None:
        """Nothing is seen of the past."""

    def keep(self) -> None:
        """Copy them."""
        np.copyto(self._own, self.seen)
        self.seen = self._own

    def write(self, rows: Frames) -> None:
        """Copy them to the one row."""
        np.copyto(rows[0], self.seen)


class StackedFrames(FrameStack):
    """Stacks of the last frames."""

    def __init__(self, environment: VectorEnvironment) -> None:
        (num_envs, *shape), dtype = _frames(environment)
        self.seen = np.zeros((num_envs, environment.stack, *shape), dtype)

    def push(self, frames: Frames) -> None:
        """Let the oldest frame of each stack go for a new one."""
        self.seen[:, :-1] = self.seen[:, 1:]
        self.seen[:, -1] = frames

    def forget(self, where: Flags) -> None:
        """Make zeros of what was seen there."""
        self.seen[where] = 0

    def keep(self) -> None:
        """It is there already."""

    def write(self, rows: Frames) -> None:
        """Copy all frames of the stacks."""
        np.copyto(rows, self.seen.swapaxes(0, 1))


def frame_stack(environment: VectorEnvironment) -> FrameStack:
    """Build what holds as many frames of each environment as it says a policy should see as one."""
    return StackedFrames(environment) if environment.stack > 1 else NewestFrames(environment)


def _frames(environment: VectorEnvironment) -> tuple[tuple[int, ...], Any]:
    space = environment.observation_space
    assert space.shape is not None
    return (environment.num_envs, *space.shape), space.dtype
