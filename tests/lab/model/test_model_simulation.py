"""The simulated pipeline against the prediction and against cases that can be reckoned by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_lab.model.costs import (
    ActorCosts,
    BufferCosts,
    Cost,
    Costs,
    ExchangeCosts,
    LearnerCosts,
    Split,
    Workload,
)
from tianji_lab.model.prediction import predict
from tianji_lab.model.simulation import EVENTS, simulate

STEPS = 32 * 32
"""T x N of every fragment here."""

exactly = partial(simulate, jitter=0.0)
"""With the times that the costs say: what can be reckoned by hand."""


def splits(actors: int, learners: int = 1, groups: int = 1, buffer_cores: int = 0) -> Split:
    return Split(learners, 1, actors, num_envs=32, groups=groups, buffer_cores=buffer_cores)


def rollouts(fragments: int = 8, updates: int = 40, window: int = 2, in_step: bool = False) -> Workload:
    """Ten uses of each sample, in so many updates for each rollout."""
    return Workload(
        rho=10.0,
        uses_per_update=fragments * STEPS * 10 / updates,
        updates_per_version=updates,
        send_size=32,
        rollout_steps=fragments * STEPS,
        window=window,
        in_step=in_step,
    )


def replay(rho: float = 8.0, batch: int = 256, window: int = 2) -> Workload:
    """An update of 256 uses takes 32 steps: 32 updates for each fragment."""
    return Workload(
        rho=rho,
        uses_per_update=batch,
        updates_per_version=10,
        send_size=32,
        rollout_steps=None,
        window=window,
        tolerance=STEPS + batch / rho,
    )


def costs(
    *,
    fragment: float = 0.02,
    update: float = 0.001,
    receive: float = 2e-4,
    draw: float = 1e-4,
    exchange: ExchangeCosts | None = None,
) -> Costs:
    return Costs(
        ActorCosts(STEPS, Cost.fixed(fragment), send_s=1e-4),
        BufferCosts(receive / 2, Cost.fixed(receive / 2), Cost.fixed(draw)),
        LearnerCosts(Cost.fixed(update), Cost.fixed(5e-4)),
        ExchangeCosts() if exchange is None else exchange,
    )


PARTED = replace(replay(), colocated=False)
LINK = ExchangeCosts(fragment_bytes=1_000_000, crossing=0.5, link_bytes_per_s=1e8)


SLOW_GROUPS = ExchangeCosts(group_s=0.05, root_s=0.005)
SLOW_ROOT = ExchangeCosts(group_s=0.01, root_s=0.05)
CASES = {
    "more actors than fragments": ("consumption", splits(32), rollouts(), costs()),
    "parted communication-bound": ("reception", splits(8, buffer_cores=1), PARTED, costs(draw=0.002)),
    "learners": (
        "consumption",
        splits(16, 4),
        rollouts(64),
        costs(exchange=ExchangeCosts(gradients_s=0.001)),
    ),
    "groups": ("consumption", splits(4, groups=4), rollouts(), costs(update=0.003, exchange=SLOW_GROUPS)),
    "the root": ("root", splits(4, groups=16), rollouts(), costs(exchange=SLOW_ROOT)),
    "the link": ("link", splits(8), rollouts(32), costs(update=3e-4, exchange=LINK)),
}


@pytest.mark.parametrize(("limit", "split", "workload", "of_split"), CASES.values(), ids=CASES)
def test_the_prediction_comes_of_the_rules(
    limit: str, split: Split, workload: Workload, of_split: Costs
) -> None:
    prediction = predict(split, workload, of_split)
    assert min(prediction.limits, key=lambda name: prediction.limits[name]) == limit, "what the case is for"
    simulated = exactly(split, workload, of_split, contention=prediction.contention, events=60_000)
    # In step, the buffer receives while actors still work: the prediction has one after the other.
    assert simulated.throughput == pytest.approx(prediction.throughput, rel=0.02)
    assert simulated.reception * workload.rho == pytest.approx(simulated.consumption, rel=0.02)


SHARED = {
    "all wait together": (2, 2, rollouts()),
    "on four cores": (4, 4, rollouts()),
    "one fragment a rollout": (2, 2, rollouts(fragments=1, window=1)),
    "replay": (2, 2, replay()),
    "parted": (3, 3, PARTED),
    "one core": (1, 1, rollouts(window=8)),
    "in step": (2, 2, rollouts(in_step=True)),
}


@pytest.mark.parametrize("update", [3e-5, 2e-4, 8e-4])
@pytest.mark.parametrize(("cores", "actors", "workload"), SHARED.values(), ids=SHARED)
def test_the_prediction_comes_of_the_rules_where_roles_share_cores(
    cores: int, actors: int, workload: Workload, update: float
) -> None:
    split = replace(splits(actors, buffer_cores=int(not workload.colocated)), pinned=False)
    per_update = workload.uses_per_update / (STEPS * workload.rho) * 40 / 8
    of_split = costs(update=update * per_update * 8, receive=1e-5, draw=1e-5)
    prediction = predict(split, workload, of_split, cores)
    simulated = exactly(
        split, workload, of_split, cores=cores, contention=prediction.contention, events=30_000
    )
    assert simulated.throughput == pytest.approx(prediction.throughput, rel=0.06)


def test_a_learner_gets_no_more_of_shared_cores_than_each_actor() -> None:
    # 16 fragments take 160 ms of two actors, their updates as much: while all three work each has 2/3 of a
    # core, so that the actors are done after 240 ms, and the learner has them to itself for 0 to 80 ms.
    split, of_split = replace(splits(2), pinned=False), costs(fragment=0.0199, update=2e-3)
    free = replace(of_split, buffer=BufferCosts(0.0, Cost.fixed(0.0), Cost.fixed(0.0)))
    shared = exactly(split, rollouts(16, updates=80), free, cores=2, events=30_000)
    assert shared.throughput == pytest.approx(STEPS * 16 * 10 / 0.240, rel=0.02)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Split, Workload, Costs]:
    """Jobs of any kind on one group, with an actor's seconds as the unit of all costs."""
    actors, learners = draw(st.integers(1, 12)), draw(st.sampled_from((1, 2, 4)))
    kind = draw(st.sampled_from(("rollouts", "in step", "replay", "parted")))
    if kind in ("replay", "parted"):
        workload = replay(draw(st.sampled_from((1.0, 8.0))), draw(st.sampled_from((64, 256))))
        workload = replace(workload, colocated=kind == "replay")
    else:
        workload = rollouts(actors * draw(st.integers(1, 4)), draw(st.sampled_from((4, 16, 40))))
        workload = replace(workload, in_step=kind == "in step")
    per_update = workload.uses_per_update / workload.rho / STEPS
    work_s = per_update / actors * draw(st.floats(0.2, 5.0))
    share = st.floats(0.001, 0.1)
    return (
        splits(actors, learners, buffer_cores=int(kind == "parted")),
        workload,
        Costs(
            ActorCosts(STEPS, Cost(0.95, draw(st.floats(0.95, 1.5))), send_s=0.05),
            BufferCosts(
                draw(share) / actors, Cost.fixed(draw(share) / actors), Cost.fixed(work_s * draw(share))
            ),
            LearnerCosts(Cost(work_s, work_s * draw(st.floats(1.0, 1.5))), Cost.fixed(work_s * draw(share))),
            ExchangeCosts(gradients_s=(learners - 1) * work_s * draw(share)),
        ),
    )


