"""Observations as a policy sees them from step to step: the newest frames, or stacks of the last few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tianji_envs.core import VectorEnvironment

Frames = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


class NewestFrames:
    """No stack: a policy sees the newest frames ``[N, *frame]``, where they were written."""

    def __init__(self, environment: VectorEnvironment) -> None:
        self._own = np.zeros(*_frames(environment))
        self.seen = self._own

    def push(self, frames: Frames) -> None:
        """See the newest frames ``[N, *frame]``."""
        self.seen = frames

    def forget(self, where: Flags) -> None:
        """Nothing is seen of the past."""

    def keep(self) -> None:
        """Copy what is seen into memory of its own: that of the newest frames goes away."""
        np.copyto(self._own, self.seen)
        self.seen = self._own

    def write(self, rows: Frames) -> None:
        """Write what is seen as rows ``[1, N, *frame]``."""
        np.copyto(rows[0], self.seen)


class StackedFrames:
    """Stacks of the last frames of N environments.

    Attributes:
        seen: ``[N, S, *frame]``, oldest first; frames from before an environment's episode are zeros.
            Overwritten from step to step.
    """

    def __init__(self, environment: VectorEnvironment) -> None:
        (num_envs, *shape), dtype = _frames(environment)
        self.seen = np.zeros((num_envs, environment.stack, *shape), dtype)

    def push(self, frames: Frames) -> None:
        """Replace the oldest frame of each stack by the newest, ``[N, *frame]``."""
        self.seen[:, :-1] = self.seen[:, 1:]
        self.seen[:, -1] = frames

    def forget(self, where: Flags) -> None:
        """Make zeros of the stacks whose next frame is the first of an episode, ``where [N]``."""
        self.seen[where] = 0

    def keep(self) -> None:
        """It has memory of its own already."""

    def write(self, rows: Frames) -> None:
        """Write what is seen as rows ``[S, N, *frame]``."""
        np.copyto(rows, self.seen.swapaxes(0, 1))


def frame_stack(environment: VectorEnvironment) -> NewestFrames | StackedFrames:
    """Build what holds as many frames of each environment as it says a policy should see as one."""
    return StackedFrames(environment) if environment.stack > 1 else NewestFrames(environment)


def _frames(environment: VectorEnvironment) -> tuple[tuple[int, ...], Any]:
    space = environment.observation_space
    assert space.shape is not None
    return (environment.num_envs, *space.shape), space.dtype
