"""Rounds keep to a budget, whatever the job's speed, and are fair to all phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab.profile.probing import PPO, write_config

from tianji_cli.config.loader import load_config
from tianji_cli.telemetry.progress import Progress
from tianji_lab.profile import building, schedule
from tianji_lab.profile.building import Phase, ProbeBuilds, Room, Subject, all_phases
from tianji_lab.profile.probe.pool import ProbeFailed, ProbePool
from tianji_lab.profile.probe.protocol import (
    Acted,
    ActedWindow,
    Answer,
    Learned,
    LearnedWindow,
    Prepare,
    Prepared,
    Run,
    Step,
)
from tianji_lab.profile.schedule import ENOUGH_S, LONGEST_S, MOST_PAUSE_S, SHORTEST_S, WINDOWS, Schedule

TWO = Room((0, 1))
FEW = all_phases(TWO, 8, [], [])
SIZES = (2, 4, 8, 16, 32)
ALL = all_phases(TWO, 8, SIZES, [2, 4])


@dataclass
class Clock:
    """Time as the measured processes spend it."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now


@dataclass
class Speed:
    """How fast a job is: seconds of what is done between two windows' ends.

    Attributes:
        fragment_s: of an actor of 8 environments; of more, as many times as long.
        version_s: of a learner.
        build_s: of a part with 8 environments.
        beside: how many times as long everything takes beside something else.
    """

    fragment_s: float = 0.001
    version_s: float = 0.01
    build_s: float = 0.0
    beside: float = 1.0

    def unit_s(self, key: str, together: int) -> float:
        role, num_envs, _share = key.split("-")
        alone_s = self.fragment_s * int(num_envs) / 8 if role == "actor" else self.version_s
        return alone_s * (self.beside if together > 1 else 1.0)


class MadeUpPool(ProbePool):
    """Does as its probes would, in no time; remembers what was asked, and what it would have taken."""

    def __init__(self, clock: Clock, speed: Speed, size: int) -> None:
        super().__init__((), 0.0)
        self.asked: list[dict[int, Run]] = []
        self.built: dict[int, list[Prepare]] = {number: [] for number in range(size)}
        self._there: dict[int, set[str]] = {number: set() for number in range(size)}
        self._clock, self._speed = clock, speed

    def __len__(self) -> int:
        return len(self.built)

    def ask(self, steps: Mapping[int, Step], limit_s: float) -> dict[int, Answer]:
        runs: dict[int, Run] = {}
        answers: dict[int, Answer] = {}
        seconds = []
        for number, step in steps.items():
            if isinstance(step, Prepare):
                seconds.append(self._speed.build_s * int(step.key.split("-")[1]) / 8)
                answers[number] = self._build(number, step, seconds[-1])
            else:
                assert isinstance(step, Run)
                assert step.key in self._there[number], "it was given up"
                runs[number] = step
                answers[number], took_s = worked(step, self._speed.unit_s(step.key, len(steps)))
                seconds.append(took_s)
        if runs:
            self.asked.append(runs)
        took_s = max(seconds, default=0.0)
        assert took_s < limit_s
        self._clock.now += took_s
        return answers

    def _build(self, number: int, step: Prepare, took_s: float) -> Prepared:
        self.built[number].append(step)
        self._there[number] &= set(step.keep)
        self._there[number].add(step.key)
        sizes = {"fragment_bytes": 1000, "batch_bytes": 0, "policy_bytes": 100, "parameters": 23}
        return Prepared(seconds=took_s, rho=4.0, **sizes)