@settings(max_examples=40)
@given(jobs())
def test_the_prediction_comes_of_the_rules_whatever_the_job(job: tuple[Split, Workload, Costs]) -> None:
    split, workload, of_split = job
    prediction = predict(split, workload, of_split)
    simulated = exactly(split, workload, of_split, contention=prediction.contention, events=30_000)
    in_flight = workload.window * split.actors
    if in_flight < workload.uses_per_update / workload.rho / STEPS:
        # Actors wait during an update for which they cannot send enough: no minimum of rates knows that.
        assert simulated.throughput <= prediction.throughput * 1.02
    else:
        received_meanwhile = 0.08 if workload.in_step else 0.0
        # A replay tolerates little more than a fragment: sides that are as fast wait for each other.
        waiting = 0.1 if workload.rollout_steps is None else 0.03
        of_predicted = simulated.throughput / prediction.throughput
        assert 1.0 - waiting <= of_predicted <= 1.03 + received_meanwhile


def test_one_actor_and_one_learner_as_reckoned_by_hand() -> None:
    free = Costs(
        ActorCosts(samples=1000.0, sample=Cost.fixed(0.09), send_s=0.01),
        BufferCosts(0.0, Cost.fixed(0.0), Cost.fixed(0.0)),
        LearnerCosts(Cost.fixed(0.01), Cost.fixed(0.0)),
    )
    simulated = exactly(splits(1), rollouts(fragments=1, updates=5), free, events=2000)
    assert simulated.production == pytest.approx(1000 / 0.1)
    assert simulated.reception == pytest.approx(1000 / 0.1)
    assert simulated.consumption == simulated.throughput == pytest.approx(STEPS * 10 / 0.1)
    # The next fragment begins as one is pushed, 50 ms before five updates have made a policy of it.
    assert simulated.policy_lag == pytest.approx(1.0)


