"""Which assumption breaks first as a job grows, by cases that can be reckoned by hand."""

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
from tianji_lab.model.prediction import predict
from tianji_lab.profile.result import Limit, breaks_first, growth_limits

SPLIT = Split(learners=1, learner_cores=1, actors=4, num_envs=10, groups=2)
REPLAY = Workload(rho=2.0, uses_per_update=100.0, updates_per_version=1.0, send_size=10, rollout_steps=None)
ROLLOUTS = replace(REPLAY, rollout_steps=800)
"""Eight fragments of 10 x 10 steps."""
COSTS = Costs(
    ActorCosts(samples=100.0, sample=Cost.fixed(0.99), send_s=0.01),
    BufferCosts(receive_s=0.005, store=Cost.fixed(0.005), draw=Cost.fixed(0.0)),
    LearnerCosts(update=Cost.fixed(0.045), publish=Cost.fixed(0.0)),
)
"""An actor makes a fragment a second, a group 4, both groups 8: 1600 uses a second. An update takes half a
fragment, and with its reception 50 ms: a group could make 2000 uses a second. A buffer could receive 100
fragments a second."""


NONE, ROOT = ExchangeCosts(), ExchangeCosts(sync_interval=100, root_s=1.25)
LINK = ExchangeCosts(fragment_bytes=1_000_000, crossing=0.75, link_bytes_per_s=6e6)
RING = ExchangeCosts(gradients_s=0.01)
LEARNERS, MANY = replace(SPLIT, learners=2), replace(SPLIT, actors=20)


def limit(split: Split, workload: Workload, costs: Costs) -> Limit:
    found = breaks_first(predict(split, workload, costs), workload, costs)
    assert found is not None
    return found


def exchanging(exchange: ExchangeCosts) -> Costs:
    return replace(COSTS, exchange=exchange)


@pytest.mark.parametrize(
    ("split", "workload", "exchange", "expected", "words"),
    [
        (SPLIT, REPLAY, NONE, ("reception", 100, 25.0), "from about 100 actors in it (here 4) it is busy"),
        # A group makes 8 updates a second, and so one averaging in 12.5 s.
        (SPLIT, REPLAY, ROOT, ("root", 10, 5.0), "from about 10 groups (here 2) it is busy all the time"),
        (SPLIT, REPLAY, replace(ROOT, waits=False), ("root", 10, 5.0), "less often than every 100 updates"),
        # Three of the four fragments a second come over it.
        (SPLIT, REPLAY, LINK, ("link", 8, 2.0), "from about 8 actors in a group (here 4) it is full"),
        # 50 ms of each update are not averaging; with 5 times as many learners they would be 10 ms.
        (LEARNERS, REPLAY, RING, ("gradients", 10, 5.0), "from about 10 learners in a group (here 2)"),
        # Each group's learner can follow 10 actors, and no more.
        (MANY, ROLLOUTS, NONE, ("staleness", 8, 0.4), "a group 20 actors: samples are up to 3 versions old"),
        (SPLIT, replace(ROLLOUTS, in_step=True), NONE, ("rollout", 8, 2.0), "find nothing to do"),
    ],
)
def test_what_breaks_first_is_named_with_its_number_and_how_far_it_is(
    split: Split, workload: Workload, exchange: ExchangeCosts, expected: tuple[str, int, float], words: str
) -> None:
    found = limit(split, workload, exchanging(exchange))
    assert (found.name, found.at, found.headroom) == (*expected[:2], pytest.approx(expected[2]))
    assert words in found.words


def test_what_holds_the_job_back_now_comes_before_what_is_broken_as_well() -> None:
    split = replace(SPLIT, actors=20, groups=100)
    costs = exchanging(ExchangeCosts(sync_interval=100, root_s=0.1))
    prediction = predict(split, ROLLOUTS, costs)
    # A group would make 100 updates in 5 s: the root has time for 50 of the 100 groups.
    assert prediction.throughput == prediction.limits["root"]
    found = growth_limits(prediction, ROLLOUTS, costs)
    assert [(one.name, one.headroom) for one in found] == [
        ("root", pytest.approx(0.5)),
        ("staleness", 0.4),
        ("reception", pytest.approx(20.0)),
    ]


def test_a_buffer_that_holds_the_job_back_is_named_first() -> None:
    costs = replace(COSTS, buffer=replace(COSTS.buffer, hand_over_s=0.2))
    workload = replace(REPLAY, colocated=False)
    found = limit(replace(SPLIT, buffer_cores=1), workload, costs)
    # A fragment and its two updates take it 410 ms: it can have 2.44 actors.
    assert (found.name, found.at, found.headroom) == ("reception", 2, pytest.approx(1 / 0.41 / 4))


def test_all_are_listed_the_closest_first() -> None:
    over_link = replace(LINK, fragment_bytes=1000, crossing=0.5, link_bytes_per_s=1e6)
    costs = exchanging(replace(over_link, gradients_s=0.001, sync_interval=100, root_s=0.01))
    split = replace(SPLIT, learners=2)
    found = growth_limits(predict(split, ROLLOUTS, costs), ROLLOUTS, costs)
    assert [one.name for one in found] == ["reception", "gradients", "link", "root"]
    assert all(len(one.words) < 250 for one in found)


def test_nothing_breaks_where_nothing_is_shared() -> None:
    costs = replace(COSTS, buffer=BufferCosts(0.0, Cost.fixed(0.0), Cost.fixed(0.0)))
    assert breaks_first(predict(SPLIT, REPLAY, costs), REPLAY, costs) is None
    # With fewer actors than a rollout has fragments, samples are no older than a version.
    found = growth_limits(predict(SPLIT, ROLLOUTS, COSTS), ROLLOUTS, COSTS)
    assert "staleness" not in {one.name for one in found}