def worked(step: Run, unit_s: float) -> tuple[Answer, float]:
    """One fragment or version each ``unit_s``, and the sleeps; say how long it took, too."""
    whole_s = unit_s + step.pause_s / step.pause_every

    def rounded_up(seconds: float) -> float:
        return whole_s * max(1, math.ceil(seconds / whole_s - 1e-9))

    def answer() -> Answer:
        done = [round(wall_s / whole_s) for wall_s in walls_s]
        if step.key.startswith("actor"):
            return Acted(windows=tuple(map(acted, walls_s, done, [unit_s] * len(done))))
        return Learned(windows=tuple(map(learned, walls_s, done, [unit_s] * len(done))))

    now, walls_s = rounded_up(step.warm_s), list[float]()
    while len(walls_s) < step.windows:
        wall_s = rounded_up(step.window_s)
        if now + wall_s > step.limit_s:
            return answer(), step.limit_s
        if walls_s and now + wall_s > step.enough_s:
            now = max(now, step.enough_s)
            break
        now += wall_s
        walls_s.append(wall_s)
    return answer(), min(now + step.tail_s, step.limit_s)


def acted(wall_s: float, done: int, unit_s: float) -> ActedWindow:
    busy_s = done * unit_s
    return ActedWindow(
        wall_s=wall_s, fragments=done, samples=100 * done, busy_s=busy_s, act_s=0.0, step_s=busy_s
    )


def learned(wall_s: float, done: int, unit_s: float) -> LearnedWindow:
    counts = {"fragments": done, "updates": 10 * done, "versions": done, "uses": 1000 * done}
    seconds = {"store_s": 0.1, "update_s": 0.7, "draw_s": 0.1, "rest_s": 0.1}
    return LearnedWindow(wall_s=wall_s, **counts, **{key: of * done * unit_s for key, of in seconds.items()})


@dataclass
class Measured:
    pool: MadeUpPool
    schedule: Schedule
    seconds: float