def test_a_window_of_two_hides_the_updates_from_an_actor_that_a_window_of_one_makes_wait() -> None:
    # Two fragments and one update of half a fragment's time for each rollout.
    of_split = costs(fragment=0.0199, update=0.03, receive=0.0, draw=0.0)
    one, two, three = (
        exactly(splits(1), rollouts(2, updates=1, window=window), of_split, events=20_000).throughput
        for window in (1, 2, 3)
    )
    # With room for one, the second of two fragments waits for the end of the update: 30.5 ms, then 20 ms.
    assert one == pytest.approx(2 * STEPS * 10 / 0.0505, rel=0.01)
    assert two == three == pytest.approx(2 * STEPS * 10 / 0.04, rel=0.01)


@pytest.mark.parametrize(("actors", "lag"), [(2, 1.0), (8, 1.0), (16, 2.0), (32, 4.0), (80, 10.0)])
def test_samples_are_as_many_versions_old_as_actors_outnumber_the_fragments_of_a_rollout(
    actors: int, lag: float
) -> None:
    workload = rollouts(fragments=8, window=2 if actors < 8 else 1)
    simulated = exactly(splits(actors), workload, costs(update=0.01), events=30_000)
    assert simulated.policy_lag == pytest.approx(lag, rel=0.01)


def test_in_step_samples_are_never_old_and_actors_without_a_share_of_a_rollout_do_nothing() -> None:
    eight, twelve = (
        exactly(splits(actors), rollouts(fragments=8, in_step=True), costs(), events=20_000)
        for actors in (8, 12)
    )
    assert twelve.throughput == pytest.approx(eight.throughput, rel=0.01)
    assert twelve.policy_lag == eight.policy_lag == 0


@pytest.mark.parametrize("workload", [rollouts(), replay(), PARTED, rollouts(in_step=True)])
def test_with_jitter_it_is_never_above_the_prediction(workload: Workload) -> None:
    split = splits(4, learners=2, buffer_cores=int(not workload.colocated))
    for update in (3e-4, 7.5e-4, 0.003):
        of_split = costs(update=update)
        predicted = predict(split, workload, of_split).throughput
        simulated = simulate(split, workload, of_split, jitter=0.3, events=60_000)
        assert simulated.throughput <= predicted * 1.015


def test_learners_in_lockstep_wait_for_the_slowest() -> None:
    # The mean of the larger of two exponential times is one and a half times that of each.
    of_split = costs(update=0.01, receive=0.0, draw=0.0)
    one, two = (
        simulate(splits(4, learners), rollouts(), of_split, jitter=1.0, events=60_000).throughput
        for learners in (1, 2)
    )
    assert one / two == pytest.approx(1.5, rel=0.03)


