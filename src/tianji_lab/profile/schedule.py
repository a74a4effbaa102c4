"""Runs all phases in rounds, each a few hundred milliseconds, within a budget.

A machine that gets slower or faster is fair to all phases then. There are up to four rounds; with many
phases windows are so short that there are two. Before them roles that are in step are measured once, to
know for how long they have to sleep.

Windows hold whole fragments and whole versions. Of a slow job one takes seconds or more, and then a phase
is left out for which time will not suffice; those that are needed most have come first. Only the two
without which nothing is known, the configured actor and the configured learner, are measured whatever they
take.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple, TypeVar

from tianji_cli.quantities import duration, rate
from tianji_cli.telemetry.progress import Progress
from tianji_lab.profile.building import LEARNER, Part, Phase, Place, ProbeBuilds, Room
from tianji_lab.profile.measurements import ActorFigures, LearnerFigures, Repeated, SharingFigures
from tianji_lab.profile.probe.pool import ProbeFailed
from tianji_lab.profile.probe.protocol import Acted, ActedWindow, Answer, Learned, LearnedWindow, Run

_W = TypeVar("_W")


class _Acting(NamedTuple):
    num_envs: int
    side_by_side: int
    crowded: bool
    unpinned: bool


class _Learning(NamedTuple):
    cores: int
    share: int
    num_envs: int
    crowded: bool
    unpinned: bool


class Notebook:
    """Keeps all windows by what they are windows of, in the order in which they were measured."""

    def __init__(self) -> None:
        self._acted: dict[_Acting, list[Sequence[ActedWindow]]] = defaultdict(list)
        self._learned: dict[_Learning, list[LearnedWindow]] = defaultdict(list)

    def add(self, phase: Phase, crowded: bool, acted: Sequence[Acted], learned: Learned | None) -> None:
        """Note what was done.

        Args:
            crowded: no core was idle.
            acted: by each of the actors. Windows count that all of them have.
        """
        if acted:
            windows = zip(*(answer.windows for answer in acted), strict=False)
            self._acted[_Acting(phase.num_envs, phase.actors, crowded, phase.unpinned)] += windows
        if learned is not None:
            setting = _Learning(phase.learner_cores, phase.share, phase.num_envs, crowded, phase.unpinned)
            self._learned[setting] += learned.windows

    def actors(self) -> tuple[ActorFigures, ...]:
        """Seconds of actors' work, for each setting in which some ran on cores of their own."""
        return tuple(self._of_actors(unpinned=False))

    def learners(self) -> tuple[LearnerFigures, ...]:
        """Seconds of learners' work, for each setting in which one ran on cores of its own."""
        return tuple(self._of_learners(unpinned=False))

    def sharing(self) -> SharingFigures | None:
        """Seconds of the work of roles that shared all cores; None if there was no time for it."""
        actors, learners = list(self._of_actors(unpinned=True)), list(self._of_learners(unpinned=True))
        return SharingFigures(actors=actors[0], learner=learners[0]) if actors and learners else None

    def _of_actors(self, *, unpinned: bool) -> Iterator[ActorFigures]:
        for setting, windows in sorted(self._acted.items()):
            if setting.unpinned == unpinned:
                yield _actors(setting, windows)

    def _of_learners(self, *, unpinned: bool) -> Iterator[LearnerFigures]:
        for setting, windows in sorted(self._learned.items()):
            if setting.unpinned == unpinned:
                yield _learner(setting, windows, self._updates_per_version(setting.num_envs))

    def _updates_per_version(self, num_envs: int) -> float:
        """Count updates between two versions, which neither cores nor shares of the batch change in a job.

        A probe that has a share of the batch makes more of them in a round, since its rollout is whole.
        """
        undivided = min(of for of in self._learned if of.num_envs == num_envs and of.share == 1)
        return _ratio(self._learned[undivided], lambda one: one.updates, lambda one: one.versions)


def _actors(setting: _Acting, windows: Sequence[Sequence[ActedWindow]]) -> ActorFigures:
    def each(seconds: Callable[[ActedWindow], float]) -> Repeated:
        return Repeated(
            values=tuple(median(seconds(one) / one.fragments for one in of_all) for of_all in windows)
        )

    everything = [window for of_all in windows for window in of_all]
    return ActorFigures(
        num_envs=setting.num_envs,
        side_by_side=setting.side_by_side,
        crowded=setting.crowded,
        samples=_ratio(everything, lambda one: one.samples, lambda one: one.fragments),
        fragment_s=each(lambda one: one.busy_s),
        act_s=each(lambda one: one.act_s),
        step_s=each(lambda one: one.step_s),
    )


