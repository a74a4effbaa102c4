"""Claims about the times of a job's parts, read from timelines that nobody has measured."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab.profile.made_up_measurements import APEX, PPO

from tianji_cli.config.loader import load_config
from tianji_cli.errors import RunFailed
from tianji_cli.files.traces import SPAN, WHAT, TracedProcess
from tianji_cli.runs.timeline.timeline import Lane, Timeline
from tianji_cli.telemetry.progress import Progress
from tianji_cli.wire.reports import LearnerReport
from tianji_lab.profile import parts
from tianji_lab.profile.parts import Part, _part, _splits, measure_parts
from tianji_lab.profile.split import Split, split_of
from tianji_lab.profile.trainer import Trained

PROCESS = TracedProcess(rank=1, title="made up", roles=(), host="here", cores=())
LEARNER = LearnerReport(
    env_steps=9000, episodes=1000, consumed=36_000, updates=72, version=9, rho=4.0, train_s=10.0
)


def lane(role: str, *spans: tuple[float, float, str]) -> Lane:
    """Spans of a role within ten seconds: start, duration, kind; outer spans come first."""
    rows = [(began, began + seconds, 0, WHAT.index(what)) for began, seconds, what in spans]
    return Lane(role, PROCESS, np.array(rows, SPAN), 10.0)


ACTOR = lane(
    "actor 0",
    *((0.0, 1.0, "turn"), (0.1, 0.2, "act"), (0.3, 0.5, "step"), (1.0, 0.25, "push")),
    *((2.0, 1.0, "turn"), (2.1, 0.2, "act"), (2.3, 0.5, "step"), (3.0, 0.25, "push"), (4.0, 6.0, "sleep")),
)
BUFFER = lane("buffer", (0.0, 0.5, "turn"), (0.1, 0.2, "claim"), (1.0, 0.5, "turn"), (1.1, 0.2, "claim"))
TAUGHT = lane(
    "learner",
    *((2.0, 1.0, "turn"), (2.0, 0.2, "draw"), (2.2, 0.7, "update"), (3.0, 1.0, "turn"), (3.0, 0.2, "draw")),
    *((3.2, 0.7, "update"), (4.0, 0.4, "publish"), (5.0, 5.0, "sleep")),
)


def traced(*lanes: Lane) -> Trained:
    timeline = Timeline("made up", 10.0, (), lanes or (BUFFER, TAUGHT, ACTOR))
    return Trained(900.0, 3600.0, LEARNER, timeline)


def part(config: str = PPO, *lanes: Lane) -> Part:
    job = load_config(config)
    found = _part(job, split_of(job), traced(*lanes))
    assert found is not None
    return found


def test_an_actors_time_is_divided_by_its_fragments() -> None:
    found = part()
    assert found.act_s == pytest.approx(0.2)
    assert found.step_s == pytest.approx(0.5)
    assert found.push_s == pytest.approx(0.25)
    assert found.rest_s == pytest.approx(0.3), "of a turn of 1 s that ends before the push"
    assert found.sample_s == pytest.approx(1.0)
    # An episode costs the step in which it is reset.
    assert found.samples == pytest.approx(0.9 * 64 * 64)


def test_a_learners_time_is_divided_by_its_updates_without_its_sleep() -> None:
    found = part()
    assert found.update_s == pytest.approx(0.7)
    assert found.draw_s == pytest.approx(0.2)
    assert found.other_s == pytest.approx(0.3), "0.1 of each turn, and a publication of 0.4 for two updates"
    assert (found.uses_per_update, found.uses_per_step, found.updates_per_version) == (500.0, 4.0, 8.0)


def test_beside_a_learner_reception_is_the_claims_and_with_a_process_of_its_own_all_that_a_buffer_does() -> (
    None
):
    assert part().receive_s == pytest.approx(0.2)
    assert part(APEX).receive_s == pytest.approx(0.5)


def test_actors_count_alike_and_those_that_pushed_nothing_not_at_all() -> None:
    slow = lane("actor 1", (0.0, 4.0, "turn"), (0.0, 1.2, "act"), (2.0, 2.0, "step"), (4.0, 0.25, "push"))
    idle = lane("actor 2", (0.0, 10.0, "sleep"))
    found = part(PPO, BUFFER, TAUGHT, ACTOR, slow, idle)
    assert found.act_s == pytest.approx((0.2 + 1.2) / 2)
    assert found.step_s == pytest.approx((0.5 + 2.0) / 2)


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_trace_without_a_whole_fragment_or_update_has_no_times(left_out: int) -> None:
    lanes = [BUFFER, TAUGHT, ACTOR]
    lanes[left_out] = replace(lanes[left_out], spans=lanes[left_out].spans[:0])
    job = load_config(PPO)
    assert _part(job, split_of(job), traced(*lanes)) is None


@pytest.mark.parametrize(
    ("slow", "measured"), [(["128"], [64, 16]), (["16", "128"], [64]), (["64"], None)], ids=str
)
def test_a_split_that_is_too_slow_is_left_out_unless_it_is_the_first(
    monkeypatch: pytest.MonkeyPatch, slow: list[str], measured: list[int] | None
) -> None:
    def train(settings: Sequence[str], _seconds: float, **_: bool) -> Trained:
        copies = dict(one.split("=") for one in settings)["environment.num_envs"]
        return traced(BUFFER, TAUGHT) if copies in slow else traced()

    monkeypatch.setattr(parts, "usable_cores", lambda: [0])
    monkeypatch.setattr(parts, "is_valid", lambda *_: True)
    job = load_config(PPO, ["distribution.pin_cores=false"])
    trainer: Any = SimpleNamespace(job=job, config=PPO, overrides=(), train=train, fragment_bytes=1)
    with contextlib.nullcontext() if measured else pytest.raises(RunFailed, match="too slow"):
        found = measure_parts(trainer, sizes=[16, 64, 128], busy=0.0, progress=Progress(0, quiet=True))
        assert measured is not None
        assert sorted(one.num_envs for one in found.measurements.parts) == sorted(measured)


def test_all_cores_are_at_work_in_what_is_measured() -> None:
    splits = list(_splits(load_config(PPO), 4, (16, 32, 64)))
    assert splits[0] == Split(1, 1, 3, 64)
    assert [(one.num_envs, one.learners, one.learner_cores, one.actors) for one in splits[1:]] == [
        *((16, 1, 1, 3), (64, 1, 2, 2), (64, 1, 4, 1), (64, 2, 1, 2))
    ]
    many = list(_splits(load_config(PPO, ["distribution.actor.num=8"]), 4, (64,)))
    assert many[0] == Split(1, 1, 3, 64, pinned=True), "whatever the config has"
