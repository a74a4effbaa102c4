"""What an algorithm asks of the machine, whatever the split: nothing here is the profile's to change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """The constants of a job.

    Attributes:
        rho: uses of each sample (section 3.3); consumption / rho = production when both are balanced.
        uses_per_update: sample uses of one gradient update, over all learners of a group.
        updates_per_version: updates between two published policies: those of a rollout, or ``publish_every``.
        send_size: T, steps of each environment in a fragment.
        rollout_steps: env steps of a rollout; None where the learner draws from a replay.
        in_step: actors wait for each new version (``mode = "sync"``).
        colocated: the buffer takes turns with a learner and uses its cores.
        one_process: all roles of a group take turns on one core (``inproc``).
        window: fragments that an actor may have sent and nobody claimed.
        tolerance: env steps that production may be ahead of, or behind, consumption; None where nobody
            is held back by it.
    """

    rho: float
    uses_per_update: float
    updates_per_version: float
    send_size: int
    rollout_steps: int | None
    in_step: bool = False
    colocated: bool = True
    one_process: bool = False
    window: int = 2
    tolerance: float | None = None

    def fragments_per_rollout(self, num_envs: int) -> int:
        """Fragments of actors with so many environments that make a rollout; only where there are rollouts.

        >>> Workload(4.0, 512.0, 32.0, send_size=64, rollout_steps=4096).fragments_per_rollout(16)
        4
        """
        assert self.rollout_steps is not None, "a replay has no rollouts"
        return max(1, round(self.rollout_steps / (self.send_size * num_envs)))

    @property
    def beside_learner(self) -> bool:
        """Whether the buffer takes turns with a learner, in one process."""
        return self.colocated or self.one_process