def _learner(
    setting: _Learning, windows: Sequence[LearnedWindow], updates_per_version: float
) -> LearnerFigures:
    def each(seconds: Callable[[LearnedWindow], float], count: Callable[[LearnedWindow], int]) -> Repeated:
        return Repeated(values=tuple(seconds(window) / count(window) for window in windows))

    return LearnerFigures(
        cores=setting.cores,
        share=setting.share,
        num_envs=setting.num_envs,
        crowded=setting.crowded,
        uses_per_update=_ratio(windows, lambda one: one.uses, lambda one: one.updates),
        updates_per_version=updates_per_version,
        update_s=each(lambda one: one.update_s, lambda one: one.updates),
        draw_s=each(lambda one: one.draw_s, lambda one: one.updates),
        publish_s=each(lambda one: one.rest_s, lambda one: one.versions),
        store_s=each(lambda one: one.store_s, lambda one: one.fragments),
    )


def _ratio(windows: Sequence[_W], of: Callable[[_W], float], count: Callable[[_W], float]) -> float:
    return sum(map(of, windows)) / sum(map(count, windows))


ROUGHLY: Final = "roughly"
FIRST: Final = "round 1"
LEAST_ROUNDS: Final = 2
MOST_ROUNDS: Final = 4
WINDOWS: Final = 2
"""Of each run."""
LONGEST_S: Final = 0.2
SHORTEST_S: Final = 0.05
"""Bounds of what a window lasts at least."""
WARM_S: Final = 0.08
"""Before the first window: a pinned process moves to its cores, and caches fill."""
FRESH_S: Final = 0.2
"""More of it for what has just been built, whose environments have all begun at the same time."""
TAIL_S: Final = 0.04
"""What probes that are asked at the same time may begin apart."""
STRETCH: Final = 1.25
"""Windows end with a fragment or a version: they are longer than asked for, on average by about so much."""
ENOUGH_S: Final = 1.0
"""After so long one window is enough."""
SLOWER: Final = 1.15
"""What a run is expected to take in comparison with the last one of its kind, at most."""
ANNOUNCED_S: Final = 3.0
"""A run that is expected to take longer says so."""
ESSENTIAL: Final = 2
"""First phases, which are measured whatever they take."""
PATIENT_S: Final = 5.0
"""After so long without a window they say that they wait."""
LIMIT_S: Final = 60.0
"""After so long more without one, the job cannot be measured."""
LEAST_PAUSE_S: Final = 1e-3
"""A role that sleeps for less finds caches and cores as they were."""
MOST_PAUSE_S: Final = 0.1
"""A longer sleep leaves nothing colder."""
HANGING_S: Final = 60.0
"""How much longer than it should a run may take until a probe counts as hanging."""


class Pause(NamedTuple):
    """How long a role sleeps, after every so many fragments or versions."""

    seconds: float = 0.0
    every: int = 1


class Pauses(NamedTuple):
    """Of the actors and of the learner in a phase."""

    actors: Pause = Pause()
    learner: Pause = Pause()

    def of(self, number: int) -> Pause:
        """Of the probe with that number."""
        return self.learner if number == LEARNER else self.actors


