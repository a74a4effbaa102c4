"""Which group has the best policy: the one that is evaluated, and that ``best`` leads to."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from tianji_cli.files.checkpoint_places import point_best_at


def choose_best(
    checkpoints: Path,
    learners: Mapping[int, Mapping[str, Any]],
    lost: Container[int],
    event: Callable[[str], None],
) -> int:
    """Let ``best`` lead to the best policy that any group has saved, and say whose it is.

    Args:
        checkpoints: ``checkpoints/`` of the run.
        learners: what the learner of each group said last.
        lost: groups whose learners did not live to save what they said.
        event: tells the user something.
    """
    means = {
        group: said["best_mean_100"]
        for group, said in sorted(learners.items())
        if said.get("best_mean_100") is not None and group not in lost
    }
    best = max(means, key=lambda group: means[group], default=0)
    try:
        point_best_at(checkpoints, best)
    except OSError as error:
        event(f"the best policy is group {best}'s, and the link to it cannot be written: {error}")
    return best
