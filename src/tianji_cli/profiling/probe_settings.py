"""Settings under which a probe measures the parts of a job, and what the numbers of its updates are."""

from __future__ import annotations

from tianji_cli.config.schema import JobConfig


def measuring_settings(job: JobConfig, num_envs: int, share: int) -> list[str]:
    """Settings (``SECTION.KEY=VALUE``): all roles in one process, no end, nothing evaluated.

    Args:
        job: the config.
        num_envs: environments of the actor.
        share: L, the batch is divided among so many learners.
    """
    raise NotImplementedError
