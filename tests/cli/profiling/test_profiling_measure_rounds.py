"""Rounds keep to a budget, are fair to all phases, and go on until there is something to divide."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tianji_cli.bench.progress import Progress
from tianji_cli.profiling import rounds
from tianji_cli.profiling.crew import Crew, ProbeFailed
from tianji_cli.profiling.phases import Phase, Room, all_phases
from tianji_cli.profiling.protocol import (
    Acted,
    ActedWindow,
    Answer,
    Learned,
    LearnedWindow,
    Run,
    Step,
)
from tianji_cli.profiling.rounds import LONGEST_S, SHORTEST_S, WINDOWS, Rounds

ROOM = Room((0, 1))
PHASES = all_phases(ROOM, 8, [], [])


class MadeUpCrew(Crew):
    """Answers at once what a function says of each run, and remembers what was asked."""

    def __init__(self, answer: Callable[[Run], Answer]) -> None:
        super().__init__((), 0.0)
        self.asked: list[dict[int, Run]] = []
        self._answer = answer

    def ask(self, steps: Mapping[int, Step], limit_s: float) -> dict[int, Answer]:
        runs = {number: step for number, step in steps.items() if isinstance(step, Run)}
        assert len(runs) == len(steps)
        assert all(limit_s > step.windows * step.window_s for step in runs.values())
        self.asked.append(runs)
        return {number: self._answer(step) for number, step in runs.items()}


def quick(step: Run, stretch: float = 1.0) -> Answer:
    """One fragment a millisecond, one version in ten."""
    wall_s = step.window_s * stretch
    done = round(1000 * wall_s)
    if step.key.startswith("actor"):
        window = ActedWindow(
            wall_s=wall_s, fragments=done, samples=done, busy_s=wall_s, act_s=0.0, step_s=wall_s
        )
        return Acted(windows=(window,) * step.windows)
    counts = {"fragments": done, "updates": done, "versions": done // 10, "uses": done}
    seconds = {"store_s": 0.1, "update_s": 0.7, "draw_s": 0.1, "rest_s": 0.1}
    learned = LearnedWindow(wall_s=wall_s, **counts, **{key: of * wall_s for key, of in seconds.items()})
    return Learned(windows=(learned,) * step.windows)


def measured(crew: MadeUpCrew, budget_s: float, send_size: int = 32) -> Rounds:
    with Progress(2 * len(PHASES), quiet=True) as progress:
        found = Rounds(crew, ROOM, send_size, progress)
        found.run(PHASES, budget_s)
        assert progress.total == progress._done
    return found


def lengths(crew: MadeUpCrew) -> set[float]:
    return {step.window_s for steps in crew.asked for step in steps.values()}


def test_all_phases_take_turns_in_every_round() -> None:
    crew = MadeUpCrew(quick)
    found = measured(crew, 1e6)
    assert len(crew.asked) == 4 * len(PHASES)
    keys = [sorted(step.key for step in steps.values()) for steps in crew.asked]
    assert keys == keys[: len(PHASES)] * 4
    assert lengths(crew) == {LONGEST_S}
    alone, crowded, _two = found.notebook.actors()
    assert len(alone.fragment_s.values) == len(crowded.fragment_s.values) == 4 * WINDOWS


@pytest.mark.parametrize("budget_s", [4.5, 3.0, 0.1])
def test_windows_get_shorter_before_there_are_fewer_than_two_rounds(budget_s: float) -> None:
    crew = MadeUpCrew(quick)
    measured(crew, budget_s)
    assert len(crew.asked) == 2 * len(PHASES)
    (window_s,) = lengths(crew)
    assert SHORTEST_S <= window_s < LONGEST_S
    assert (window_s == SHORTEST_S) == (budget_s == 0.1)


def test_a_round_that_the_budget_does_not_allow_for_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = MadeUpCrew(quick)
    # A second passes with each look at the clock, of which there are two before the second round.
    clock = iter(range(100))
    monkeypatch.setattr(rounds.time, "monotonic", lambda: float(next(clock)))
    measured(crew, 3.0)
    assert len(crew.asked) == len(PHASES)


def test_windows_get_longer_until_they_hold_enough_and_stay_so() -> None:
    def slow(step: Run) -> Answer:
        answer = quick(step)
        if isinstance(answer, Learned) and step.window_s < 1:
            empty = answer.windows[0].model_copy(update={"versions": 0})
            return Learned(windows=(empty,) * step.windows)
        return answer

    crew = MadeUpCrew(slow)
    found = measured(crew, 4.5)
    of_learner = [
        step.window_s for steps in crew.asked for step in steps.values() if step.key.startswith("learner")
    ]
    assert of_learner[:2] == [pytest.approx(of_learner[0]), pytest.approx(4 * of_learner[0])]
    assert len(crew.asked) == 2 * len(PHASES) + 2, "the length that was needed once is kept"
    assert all(
        figures.updates_per_version == pytest.approx(10, rel=0.01) for figures in found.notebook.learners()
    )


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (
            {"versions": 0},
            "^learner on 1 core, fed by actors of 8 environments: too little came of more than",
        ),
        ({"fragments": 0}, "^learner on 1 core, fed by"),
        ({"updates": 1}, "^learner on 1 core, fed by"),
    ],
)
def test_what_never_holds_enough_cannot_be_measured(samples: dict[str, int], said: str) -> None:
    def stuck(step: Run) -> Answer:
        answer = quick(step)
        if isinstance(answer, Learned):
            return Learned(windows=(answer.windows[0].model_copy(update=samples), *answer.windows[2:]))
        return answer

    with pytest.raises(ProbeFailed, match=said):
        measured(MadeUpCrew(stuck), 4.5)


def test_an_actor_needs_some_steps_of_its_environments_but_no_whole_fragment() -> None:
    def slow(step: Run) -> Answer:
        answer = quick(step)
        if isinstance(answer, Acted):
            return Acted(windows=(answer.windows[0].model_copy(update={"fragments": 0.05}),) * step.windows)
        return answer

    crew = MadeUpCrew(slow)
    measured(crew, 4.5, send_size=100)
    assert len(crew.asked) == 2 * len(PHASES)
    with pytest.raises(ProbeFailed, match=r"^1 actor of 8 environments: "):
        measured(MadeUpCrew(slow), 4.5, send_size=32)


def test_whoever_is_done_first_goes_on_until_all_others_are() -> None:
    crew = MadeUpCrew(lambda step: quick(step, stretch=2.5 if step.key.startswith("learner") else 1.0))
    measured(crew, 1e6)
    beside = crew.asked[PHASES.index(Phase(8, actors=1, learner_cores=1))]
    learner, actor = beside[0], beside[1]
    assert actor.windows * actor.window_s + actor.tail_s > learner.windows * 2.5 * learner.window_s
    alone = crew.asked[PHASES.index(Phase(8, learner_cores=1))]
    assert alone[0].tail_s == 0