def test_the_root_serves_one_group_after_another() -> None:
    def each(groups: int, **more: Any) -> float:
        """Throughput of one of so many groups."""
        exchange = ExchangeCosts(sync_interval=100, root_s=0.01, **more)
        of_split = costs(update=0.001, receive=0.0, draw=0.0, exchange=exchange)
        return exactly(splits(8, groups=groups), rollouts(), of_split, events=60_000).throughput / groups

    # A hundred updates take 101 ms; the root needs 40 ms for 4 groups, 400 ms for 40.
    alone, few, many = (each(groups, group_s=0.0) for groups in (1, 4, 40))
    assert alone == pytest.approx(STEPS * 8 * 10 / 0.0405, rel=0.01)
    assert few == pytest.approx(alone, rel=0.01)
    assert many == pytest.approx(100 * STEPS * 2 / 0.4, rel=0.01)
    # Of groups that do not wait for it, most would hand in while it is busy, and do not.
    alone, many = (each(groups, group_s=0.01, waits=False) for groups in (1, 40))
    free = predict(splits(8), rollouts(), costs(update=0.001, receive=0.0, draw=0.0)).throughput
    assert alone <= many <= free


def test_without_balance_the_throughput_is_what_both_sides_allow() -> None:
    free = replace(replay(), tolerance=None)
    simulated = exactly(splits(2), free, costs(fragment=0.1), events=30_000)
    assert simulated.consumption > 1.2 * simulated.reception * free.rho
    assert simulated.throughput == pytest.approx(2 * STEPS / 0.1001 * free.rho, rel=0.02)


def test_a_simulation_comes_out_the_same_every_time() -> None:
    one, again = (simulate(splits(4), rollouts(), costs(), events=5000) for _ in range(2))
    assert one == again
    few = exactly(splits(2), rollouts(), costs(), events=1)
    assert few.events > 100, "too few events become enough"
    assert math.isfinite(few.throughput)
    assert one.throughput != exactly(splits(4), rollouts(), costs(), events=5000).throughput


@pytest.mark.parametrize(("fragments", "actors"), [(1, 1), (2, 1), (2, 2), (8, 4)])
def test_near_balance_sides_whose_work_varies_wait_for_one_another(fragments: int, actors: int) -> None:
    workload, split = rollouts(fragments, window=2 if actors < fragments else 1), splits(actors)
    of_balance = 0.0201 * fragments / actors - fragments * 2e-4 - 5e-4
    balanced, training_bound = (
        simulate(split, workload, of_split).throughput / predict(split, workload, of_split).throughput
        for of_split in (costs(update=share * of_balance / 40 - 1e-4) for share in (1.0, 1.5))
    )
    assert 0.93 < balanced < 0.98
    assert training_bound > 0.99


HUGE_GROUPS = costs(exchange=ExchangeCosts(group_s=0.01, root_s=1e-6))
HUGE = {
    "rollouts": (splits(9_999), rollouts(), costs()),
    "large rollouts": (splits(9_999), rollouts(fragments=20_000), costs(update=1e-4)),
    "replay": (splits(9_999), replay(), costs()),
    "learners": (splits(9_936, learners=64), rollouts(640), costs()),
    "groups": (splits(1, groups=5_000), rollouts(), HUGE_GROUPS),
}


@pytest.mark.parametrize(("split", "workload", "of_split"), HUGE.values(), ids=HUGE)
def test_ten_thousand_cores_need_few_events_and_come_out_as_predicted(
    split: Split, workload: Workload, of_split: Costs
) -> None:
    simulated = exactly(split, workload, of_split)
    assert EVENTS <= simulated.events <= 2 * EVENTS
    assert simulated.throughput == pytest.approx(predict(split, workload, of_split).throughput, rel=0.03)


def test_what_could_never_run_is_refused() -> None:
    with pytest.raises(ValueError, match="beside the learner"):
        exactly(splits(2, buffer_cores=1), replace(rollouts(), colocated=False), costs())
    with pytest.raises(ValueError, match="take turns on one core"):
        simulate(splits(2), replace(rollouts(), one_process=True), costs())
    with pytest.raises(ValueError, match="a tolerance of 100 env steps is too small: 528 at least"):
        exactly(splits(2), replace(replay(), tolerance=100.0), costs())
