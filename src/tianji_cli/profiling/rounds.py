"""Runs all phases in rounds, each a few hundred milliseconds, within a budget.

A machine that gets slower or faster is fair to all phases then. The budget is divided evenly among the runs:
there are up to four rounds, or windows get shorter, if there are many phases. A run in which too little
happened is repeated with longer windows, whatever it costs; later rounds are left out when it is spent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from tianji_cli.bench.progress import Progress
from tianji_cli.profiling.building import Part
from tianji_cli.profiling.crew import Crew, ProbeFailed
from tianji_cli.profiling.figures import Notebook
from tianji_cli.profiling.phases import Phase, Place, Room
from tianji_cli.profiling.protocol import Acted, Answer, Learned, Run
from tianji_cli.telemetry.quantities import rate

LEAST_ROUNDS: Final = 2
MOST_ROUNDS: Final = 4
WINDOWS: Final = 2
"""Of each run."""
LONGEST_S: Final = 0.2
SHORTEST_S: Final = 0.05
"""Bounds of a window's length, unless it has to be longer to hold enough."""
WARM_S: Final = 0.08
"""Before the first window: a pinned process moves to its cores, and caches fill."""
TAIL_S: Final = 0.04
"""What probes that are asked at the same time may begin apart."""
STRETCH: Final = 1.25
"""Windows end with a fragment or a version: they are longer than asked for, on average by about so much."""
END_S: Final = 1.5
"""How much longer a window may take to do so, unless three times its length is more."""
SLOWER: Final = 1.15
"""What a run is expected to take in comparison with the last one of its kind, at most."""
LONGER: Final = 4
"""How many times longer windows get if too little happened in them."""
LIMIT_S: Final = 15.0
"""Windows that hold too little although they were as long as this make it impossible to measure."""
LEAST_STEPS: Final = 8
"""Steps of its environments that an actor has to make in a run."""
LEAST_UPDATES: Final = 3
"""Updates that a learner has to make in a run; and it has to publish a policy."""
PATIENCE_S: Final = 60.0
"""How much longer than it should a run may take until a probe counts as hanging."""