class Schedule:
    """Runs phases, and keeps what probes did in them, and which phases there was no time for."""

    def __init__(self, builder: ProbeBuilds, room: Room, progress: Progress) -> None:
        self.notebook = Notebook()
        self.unmeasured: list[Phase] = []
        self._builder = builder
        self._room = room
        self._progress = progress
        self._rough: Notebook | None = None
        self._took_s: dict[Part, float] = {}
        self._window_s = LONGEST_S
        self._until = 0.0

    def run(self, phases: Sequence[Phase], budget_s: float) -> None:
        """Run all phases, over and over.

        Args:
            phases: all of them, most needed first; ``progress`` counts on ``LEAST_ROUNDS`` of them.

        Raises:
            ProbeFailed: one of them could not be measured.
        """
        began = time.monotonic()
        self._until = began + budget_s
        self._window_s = self._divided(phases, budget_s)
        measured = self._first_round(phases)
        for number in range(2, MOST_ROUNDS + 1):
            is_expected = number <= LEAST_ROUNDS
            took_s = time.monotonic() - began
            # Of those that are expected two thirds have to be paid for, of further ones all.
            if took_s + took_s / (number - 1) / (1.5 if is_expected else 1.0) > budget_s:
                self._progress.total -= len(measured) if is_expected else 0
                break
            self._progress.total += 0 if is_expected else len(measured)
            for phase in measured:
                if not self._run(phase, f"round {number}"):
                    self._progress.total -= 1

    def _divided(self, phases: Sequence[Phase], budget_s: float) -> float:
        """Describe how long windows may be, so that there is time for ``LEAST_ROUNDS``."""
        parts = {place.part for phase in phases for place in self._room.places(phase).values()}
        building_s = sum(self._builder.expected_s(part) + FRESH_S for part in parts)
        fixed_s = len(phases) * (WARM_S + TAIL_S) + building_s
        window_s = (budget_s / LEAST_ROUNDS - fixed_s) / len(phases) / WINDOWS / STRETCH
        return min(max(window_s, SHORTEST_S), LONGEST_S)

    def _first_round(self, phases: Sequence[Phase]) -> list[Phase]:
        """Run every phase that there is time for, and list them."""
        if self._in_step:  # For how long roles wait for one another is known when both have been measured.
            self._progress.total += ESSENTIAL
            for phase in phases[:ESSENTIAL]:
                self._insist(phase, ROUGHLY)
            self._rough, self.notebook = self.notebook, Notebook()
        measured = []
        for number, phase in enumerate(phases):
            if number < ESSENTIAL:
                self._insist(phase, FIRST)
            elif self._expected_s(phase) > self._left_s or not self._run(phase, FIRST):
                self.unmeasured.append(phase)
                continue
            measured.append(phase)
        self._progress.total -= LEAST_ROUNDS * len(self.unmeasured)
        return measured

    def _insist(self, phase: Phase, when: str) -> None:
        """Run a phase until there is a window, within reason."""
        if self._run(phase, when, PATIENT_S):
            return
        (place,) = self._room.places(phase).values()
        unit, shorter = {
            "actor": ("fragment", "a smaller distribution.actor.send_size, or fewer environments,"),
            "learner": ("round of updates from one policy to the next", "fewer updates in it"),
        }[place.part.role]
        waits = f"no whole {unit} within {PATIENT_S:g} s; waiting up to {LIMIT_S:g} s for one"
        if not self._run(phase, waits, LIMIT_S):
            raise ProbeFailed(
                f"{phase}: no whole {unit} within {LIMIT_S:g} s, which is too slow to be measured; "
                f"{shorter} would make it shorter"
            )

    @property
    def _left_s(self) -> float:
        return self._until - time.monotonic()

    def _expected_s(self, phase: Phase) -> float:
        """Expect what a phase takes, with all that has to be built for it."""
        parts = {number: place.part for number, place in self._room.places(phase).items()}
        building = (
            self._builder.expected_s(part) + FRESH_S for part in self._builder.missing(parts).values()
        )
        running = map(self._takes_s, parts.values())
        return max(building, default=0.0) + WARM_S + TAIL_S + SLOWER * max(running)

    def _takes_s(self, part: Part) -> float:
        """Expect what the windows of a part take."""
        expected_s = self._builder.subject.expected_s(part, self._took_s)
        return max(expected_s, WINDOWS * self._window_s)

    def _run(self, phase: Phase, when: str, limit_s: float = 0.0) -> bool:
        """Run a phase; say whether anything came of it.

        Args:
            limit_s: how long to wait for a window, if there is less time left.
        """
        expected_s = self._expected_s(phase)
        about = f" (about {duration(expected_s, decimals=0)})" if expected_s > ANNOUNCED_S else ""
        self._progress.begin(f"{phase}: {when}{about}")
        places = self._room.places(phase)
        parts = {number: place.part for number, place in places.items()}
        warm_s = WARM_S + (FRESH_S if self._builder.missing(parts) else 0.0)
        self._builder.have(parts)
        limit_s = limit_s or max(self._left_s, 2 * expected_s)
        pauses = self._pauses(phase)
        steps = {number: self._step(number, places, warm_s, limit_s, pauses) for number in places}
        answers = self._builder.pool.ask(steps, limit_s + HANGING_S)
        for number, answer in answers.items():
            self._note_time(places[number].part, answer)
        if not all(map(_windows, answers.values())):
            return False
        self._progress.done(self._record(phase, answers))
        return True

    @property
    def _in_step(self) -> bool:
        return self._builder.subject.job.distribution.mode == "sync"

    def _pauses(self, phase: Phase) -> Pauses:
        """Describe how long roles wait for one another in the job.

        In step an actor waits while the learner learns, and the learner while the actors act. Where all share
        all cores, the learner waits for samples after each version. A core that was idle, or another role's
        meanwhile, is slower at first: a learner that never waits would be up to a third too fast.
        """
        known = self._rough if self._in_step else self.notebook if phase.unpinned else None
        if known is None:
            return Pauses()
        num_envs = self._builder.subject.num_envs
        actor = next(of for of in known.actors() if of.num_envs == num_envs)
        learner = next(of for of in known.learners() if of.num_envs == num_envs)
        updates = learner.updates_per_version
        fragments = updates * learner.uses_per_update / self._builder.built.rho / actor.samples
        storing_s = fragments * learner.store_s.cost
        learning_s = (
            updates * (learner.update_s.cost + learner.draw_s.cost) + learner.publish_s.cost + storing_s
        )
        acting_s = fragments * actor.fragment_s.cost
        if not self._in_step:
            round_s = (learning_s + acting_s * self._room.actor_cores) / len(self._room.cores)
            return Pauses(learner=_pause(round_s - learning_s))
        actors = self._builder.subject.job.distribution.actor.num
        each = max(1, round(fragments * num_envs / phase.num_envs / actors))
        return Pauses(_pause(learning_s, each), _pause(acting_s / actors))

    def _step(
        self, number: int, places: Mapping[int, Place], warm_s: float, limit_s: float, pauses: Pauses
    ) -> Run:
        place = places[number]
        pause = pauses.of(number)
        return Run(
            key=place.part.key,
            cores=place.cores,
            threads=place.threads,
            warm_s=warm_s,
            window_s=self._window_s,
            windows=WINDOWS,
            enough_s=warm_s + ENOUGH_S,
            limit_s=limit_s,
            tail_s=self._tail_s(number, places, pauses),
            pause_s=pause.seconds,
            pause_every=pause.every,
        )

    def _tail_s(self, number: int, places: Mapping[int, Place], pauses: Pauses) -> float:
        """Say how long a probe goes on after its windows, so that all others are at work in theirs, too."""
        # A window may be as much longer as its role sleeps.
        expected = {
            one: self._takes_s(place.part) + (1 + WINDOWS) * pauses.of(one).seconds
            for one, place in places.items()
        }
        own_s = expected.pop(number)
        return TAIL_S + max(0.0, SLOWER * max(expected.values()) - own_s) if expected else 0.0

    def _note_time(self, part: Part, answer: Answer) -> None:
        walls_s = _windows(answer)
        if walls_s:
            # What a window takes longer to end with something finished, the warm-up does, too.
            took_s = sum(walls_s) + max(0.0, median(walls_s) - self._window_s)
            self._took_s[part] = took_s if len(walls_s) == WINDOWS else max(took_s, ENOUGH_S)

    def _record(self, phase: Phase, answers: Mapping[int, Answer]) -> str:
        acted = [answer for answer in answers.values() if isinstance(answer, Acted)]
        learned = [answer for answer in answers.values() if isinstance(answer, Learned)]
        self.notebook.add(phase, self._room.is_crowded(phase), acted, learned[0] if learned else None)
        return _in_words(acted, learned)


def _pause(seconds: float, every: int = 1) -> Pause:
    return Pause(min(seconds, MOST_PAUSE_S), every) if seconds >= LEAST_PAUSE_S else Pause()


def _windows(answer: Answer) -> list[float]:
    """Lengths of all windows that were finished."""
    assert isinstance(answer, Acted | Learned)
    return [window.wall_s for window in answer.windows]


def _in_words(acted: Sequence[Acted], learned: Sequence[Learned]) -> str:
    """Describe how fast roles went while they worked, in a few words."""
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
