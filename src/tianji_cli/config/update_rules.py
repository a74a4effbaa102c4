"""What the settings of an update rule say of where its batches come from, and of the balance.

Nothing is declared: settings that have what is needed are such settings, a user's as well.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

BATCHES_AHEAD: Final = 2
"""Batches that a buffer in a process of its own assembles before the learner asks for them."""


@runtime_checkable
class OnPolicySettings(Protocol):
    """Settings of an update rule that learns from rollouts."""

    @property
    def rollout_steps(self) -> int:
        """Env steps, over all actors of a learner, that are gathered for one round of updates."""


class ReplayLearnerSettings(Protocol):
    """Settings of an update rule that learns from batches of a replay."""

    @property
    def batch_size(self) -> int:
        """B_s, samples of one update: transitions or sequences."""

    @property
    def replay_ratio(self) -> float:
        """``rho``: uses of each env step in updates, on average."""

    @property
    def warmup_steps(self) -> int:
        """Env steps that are received before the first update."""

    @property
    def publish_every(self) -> int:
        """Updates between two published policies."""


@runtime_checkable
class TransitionSettings(ReplayLearnerSettings, Protocol):
    """Settings of an update rule whose samples are transitions."""

    @property
    def n_step(self) -> int:
        """Steps whose rewards a sample sums up."""

    @property
    def gamma(self) -> float:
        """Discount of one step."""


@runtime_checkable
class SequenceSettings(ReplayLearnerSettings, Protocol):
    """Settings of an update rule whose samples are episodes, or parts of long ones."""

    @property
    def sequence_steps(self) -> int:
        """L, steps of a sample at most."""


def sequence_steps_of(settings: object) -> int | None:
    """L, env steps of a sample at most, where a replay's samples are sequences; None if they are not."""
    return settings.sequence_steps if isinstance(settings, SequenceSettings) else None


def batch_steps_of(settings: ReplayLearnerSettings) -> int:
    """Env steps that a batch of a replay has at most."""
    return settings.batch_size * (sequence_steps_of(settings) or 1)


def replay_settings_of(settings: object) -> TransitionSettings | SequenceSettings | None:
    """Say what an update rule with these settings wants of a replay; None if it does not learn from one."""
    return settings if isinstance(settings, SequenceSettings | TransitionSettings) else None


def least_tolerance(fragment_steps: int, batch_steps: int, rho: float) -> float:
    """The smallest tolerance, in env steps, with which one side may always go on.

    Both sides wait if ``lead + fragment > tolerance`` and ``lead - batch / rho < -tolerance``. There is no
    such lead if ``2 x tolerance >= fragment + batch / rho``.

    Args:
        fragment_steps: T x N, received at once.
        batch_steps: env steps that are used at once, at most: B transitions, or the steps of B sequences.
        rho: uses of each env step.
    """
    return (fragment_steps + batch_steps / rho) / 2


def usual_tolerance(fragment_steps: int, batch_steps: int, rho: float) -> float:
    """Twice the least: neither side has to wait for the very moment at which the other is done."""
    return 2 * least_tolerance(fragment_steps, batch_steps, rho)
