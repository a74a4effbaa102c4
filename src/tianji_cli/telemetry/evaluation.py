"""What greedy episodes came to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """Returns of greedy episodes after training.

    Attributes:
        episodes: how many were played.
        mean: of their returns.
        std: of their returns.
        win_rate: share of them that were won; None where nothing is won.
        agents: mean return of each agent of a team, by name; None of a single agent.
    """

    episodes: int
    mean: float
    std: float
    win_rate: float | None = None
    agents: Mapping[str, float] | None = None

    @classmethod
    def of(
        cls, returns: Sequence[float], win_rate: float | None, agents: Mapping[str, float] | None
    ) -> Evaluation:
        """Evaluate episodes by their returns, of which there is one at least."""
        return cls(len(returns), statistics.fmean(returns), statistics.pstdev(returns), win_rate, agents)
