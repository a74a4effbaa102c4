"""Each rule of the prediction against a case that can be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
from tianji_lab.model.prediction import Terms, predict

SPLIT = Split(learners=1, learner_cores=1, actors=2, num_envs=4)
WORKLOAD = Workload(rho=4.0, uses_per_update=80.0, updates_per_version=2.0, send_size=10, rollout_steps=40)
COSTS = Costs(
    actor=ActorCosts(samples=40.0, sample=Cost.fixed(0.09), send_s=0.01),
    buffer=BufferCosts(receive_s=0.002, store=Cost.fixed(0.006), draw=Cost.fixed(0.001)),
    learner=LearnerCosts(update=Cost.fixed(0.015), publish=Cost.fixed(0.004)),
)
"""Two actors make 40 steps in 0.1 s each. An update of 80 uses takes 80 / 4 = 20 steps, half a fragment."""
PARTED = replace(WORKLOAD, colocated=False, rollout_steps=None)
FAST_ACTOR = replace(COSTS, actor=ActorCosts(samples=40.0, sample=Cost.fixed(0.0009), send_s=0.0001))


def of_buffer(costs: Costs, hand_over_s: float = 0.0, take_s: float = 0.0) -> Costs:
    """Cost of handing batches over as well."""
    return replace(
        costs,
        buffer=replace(costs.buffer, hand_over_s=hand_over_s),
        learner=replace(costs.learner, take_s=take_s),
    )


def exchanging(exchange: ExchangeCosts, costs: Costs = COSTS) -> Costs:
    """The costs with some of exchange."""
    return replace(costs, exchange=exchange)


def test_production_is_the_actors_fragments_a_second() -> None:
    prediction = predict(SPLIT, WORKLOAD, COSTS)
    assert prediction.production == pytest.approx(2 * 40 / 0.1)
    assert prediction.throughput == prediction.limits["production"] == pytest.approx(800 * 4)
    assert prediction.bottleneck.kind == "sample-bound"
    # Production and reception are the two cases of Equation 1, turned round.
    terms = Terms(sample_s=0.09, send_s=0.01, receive_s=0.002 + 0.006)
    for actors in (1, 5, 12, 13, 40):
        prediction = predict(replace(SPLIT, actors=actors), WORKLOAD, COSTS)
        collected = min(prediction.production, prediction.reception)
        assert collected == pytest.approx(1000 * 40 / terms.collection_s(1000, actors))
    assert terms.crossing == 13


def test_a_buffer_beside_the_learner_takes_its_time_from_it() -> None:
    prediction = predict(SPLIT, WORKLOAD, COSTS)
    # Update 15 ms, draw 1 ms, half a publication of 4 ms, half a fragment of 8 ms.
    assert prediction.consumption == pytest.approx(80 / (0.015 + 0.001 + 0.002 + 0.004))
    assert prediction.reception == pytest.approx(40 / 0.008)
    # It hands other learners their parts in that time, too, and averaging gradients makes updates longer.
    two, handing = replace(SPLIT, learners=2), of_buffer(COSTS, hand_over_s=0.003, take_s=9.0)
    assert predict(two, WORKLOAD, handing).consumption == pytest.approx(80 / (0.022 + 0.003))
    averaging = exchanging(ExchangeCosts(gradients_s=0.018))
    assert predict(two, WORKLOAD, averaging).consumption == pytest.approx(80 / (0.022 + 0.018))


def test_a_buffer_with_a_process_of_its_own_deals_out_batches_beside_receiving() -> None:
    split = replace(SPLIT, buffer_cores=1)
    prediction = predict(split, PARTED, of_buffer(COSTS, hand_over_s=0.003, take_s=0.002))
    assert prediction.consumption == pytest.approx(80 / (0.015 + 0.002 + 0.002))
    # For each update: draw 1 ms, hand over 3 ms, half a fragment of 8 ms: 20 steps in 8 ms.
    assert prediction.reception == pytest.approx(20 / 0.008)
    # One that cannot follow is named.
    prediction = predict(split, PARTED, of_buffer(FAST_ACTOR, hand_over_s=0.095))
    assert prediction.throughput == prediction.limits["reception"] == pytest.approx(80 / 0.1)
    assert prediction.bottleneck.kind == "communication-bound"


def test_groups_multiply_all_rates_and_averaging_over_them_costs_each_now_and_then() -> None:
    one = predict(SPLIT, WORKLOAD, COSTS)
    costs = exchanging(ExchangeCosts(sync_interval=10, group_s=0.22))
    four = predict(replace(SPLIT, groups=4), WORKLOAD, costs)
    assert four.production == pytest.approx(4 * one.production)
    assert four.reception == pytest.approx(4 * one.reception)
    assert four.consumption == pytest.approx(4 * 80 / (0.022 + 0.022))


def test_the_root_averages_one_group_after_the_other() -> None:
    # 5 averagings a second, of 10 updates of 80 uses each, whichever groups they come from.
    costs = exchanging(ExchangeCosts(sync_interval=10, root_s=0.2))
    for groups in (4, 8):
        prediction = predict(replace(SPLIT, groups=groups), WORKLOAD, costs)
        assert prediction.throughput == prediction.limits["root"] == pytest.approx(5 * 10 * 80)
        assert prediction.bottleneck.kind == "communication-bound"
        assert "root" in prediction.bottleneck.words
    not_waited_for = exchanging(ExchangeCosts(sync_interval=10, root_s=0.2, waits=False))
    assert "root" not in predict(replace(SPLIT, groups=8), WORKLOAD, not_waited_for).limits


def test_the_link_carries_the_fragments_that_come_from_other_hosts() -> None:
    # An update takes half a fragment, half of which crosses: 2,500 bytes. 10,000 a second are 4 updates.
    link = ExchangeCosts(fragment_bytes=10_000, crossing=0.5, link_bytes_per_s=10_000.0)
    prediction = predict(SPLIT, WORKLOAD, exchanging(link))
    assert prediction.throughput == prediction.limits["link"] == pytest.approx(4 * 80)
    assert prediction.bottleneck.kind == "communication-bound"
    assert "network" in prediction.bottleneck.words
    # Groups that lie on hosts of their own have a link each.
    two = predict(replace(SPLIT, groups=2), WORKLOAD, exchanging(link))
    assert two.limits["link"] == pytest.approx(2 * 4 * 80)
    # A link that no fragment needs, or nobody knows, is no limit.
    for unlimited in (replace(link, crossing=0.0), replace(link, link_bytes_per_s=None)):
        limits = predict(SPLIT, WORKLOAD, exchanging(unlimited)).limits
        assert set(limits) == {"production", "reception", "consumption"}


def test_in_step_the_times_of_actors_and_learner_add_up() -> None:
    prediction = predict(SPLIT, replace(WORKLOAD, in_step=True), COSTS)
    # For 80 uses: 20 steps at 800 a second, and 22 ms.
    assert prediction.throughput == pytest.approx(80 / (0.025 + 0.022))
    assert prediction.bottleneck.kind == "in step"
    # Groups do not wait for one another, and actors crowd only actors.
    three = predict(replace(SPLIT, groups=3), replace(WORKLOAD, in_step=True), COSTS)
    assert three.throughput == pytest.approx(3 * prediction.throughput)
    costs = replace(
        COSTS,
        actor=replace(COSTS.actor, sample=Cost(0.09, 0.19)),
        learner=replace(COSTS.learner, update=Cost(0.015, 1.0)),
    )
    prediction = predict(replace(SPLIT, actors=3), replace(WORKLOAD, in_step=True), costs)
    # Two of an actor's three neighbours are actors; the learner has nobody at work beside it.
    assert prediction.production == pytest.approx(3 * 40 / (0.01 + 0.09 + 0.1 * 2 / 3))
    assert prediction.consumption == pytest.approx(80 / 0.022)


@pytest.mark.parametrize("actors", [1, 2])
def test_roles_of_one_process_take_turns_however_many_actors_there_are(actors: int) -> None:
    prediction = predict(replace(SPLIT, actors=actors), replace(WORKLOAD, one_process=True), COSTS)
    # 20 steps of one actor at 400 a second, and 22 ms.
    assert prediction.throughput == pytest.approx(80 / (0.050 + 0.022))
    assert prediction.bottleneck.kind == "sample-bound"
    assert "take turns" in prediction.bottleneck.words
    assert "cores of their own would help most" in prediction.bottleneck.words
    # So do learner and actor on one core.
    on_one_core = predict(replace(SPLIT, actors=actors), WORKLOAD, COSTS, cores=1)
    assert on_one_core.throughput == pytest.approx(80 / (0.050 + 0.022))


def test_as_many_cores_as_wanted_or_more_change_nothing_nor_do_pins_there() -> None:
    for cores in (3, 64):
        assert predict(SPLIT, WORKLOAD, COSTS, cores=cores) == predict(SPLIT, WORKLOAD, COSTS)
    assert predict(UNPINNED, WORKLOAD, COSTS, cores=3).limits == predict(SPLIT, WORKLOAD, COSTS).limits


def test_actors_share_the_cores_that_learners_leave() -> None:
    prediction = predict(replace(SPLIT, actors=5), WORKLOAD, COSTS, cores=3)
    assert prediction.production == pytest.approx(2 * 40 / 0.1)
    assert "cores" not in prediction.limits
    # Actors with several cores want them all.
    wide = replace(SPLIT, actors=2, actor_cores=2)
    assert predict(wide, WORKLOAD, COSTS, cores=5).production == pytest.approx(800)
    assert predict(wide, WORKLOAD, COSTS, cores=3).production == pytest.approx(400)


def test_a_buffer_without_a_core_of_its_own_shares_those_of_the_actors() -> None:
    split = replace(SPLIT, actors=1, buffer_cores=1)
    prediction = predict(split, PARTED, of_buffer(COSTS, hand_over_s=0.003), cores=2)
    # For 80 uses: 50 ms of the actor and 8 ms of the buffer on one core; the learner has the other.
    assert prediction.throughput == pytest.approx(80 / (0.050 + 0.008))
    assert "the buffer" in prediction.bottleneck.words


UNPINNED = replace(SPLIT, pinned=False)
"""Two actors make 800 steps a second, or 3,200 uses; the learner makes 80 in 22 ms, or 3,636."""
ONE_BY_ONE = replace(WORKLOAD, rollout_steps=None)
"""From a replay, which never holds all actors back at once."""


def test_what_a_learner_leaves_idle_actors_have() -> None:
    slow_actors = replace(COSTS, actor=replace(COSTS.actor, sample=Cost.fixed(0.39)))
    pinned = predict(replace(SPLIT, actors=1), WORKLOAD, slow_actors, cores=2)
    shared = predict(UNPINNED, WORKLOAD, slow_actors, cores=2)
    # For 80 uses 200 ms of an actor's core, or 222 ms of two cores.
    assert pinned.throughput == pytest.approx(80 / 0.200)
    assert shared.throughput == shared.limits["cores"] == pytest.approx(80 / 0.111)
    assert "the actors 90%, the learner 10%" in shared.bottleneck.words
    # Pinned actors have only the cores that learners leave.
    assert predict(SPLIT, WORKLOAD, COSTS, cores=2).production == pytest.approx(400)
    assert predict(UNPINNED, WORKLOAD, COSTS, cores=2).production == pytest.approx(800)
    # Cores of their own were less: they share them because that is more.
    assert shared.bottleneck.words.endswith("; more cores would help")


def test_actors_that_wait_one_by_one_never_leave_a_learner_less_than_it_can_use() -> None:
    fast = replace(COSTS, actor=replace(COSTS.actor, sample=Cost.fixed(0.03)))
    shared = predict(UNPINNED, ONE_BY_ONE, fast, cores=2)
    # 80 uses take 22 ms, and 20 ms of actors: less than two cores have.
    assert shared.throughput == shared.limits["consumption"] == pytest.approx(80 / 0.022)
    # Those that all go on at once leave it no more than its share.
    rollouts = replace(WORKLOAD, rollout_steps=320)
    shared = predict(UNPINNED, rollouts, fast, cores=2)
    # Two actors take 10 ms, and 15 where three share two cores: the learner has then done 10 of its 22 ms.
    assert shared.throughput == shared.limits["cores"] == pytest.approx(80 / (0.015 + 0.012))


def test_in_step_roles_that_share_cores_are_never_in_each_others_way() -> None:
    for actors in (2, 4):  # Four on two cores are no faster than two.
        shared = predict(replace(UNPINNED, actors=actors), replace(WORKLOAD, in_step=True), COSTS, cores=2)
        assert shared.throughput == pytest.approx(80 / (0.025 + 0.022))


def test_a_split_adds_up_to_its_cores_and_is_named_as_in_the_paper() -> None:
    split = Split(learners=2, learner_cores=4, actors=5, num_envs=8, groups=3, actor_cores=2, buffer_cores=1)
    assert split.cores_of_learners == 3 * (2 * 4 + 1)
    assert split.cores_of_actors == 3 * 5 * 2
    assert (split.cores, split.name) == (57, "3 x L2A5")
    assert replace(split, groups=1).name == "L2A5"