Measure = Callable[..., Measured]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Runs phases on made-up time."""
    config = write_config(tmp_path / "ppo.toml", PPO)

    def run(
        speed: Speed,
        phases: Sequence[Phase],
        budget_s: float,
        room: Room = TWO,
        overrides: tuple[str, ...] = (),
    ) -> Measured:
        subject = Subject(config, overrides, load_config(config, overrides))
        clock = Clock()
        monkeypatch.setattr(schedule, "time", clock)
        monkeypatch.setattr(building, "time", clock)
        pool = MadeUpPool(clock, speed, room.probes)
        builder = ProbeBuilds(pool, subject, tmp_path)
        builder.start()
        began = clock.now
        with Progress(2 * len(phases), quiet=True) as progress:
            found = Schedule(builder, room, progress)
            found.run(phases, budget_s)
            assert progress.total == progress._done
        return Measured(pool, found, clock.now - began)

    return run


def lengths(pool: MadeUpPool) -> set[float]:
    return {step.window_s for steps in pool.asked for step in steps.values()}


def test_all_phases_take_turns_in_every_round(measure: Measure) -> None:
    found = measure(Speed(), FEW, 1e6)
    asked = found.pool.asked
    assert len(asked) == 4 * len(FEW)
    keys = [sorted(step.key for step in steps.values()) for steps in asked]
    assert keys == keys[: len(FEW)] * 4
    assert lengths(found.pool) == {LONGEST_S}
    alone, crowded, _two = found.schedule.notebook.actors()
    assert len(alone.fragment_s.values) == len(crowded.fragment_s.values) == 4 * WINDOWS
    assert found.schedule.unmeasured == []


def test_windows_get_shorter_before_there_are_fewer_than_two_rounds(measure: Measure) -> None:
    for budget_s in (4.5, 2.5):
        found = measure(Speed(), FEW, budget_s)
        assert len(found.pool.asked) == 2 * len(FEW)
        (window_s,) = lengths(found.pool)
        assert SHORTEST_S <= window_s < LONGEST_S
        assert found.seconds < 1.1 * budget_s
    # Phases beside something else take so much longer that one round is nearly all there is time for.
    found = measure(Speed(version_s=0.3, beside=3.0), FEW, 9.0)
    assert len(found.pool.asked) == len(FEW)
    assert found.schedule.unmeasured == []


def test_probes_keep_the_configured_actor_and_what_was_built_last(measure: Measure) -> None:
    pool = measure(Speed(), ALL, 20.0).pool
    for steps in pool.built.values():
        assert all(set(step.keep) <= {"actor-8-1"} for step in steps)
        assert [step.key for step in steps].count("actor-8-1") == 1
    learners = [step.key for step in pool.built[0] if step.role == "learner"]
    # All phases of a part are neighbours: it is built once in a round.
    assert len(learners) == len(pool.asked) // len(ALL) * len(set(learners))


@pytest.mark.parametrize("cores", [2, 64])
@pytest.mark.parametrize(
    "speed",
    [
        Speed(fragment_s=0.05, version_s=1.5),
        Speed(fragment_s=4.0, version_s=6.0, beside=1.5),
        Speed(fragment_s=0.3, version_s=0.3, build_s=3.0),
        Speed(fragment_s=0.02, version_s=0.02, beside=100.0),
        Speed(fragment_s=8.0, version_s=0.02),
        Speed(fragment_s=0.02, version_s=8.0),
    ],
    ids=["slow updates", "all is slow", "slow to build", "slow beside others", "fragments", "versions"],
)
def test_slow_jobs_are_measured_in_time_on_any_number_of_cores(
    measure: Measure, cores: int, speed: Speed
) -> None:
    room = Room.of(range(cores), 1)
    phases = all_phases(room, 8, SIZES, [2, 4])
    found = measure(speed, phases, 38.0, room)
    assert found.seconds < 1.25 * 38.0
    assert set(phases[:2]).isdisjoint(found.schedule.unmeasured)
    measured = {figures.num_envs for figures in found.schedule.notebook.actors()}
    assert 8 in measured
    assert found.schedule.unmeasured == [phase for phase in phases if phase in found.schedule.unmeasured]


def test_of_a_very_slow_job_the_configured_size_is_measured_once_and_that_is_said(measure: Measure) -> None:
    found = measure(Speed(fragment_s=7.0, version_s=9.0), ALL, 38.0)
    (actor,), (learner,) = found.schedule.notebook.actors(), found.schedule.notebook.learners()
    assert (actor.num_envs, actor.side_by_side, actor.crowded) == (8, 1, False)
    assert actor.fragment_s.values == pytest.approx((7.0,))
    assert (learner.num_envs, learner.cores, learner.crowded) == (8, 1, False)
    assert learner.updates_per_version == 10
    assert found.schedule.unmeasured == ALL[2:]
    # Sizes that there is time for are measured whole.
    found = measure(Speed(fragment_s=0.5, version_s=1.0), ALL, 38.0)
    left_out = {phase.num_envs for phase in found.schedule.unmeasured}
    assert left_out
    assert left_out < {*SIZES}
    of_actors = found.schedule.notebook.actors()
    assert {figures.num_envs for figures in of_actors if figures.crowded} >= {8}


def test_a_single_long_unit_is_waited_for_and_said(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(Progress, "begin", lambda _self, what: said.append(what))
    found = measure(Speed(fragment_s=20.0, version_s=0.1), FEW, 38.0)
    waits = "no whole fragment within 5 s; waiting up to 60 s for one"
    assert said[1] == f"1 actor of 8 environments: {waits}"
    assert found.schedule.notebook.actors()[0].fragment_s.values == pytest.approx((20.0,))


@pytest.mark.parametrize(
    ("speed", "said"),
    [
        (Speed(fragment_s=61.0), "^1 actor of 8 environments: no whole fragment within 60 s, .*send_size"),
        (Speed(version_s=61.0), "^learner on 1 core, fed by .*: no whole round of updates from one policy"),
    ],
)
def test_what_never_finishes_cannot_be_measured(measure: Measure, speed: Speed, said: str) -> None:
    with pytest.raises(ProbeFailed, match=said):
        measure(speed, FEW, 38.0)


def test_one_window_is_enough_where_it_takes_long_and_whoever_is_done_goes_on_until_all_are(
    measure: Measure,
) -> None:
    found = measure(Speed(version_s=0.9), FEW, 1e6)
    learner = next(figures for figures in found.schedule.notebook.learners() if not figures.crowded)
    assert len(learner.update_s.values) == 4
    for steps in found.pool.asked:
        for step in steps.values():
            assert step.enough_s == pytest.approx(step.warm_s + ENOUGH_S)
    found = measure(Speed(version_s=0.5), FEW, 1e6)
    beside = found.pool.asked[FEW.index(Phase(8, actors=1, learner_cores=1))]
    assert beside[1].windows * beside[1].window_s + beside[1].tail_s > beside[0].windows * 0.5
    alone = found.pool.asked[FEW.index(Phase(8, learner_cores=1))]
    assert alone[0].tail_s == 0


def test_a_learner_that_shares_cores_sleeps_as_long_as_it_would_wait_for_samples(measure: Measure) -> None:
    sharing = Phase(8, actors=2, learner_cores=1, unpinned=True)
    phases = [Phase(8, actors=1), Phase(8, learner_cores=1), sharing]
    found = measure(Speed(fragment_s=0.05, version_s=0.02), phases, 38.0)
    pauses = [{number: step.pause_s for number, step in steps.items()} for steps in found.pool.asked[:3]]
    (actor,), (learner,) = found.schedule.notebook.actors(), found.schedule.notebook.learners()
    learning_s = learner.publish_s.median + learner.updates_per_version * (
        learner.update_s.median + learner.draw_s.median
    )
    samples = learner.updates_per_version * learner.uses_per_update / 4.0
    fragments = samples / actor.samples
    learning_s += fragments * learner.store_s.median
    round_s = (learning_s + fragments * actor.fragment_s.median) / 2
    assert round_s > learning_s, "there is something to wait for"
    assert pauses[:2] == [{2: 0.0}, {0: 0.0}]
    assert pauses[2] == {0: pytest.approx(round_s - learning_s), 1: 0.0, 2: 0.0}
    # One that would not wait sleeps not at all.
    found = measure(Speed(fragment_s=0.001, version_s=0.5), phases, 38.0)
    assert {step.pause_s for steps in found.pool.asked for step in steps.values()} == {0.0}


def test_roles_in_step_sleep_while_the_others_would_work_once_that_is_known(measure: Measure) -> None:
    phases = all_phases(TWO, 8, [16], [])
    in_step = ("distribution.mode=sync", "distribution.actor.num=2")
    found = measure(Speed(fragment_s=0.004, version_s=0.02), phases, 1e6, overrides=in_step)
    rough, counted = found.pool.asked[:2], found.pool.asked[2:]
    assert {step.pause_s for steps in rough for step in steps.values()} == {0.0}
    assert [sorted(steps) for steps in counted[:2]] == [sorted(steps) for steps in rough]
    # Of 10 updates with 100 uses each come 250 samples, which are two and a half fragments of 8 environments.
    acting_s = 10 * 100 / 4.0 / 100 * 0.004 / 2
    of_learners = {steps[0].pause_s for steps in counted if 0 in steps}
    of_actors = {
        (step.key, step.pause_every): step.pause_s
        for steps in counted
        for number, step in steps.items()
        if number > 0
    }
    assert [*of_learners] == [pytest.approx(acting_s)]
    assert of_actors == dict.fromkeys([("actor-8-1", 1), ("actor-16-1", 1)], pytest.approx(0.023))
    alone, *_ = found.schedule.notebook.actors()
    assert len(alone.fragment_s.values) == 4 * WINDOWS, "what was measured without pauses does not count"
    assert {step.tail_s for steps in counted if len(steps) == 1 for step in steps.values()} == {0.0}


def test_slow_roles_in_step_sleep_no_longer_than_makes_a_difference(measure: Measure) -> None:
    speed = Speed(fragment_s=2.0, version_s=20.0)
    found = measure(speed, all_phases(TWO, 8, [16], []), 38.0, overrides=("distribution.mode=sync",))
    pauses = {step.pause_s for steps in found.pool.asked for step in steps.values()}
    assert pauses == {0.0, MOST_PAUSE_S}
    assert found.schedule.notebook.learners()[0].update_s.values == pytest.approx((0.7 * 20.0 / 10,))
