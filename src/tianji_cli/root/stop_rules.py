"""The stop rules that only the root can apply: time, and the steps of several groups together."""

from __future__ import annotations

from tianji_cli.config.schema import JobConfig
from tianji_cli.root.overview import Overview


class StopRules:
    """Says when a job has had enough; learners mind the mean return, and a single one minds its steps.

    Args:
        config: the job.
        overview: what is known of everybody.
    """

    def __init__(self, config: JobConfig, overview: Overview) -> None:
        self._stop = config.experiment.stop
        self._several = config.distribution.groups > 1
        self._overview = overview

    def steps_reached(self) -> str | None:
        """Say whether the steps are made, or None; asked at every report of a learner."""
        if not self._several or self._stop.env_steps is None:
            return None
        # Each counts its own, over all sessions.
        env_steps = sum(int(said["env_steps"]) for said in self._overview.learners().values())
        goal = self._stop.env_steps
        return f"{goal} environment steps" if env_steps >= goal else None

    def time_reached(self) -> str | None:
        """Say whether the time is up, or None; reads the production pages of all actors."""
        limit_s = self._stop.wall_s
        if limit_s is None or self._overview.session_train_s < limit_s:
            return None
        return f"{limit_s:g} s of training"

    def attributed(self, reason: str, group: int) -> str:
        """Say of a learner's reason to stop whose it is."""
        return f"{reason} in group {group}" if self._several else reason
