"""Busy cores make the work on others dearer, and roles that wait do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
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
from tianji_lab.model.rates import PerRole

SECONDS = st.floats(1e-6, 1e-1)
FACTORS = st.floats(1.0, 3.0) | st.floats(1.0, 1e4)


@st.composite
def some_cost(draw: st.DrawFn) -> Cost:
    """Of something that contention makes dearer, mostly up to three times."""
    alone_s = draw(SECONDS)
    return Cost(alone_s, alone_s * draw(FACTORS))


SPLITS = st.builds(
    Split,
    learners=st.integers(1, 4),
    learner_cores=st.integers(1, 4),
    actors=st.integers(1, 32),
    num_envs=st.just(8),
    groups=st.integers(1, 3),
    buffer_cores=st.integers(1, 2),
)
WORKLOADS = st.builds(
    Workload,
    rho=st.floats(0.25, 16.0),
    uses_per_update=st.floats(16.0, 4096.0),
    updates_per_version=st.floats(1.0, 64.0),
    send_size=st.just(32),
    rollout_steps=st.none(),
    in_step=st.booleans(),
    colocated=st.booleans(),
    one_process=st.booleans(),
)
COSTS = st.builds(
    Costs,
    actor=st.builds(ActorCosts, samples=st.floats(8.0, 4096.0), sample=some_cost(), send_s=SECONDS),
    buffer=st.builds(BufferCosts, SECONDS, some_cost(), some_cost(), SECONDS),
    learner=st.builds(LearnerCosts, some_cost(), some_cost(), SECONDS),
    exchange=st.builds(
        ExchangeCosts,
        gradients_s=SECONDS,
        sync_interval=st.integers(1, 100),
        group_s=SECONDS,
        root_s=st.just(0.0) | SECONDS,
        fragment_bytes=st.integers(1, 10**6),
        crossing=st.floats(0.0, 1.0),
        link_bytes_per_s=st.none() | st.floats(1e4, 1e9),
    ),
)
CORES = st.none() | st.integers(1, 64)


def simple(sample: Cost, update: Cost) -> Costs:
    """Costs of a job that samples and updates and does nothing else."""
    return Costs(
        actor=ActorCosts(samples=100.0, sample=sample, send_s=0.0),
        buffer=BufferCosts(receive_s=0.0, store=Cost.fixed(0.0), draw=Cost.fixed(0.0)),
        learner=LearnerCosts(update=update, publish=Cost.fixed(0.0)),
    )


ONE_TO_ONE = Workload(
    rho=1.0, uses_per_update=100.0, updates_per_version=1.0, send_size=10, rollout_steps=100
)


def test_a_learner_that_waits_slows_the_actor_only_while_it_works() -> None:
    # One actor, one learner. A fragment takes 10 ms and up to 20, an update 4 ms: the learner is at work for
    # u of the time, and u = 4 / (10 + 10 u) is solved by u = 0.306.
    costs = simple(sample=Cost(0.010, 0.020), update=Cost.fixed(0.004))
    prediction = predict(Split(1, 1, 1, 10), ONE_TO_ONE, costs)
    share = (-10 + (100 + 4 * 10 * 4) ** 0.5) / 20
    assert prediction.contention.actors == pytest.approx(share)
    assert prediction.contention.learners == pytest.approx(1.0)
    assert prediction.throughput == pytest.approx(100 / (0.010 + 0.010 * share))


def test_a_learner_that_is_never_left_waiting_slows_in_full_and_is_slowed_in_part() -> None:
    # Three actors make a fragment in 12 ms each, so one in 4 ms; an update takes 8 ms and up to 16.
    costs = simple(sample=Cost.fixed(0.012), update=Cost(0.008, 0.016))
    prediction = predict(Split(1, 1, 3, 10), ONE_TO_ONE, costs)
    # Actors are at work for u = 4 / (8 + 8 u) of the time.
    share = (-8 + (64 + 4 * 8 * 4) ** 0.5) / 16
    assert prediction.contention.learners == pytest.approx(share)
    # Of an actor's three neighbours one is the learner, always at work, and two are actors.
    assert prediction.contention.actors == pytest.approx((1 + 2 * share) / 3)
    assert prediction.throughput == pytest.approx(100 / (0.008 * (1 + share)))


def test_no_contention_is_more_than_full() -> None:
    # Two learners wait for the buffer almost half of the time, and leave their cores to the others: on four
    # cores one of them finds more at work than the two beside its own. So an update takes 5 ms, a fragment of
    # the actor 3 and of the buffer x = 4 + 6 (4 x 5 + 3) / 3 x.
    costs = simple(sample=Cost.fixed(0.003), update=Cost(0.001, 0.005))
    costs = replace(costs, buffer=replace(costs.buffer, store=Cost(0.004, 0.010)))
    workload = replace(ONE_TO_ONE, colocated=False, rollout_steps=None)
    prediction = predict(Split(2, 2, 1, 10, buffer_cores=1), workload, costs, cores=4)
    assert prediction.contention.learners == 1.0
    assert prediction.throughput == pytest.approx(100 / (0.002 + 0.001 * 50**0.5))


@pytest.mark.parametrize("dearer", [1e2, 1e6])
def test_the_worst_contention_settles_too_and_there_is_none_on_the_only_core(dearer: float) -> None:
    # Both sides alike: if one is at work for u of the time, u = T (t + d u) for both, and u is 1 at most.
    costs = simple(sample=Cost(0.001, 0.001 * dearer), update=Cost(0.001, 0.001 * dearer))
    prediction = predict(Split(1, 1, 1, 10), ONE_TO_ONE, costs)
    assert prediction.contention == pytest.approx((1.0, 1.0, 1.0))
    assert prediction.throughput == pytest.approx(100 / (0.001 * dearer))
    alone = predict(Split(1, 1, 1, 10), ONE_TO_ONE, costs, cores=1)
    assert alone.throughput == pytest.approx(100 / 0.002)


def test_roles_that_the_link_limits_slow_one_another_less() -> None:
    # Two fragments a second are all that the link carries: the actor is at work for u = 2 (0.1 + 0.1 v) of
    # the time, the learner for v = 2 x 0.2.
    costs = replace(
        simple(sample=Cost(0.1, 0.2), update=Cost.fixed(0.2)),
        exchange=ExchangeCosts(fragment_bytes=1000, crossing=1.0, link_bytes_per_s=2000.0),
    )
    prediction = predict(Split(1, 1, 1, 10), ONE_TO_ONE, costs)
    assert prediction.throughput == prediction.limits["link"] == pytest.approx(200)
    assert prediction.contention.actors == pytest.approx(0.4)
    assert prediction.contention.learners == pytest.approx(2 * (0.1 + 0.1 * 0.4))


def test_cores_on_which_roles_take_turns_are_all_at_work() -> None:
    # Two learners and two actors on two cores: 2 x (20 + 30) ms of core time for each hundred uses.
    costs = simple(sample=Cost(0.010, 0.020), update=Cost(0.015, 0.030))
    prediction = predict(Split(2, 1, 2, 10), ONE_TO_ONE, costs, cores=2)
    assert prediction.throughput == pytest.approx(100 * 2 / (0.020 + 2 * 0.030))


def test_contention_is_only_as_high_as_roles_that_take_turns_let_it_be() -> None:
    # The learner has a core; actor and buffer share one, on which a fragment takes 50 + 20 v and 40 ms. With
    # 10 a second it is always at work, the buffer and the learner for 0.4 and 0.1 of the time: v = 0.5.
    costs = simple(sample=Cost(0.050, 0.070), update=Cost.fixed(0.010))
    costs = replace(costs, buffer=replace(costs.buffer, draw=Cost.fixed(0.040)))
    parted = replace(ONE_TO_ONE, colocated=False, rollout_steps=None)
    prediction = predict(Split(1, 1, 1, 10, buffer_cores=1), parted, costs, cores=2)
    assert prediction.contention.actors == pytest.approx(0.5)
    assert prediction.throughput == prediction.limits["cores"] == pytest.approx(1000)


def test_roles_that_share_cores_leave_some_idle_if_one_actor_is_all_there_is_to_wait_for() -> None:
    # Two learners and an actor on two cores; learners take 20 ms each for a fragment that takes 60 ms. While
    # all three work each has 2/3 of a core: 30 ms in all, in which the actor does 20. It does the rest alone.
    costs = simple(sample=Cost.fixed(0.060), update=Cost.fixed(0.020))
    prediction = predict(Split(2, 1, 1, 10), ONE_TO_ONE, costs, cores=2)
    assert prediction.throughput == prediction.limits["cores"] == pytest.approx(100 / 0.070)
    # Both cores are at work for 100 of 70 x 2 ms, of which the actor has 60.
    assert prediction.contention.actors == pytest.approx(40 / 70)


def test_work_that_was_measured_a_little_faster_under_contention_is_taken_as_measured() -> None:
    costs = simple(sample=Cost(0.010, 0.009), update=Cost.fixed(0.009))
    prediction = predict(Split(1, 1, 1, 10), ONE_TO_ONE, costs)
    assert prediction.production == pytest.approx(100 / 0.0091)
    assert prediction.throughput == min(prediction.limits.values())


@given(SPLITS, WORKLOADS, COSTS, CORES)
def test_throughput_is_the_least_limit_and_every_contention_a_share(
    split: Split, workload: Workload, costs: Costs, cores: int | None
) -> None:
    prediction = predict(split, workload, costs, cores)
    assert prediction.throughput == min(prediction.limits.values()) > 0
    assert prediction.limits["production"] == pytest.approx(prediction.production * workload.rho)
    assert prediction.limits["reception"] == pytest.approx(prediction.reception * workload.rho)
    assert prediction.limits["consumption"] == prediction.consumption
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in prediction.contention)
    # Rates, throughput and contention fit one another.
    again = predict(split, workload, settled(costs, prediction.contention), cores)
    assert again.throughput == pytest.approx(prediction.throughput, rel=1e-6)
    assert again.contention == pytest.approx(prediction.contention, abs=1e-6)


@given(SPLITS, WORKLOADS, COSTS, CORES, st.floats(1.0, 2.0), st.floats(1.0, 2.0))
def test_dearer_contention_never_makes_a_job_faster(
    split: Split, workload: Workload, costs: Costs, cores: int | None, sampling: float, learning: float
) -> None:
    dearer = replace(
        costs,
        actor=replace(costs.actor, sample=more_contended(costs.actor.sample, sampling)),
        learner=replace(costs.learner, update=more_contended(costs.learner.update, learning)),
    )
    before = predict(split, workload, costs, cores).throughput
    assert predict(split, workload, dearer, cores).throughput <= before * (1 + 1e-6)


def settled(costs: Costs, contention: PerRole) -> Costs:
    """What everything costs under a contention that does not change."""
    return replace(
        costs,
        actor=replace(costs.actor, sample=Cost.fixed(costs.actor.sample.at(contention.actors))),
        buffer=replace(
            costs.buffer,
            store=Cost.fixed(costs.buffer.store.at(contention.buffers)),
            draw=Cost.fixed(costs.buffer.draw.at(contention.buffers)),
        ),
        learner=replace(
            costs.learner,
            update=Cost.fixed(costs.learner.update.at(contention.learners)),
            publish=Cost.fixed(costs.learner.publish.at(contention.learners)),
        ),
    )


def more_contended(cost: Cost, factor: float) -> Cost:
    """A cost that the same contention raises by more."""
    return Cost(cost.alone_s, cost.contended_s * factor)
