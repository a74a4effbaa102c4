"""Greedy episodes after training: how far they are, what came of them, and when the root ends them.

The evaluator looks at its limits between two steps, and one step may hang: so the root looks, too.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tianji_cli.quantities import number, share
from tianji_cli.wire.reports import Evaluating, Number


@dataclass(frozen=True)
class Evaluation:
    """Returns of greedy episodes after training.

    Attributes:
        episodes: how many were played to their end; only these count.
        mean: of their returns; not a number if none has ended.
        std: of their returns; likewise.
        win_rate: share of them that were won; None where nothing is won.
        agents: mean return of each agent of a team, by name; None of a single agent.
        left_out: episodes that were wanted, and had not ended at the limit.
        cut_off: the limit that was reached, in words; None if all episodes were played.
    """

    episodes: int
    mean: Number
    std: Number
    win_rate: float | None = None
    agents: Mapping[str, float] | None = None
    left_out: int = 0
    cut_off: str | None = None

    @classmethod
    def of(
        cls,
        returns: Sequence[float],
        wanted: int,
        cut_off: str | None = None,
        win_rate: float | None = None,
        agents: Mapping[str, float] | None = None,
    ) -> Evaluation:
        """Evaluate the episodes that have ended by their returns."""
        mean = statistics.fmean(returns) if returns else math.nan
        std = statistics.pstdev(returns) if returns else math.nan
        left_out = wanted - len(returns)
        return cls(len(returns), mean, std, win_rate, agents, left_out, cut_off if left_out else None)

    def described(self, kind: str, limits: str) -> str:
        """Describe what came of it, and what was left out.

        Args:
            kind: of episodes: "greedy episodes".
            limits: what moves them, where one was reached.
        """
        wanted = self.episodes + self.left_out
        if not self.episodes:
            return f"none of {wanted} {kind} had ended after {self.cut_off} ({limits})"
        of_all = f"{self.episodes} of {wanted}" if self.left_out else f"{self.episodes}"
        won = "" if self.win_rate is None else f", {share(self.win_rate)} won"
        cut = f"; {self.left_out} had not ended after {self.cut_off} ({limits})" if self.left_out else ""
        return (
            f"{number(self.mean)}  mean of {of_all} {kind}, standard deviation {number(self.std)}{won}{cut}"
        )


GRACE_S: Final = 5.0
"""Beyond its limit, for the step that the evaluator is in, and for closing its environments."""

START_S: Final = 60.0
"""For building environments and policy, which takes time before the first step."""


class EvaluationWatch:
    """Says when the evaluator has had its time and has not ended.

    Args:
        max_s: seconds that an evaluation may take.
        event: tells the user something.

    Attributes:
        ended_by: what was wrong, in words; None if the evaluator was never late.
    """

    def __init__(self, max_s: float, event: Callable[[str], None]) -> None:
        self._max_s = max_s
        self._event = event
        self._since_s: float | None = None
        self._playing = False
        self.ended_by: str | None = None

    def is_late(self, evaluating: Evaluating | None) -> bool:
        """Whether the evaluator is to be ended, once; the clock begins with the first call.

        Args:
            evaluating: how far it is; None before it has built what it plays with.
        """
        now, playing = time.monotonic(), evaluating is not None
        if self._since_s is None or playing != self._playing:
            self._since_s, self._playing = now, playing
        took_s = now - self._since_s
        if self.ended_by is not None or took_s < self._max_s + (GRACE_S if playing else START_S):
            return False
        what = "in a step or an action that did not return" if playing else "of starting"
        self.ended_by = f"{took_s:.0f} s {what}"
        self._event(f"ending the evaluation after {self.ended_by}")
        return True