class Rounds:
    """Runs phases, and keeps what probes did in them.

    Args:
        crew: probes that have built all parts.
        room: says who runs where.
        send_size: T, steps of each environment in a fragment.
        progress: is told.

    Attributes:
        notebook: what they did.
    """

    def __init__(self, crew: Crew, room: Room, send_size: int, progress: Progress) -> None:
        self.notebook = Notebook()
        self._crew = crew
        self._room = room
        self._send_size = send_size
        self._progress = progress
        self._needed_s: dict[str, float] = {}
        self._took_s: dict[str, float] = {}

    def run(self, phases: Sequence[Phase], budget_s: float) -> None:
        """Run all phases, over and over.

        Args:
            phases: all of them; ``progress`` counts on ``LEAST_ROUNDS`` of them.
            budget_s: what may be spent, in seconds.

        Raises:
            ProbeFailed: one of them could not be measured.
        """
        fixed_s = len(phases) * (WARM_S + TAIL_S)
        longest_s = fixed_s + len(phases) * WINDOWS * STRETCH * LONGEST_S
        rounds = min(max(int(budget_s / longest_s), LEAST_ROUNDS), MOST_ROUNDS)
        window_s = (budget_s / rounds - fixed_s) / len(phases) / WINDOWS / STRETCH
        window_s = min(max(window_s, SHORTEST_S), LONGEST_S)
        self._progress.total += (rounds - LEAST_ROUNDS) * len(phases)
        began = time.monotonic()
        for number in range(1, rounds + 1):
            took_s = time.monotonic() - began
            # None is begun of which less than two thirds are paid for.
            if number > 1 and took_s + took_s / (number - 1) / 1.5 > budget_s:
                self._progress.total -= len(phases)
                continue
            for phase in phases:
                self._progress.begin(f"{phase}: round {number} of {rounds}")
                self._progress.done(self._run(phase, window_s))

    def _run(self, phase: Phase, window_s: float) -> str:
        """Run a phase, with longer windows until they hold enough; say what came of it."""
        places = self._room.places(phase)
        keys = {number: Part.of(phase, place).key for number, place in places.items()}
        while True:
            window_s = max(window_s, *(self._needed_s.get(key, 0.0) for key in keys.values()))
            steps = {
                number: _step(keys[number], place, window_s, self._tail_s(keys, number, window_s))
                for number, place in places.items()
            }
            answers = self._crew.ask(steps, max(map(_longest_s, steps.values())) + PATIENCE_S)
            for number, answer in answers.items():
                assert isinstance(answer, Acted | Learned)
                walls_s = [window.wall_s for window in answer.windows]
                # What a window takes longer to end with something finished, the warm-up does, too.
                self._took_s[keys[number]] = sum(walls_s) + max(0.0, median(walls_s) - window_s)
            slow = [keys[number] for number, answer in answers.items() if not self._holds_enough(answer)]
            if not slow:
                return self._record(phase, answers)
            if window_s > LIMIT_S:
                raise ProbeFailed(
                    f"{phase}: too little came of more than {WINDOWS * window_s:.0f} s to measure it; "
                    "a fragment, and the updates between two policies, have to be shorter"
                )
            self._needed_s |= dict.fromkeys(slow, LONGER * window_s)

    def _tail_s(self, keys: Mapping[int, str], number: int, window_s: float) -> float:
        """Say how long a probe goes on after its windows, so that all others are at work in theirs, too."""
        expected = {one: max(self._took_s.get(key, 0.0), WINDOWS * window_s) for one, key in keys.items()}
        own_s = expected.pop(number)
        return TAIL_S + max(0.0, SLOWER * max(expected.values()) - own_s) if expected else 0.0

    def _holds_enough(self, answer: Answer) -> bool:
        if isinstance(answer, Acted):
            filled = sum(window.fragments for window in answer.windows)
            return filled * self._send_size >= LEAST_STEPS or filled >= 1
        assert isinstance(answer, Learned)
        return (
            sum(window.updates for window in answer.windows) >= LEAST_UPDATES
            and sum(window.versions for window in answer.windows) > 0
            and sum(window.fragments for window in answer.windows) > 0
        )

    def _record(self, phase: Phase, answers: Mapping[int, Answer]) -> str:
        acted = [answer for answer in answers.values() if isinstance(answer, Acted)]
        learned = [answer for answer in answers.values() if isinstance(answer, Learned)]
        self.notebook.add(phase, self._room.is_crowded(phase), acted, learned[0] if learned else None)
        return _in_words(acted, learned)


def _step(key: str, place: Place, window_s: float, tail_s: float) -> Run:
    return Run(
        key=key,
        cores=place.cores,
        threads=place.threads,
        warm_s=WARM_S,
        window_s=window_s,
        windows=WINDOWS,
        tail_s=tail_s,
        patience_s=max(END_S, 3 * window_s),
    )


def _longest_s(step: Run) -> float:
    assert step.patience_s is not None
    return step.warm_s + (step.windows + 1) * (step.window_s + step.patience_s) + step.tail_s


def _in_words(acted: Sequence[Acted], learned: Sequence[Learned]) -> str:
    """Say how fast roles went while they worked, in a few words."""
    said = []
    for answer in learned:
        busy_s = sum(one.store_s + one.update_s + one.draw_s + one.rest_s for one in answer.windows)
        said.append(f"{rate(sum(one.uses for one in answer.windows) / busy_s)} uses")
    if acted:
        each = [
            sum(one.samples for one in answer.windows) / sum(one.busy_s for one in answer.windows)
            for answer in acted
        ]
        said.append(f"{rate(sum(each))} env steps")
    return ", ".join(said)
