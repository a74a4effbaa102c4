"""What lies in the run directory, or should: what an earlier session left there, and who cannot reach it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from tianji_cli.config.schema import Stop
from tianji_cli.errors import UsageError
from tianji_cli.files.checkpoint_places import BEST, LAST, checkpoints_of
from tianji_cli.files.progress import Progress
from tianji_cli.files.state import MODEL, TRAINING, load_state
from tianji_cli.files.sums import CheckpointError, read_sealed
from tianji_cli.quantities import number


def saved_progress(checkpoints: Path, groups: int) -> tuple[Progress, ...]:
    """Read the counters that a session goes on from, by group. Needs no torch.

    Args:
        checkpoints: of the run.
        groups: of the session.

    Raises:
        UsageError: there is no checkpoint that can be read.
    """
    first = _saved(checkpoints)
    found = [first]
    for group in range(1, groups):
        place = checkpoints_of(checkpoints, group)
        of_group = _saved(place) if (place / LAST).exists() else None
        # One that the last session did not have begins with what group 0 has learned, and counts from 0.
        goes_on = of_group is not None and of_group.sessions == first.sessions
        found.append(of_group if of_group is not None and goes_on else Progress(sessions=first.sessions))
    return tuple(replace(progress, sessions=progress.sessions + 1) for progress in found)


def goals_reached(checkpoints: Path, stop: Stop, groups: int) -> dict[str, str]:
    """Say which stop rules hold already of what a run has saved, over all its sessions.

    ``wall_s`` is none of them: it is a limit of each session, which begins anew.

    Args:
        checkpoints: of the run.
        stop: the rules.
        groups: of the session that would go on.

    Returns:
        Where the run is, in words, by the name of the rule.

    Raises:
        UsageError: there is no checkpoint that can be read.
    """
    progress = saved_progress(checkpoints, groups)
    places = [checkpoints_of(checkpoints, group) for group in range(groups)]
    episodes = [load_state(place / LAST)["episodes"] for place in places if (place / LAST).exists()]
    means, win_rates = (
        [float(of_group[key]) for of_group in episodes if of_group.get(key) is not None]
        for key in ("best_mean", "best_win_rate")
    )
    env_steps = sum(of_group.env_steps for of_group in progress)
    reached = {}
    if stop.env_steps is not None and env_steps >= stop.env_steps:
        reached["env_steps"] = f"{env_steps} environment steps"
    if stop.mean_return is not None and max(means, default=-math.inf) >= stop.mean_return:
        reached["mean_return"] = f"the best mean return of 100 episodes was {number(max(means))}"
    if stop.win_rate is not None and max(win_rates, default=0.0) >= stop.win_rate:
        reached["win_rate"] = f"{100 * max(win_rates):.0f} % of 100 episodes were won"
    return reached


def _saved(place: Path) -> Progress:
    return Progress.checked(_state(place)["progress"])


def _state(place: Path) -> dict[str, Any]:
    """Read the state of the last checkpoint, all of which has to be as it was written, and the best, too."""
    try:
        for name in (MODEL, TRAINING):
            read_sealed(place / LAST, name)
        state = load_state(place / LAST)
        if state["episodes"]["best_mean"] is not None:
            read_sealed(place / BEST, MODEL)
    except CheckpointError as cause:
        raise UsageError(f"{place.parent} has no readable checkpoint to go on from: {cause}") from cause
    return state
