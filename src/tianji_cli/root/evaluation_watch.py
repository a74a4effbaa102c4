"""When the root ends an evaluation: the evaluator minds its limits between two steps, and one may hang.

A module of its own because the root imports no environment, as the evaluator's does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tianji_cli.telemetry.evaluation import Evaluating

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
        """Say whether the evaluator is to be ended, once; the clock begins with the first call.

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
