"""What was measured is taken as it is, and what was not is reckoned by a law that a hand can check."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_lab.model.costs import Cost, Costs, Split
from tianji_lab.profile.measurements import (
    ActorFigures,
    AveragingFigures,
    LearnerFigures,
    Measurements,
    Repeated,
    SharingFigures,
    TransportFigures,
)
from tianji_lab.profile.scaling import Cluster, GroupAveraging, Line, MeasuredCosts, line

N = 8
SAMPLES = 80.0
PARAMETERS = 2500  # 10,000 bytes


def once(value: float) -> Repeated:
    return Repeated(values=(value,))


def an_actor(side_by_side: int, crowded: bool, seconds: float, num_envs: int = N) -> ActorFigures:
    return ActorFigures(
        num_envs=num_envs,
        side_by_side=side_by_side,
        crowded=crowded,
        samples=10.0 * num_envs,
        fragment_s=once(seconds),
        act_s=once(seconds / 2),
        step_s=once(seconds / 2),
    )


def a_learner(
    update_s: float, *, crowded: bool = False, cores: int = 1, share: int = 1, num_envs: int = N
) -> LearnerFigures:
    """A learner whose other work takes 1, 2 and 3 ms, half as much again with all cores at work."""
    ms = 0.0015 if crowded else 0.001
    return LearnerFigures(
        cores=cores,
        share=share,
        num_envs=num_envs,
        crowded=crowded,
        uses_per_update=64.0 / share,
        updates_per_version=5.0,
        update_s=once(update_s),
        draw_s=once(ms),
        publish_s=once(2 * ms),
        store_s=once(3 * ms),
    )


def measured(cores: int = 2, **changed: object) -> Measurements:
    """A machine of so many cores on which the least was measured."""
    return Measurements(
        config="a config",
        fingerprint="0",
        cores=cores,
        at_work=cores,
        rho=2.0,
        parameters=PARAMETERS,
        fragment_bytes={N: 1000, 4 * N: 4000},
        batch_bytes=0,
        policy_bytes=4 * PARAMETERS,
        startup_s=1.0,
        busy=0.0,
        actors=(an_actor(1, False, 0.10), an_actor(1, True, 0.12), an_actor(2, True, 0.16)),
        learners=(a_learner(0.020), a_learner(0.022, crowded=True)),
        # 10 us and 10 ns a byte to send; 20 us and 10 ns to receive.
        transport=(
            TransportFigures(engine="shm", nbytes=1000, send_s=20e-6, receive_s=30e-6),
            TransportFigures(engine="shm", nbytes=4000, send_s=50e-6, receive_s=60e-6),
        ),
        weights=(),
        averaging=(),
        seconds=1.0,
    ).model_copy(update=changed)


def split(
    learners: int = 1,
    learner_cores: int = 1,
    actors: int = 1,
    num_envs: int = N,
    groups: int = 1,
    *,
    pinned: bool = True,
    **more: int,
) -> Split:
    return Split(learners, learner_cores, actors, num_envs, groups=groups, pinned=pinned, **more)


def close(cost: Cost, alone_s: float, contended_s: float) -> bool:
    return astuple(cost) == pytest.approx((alone_s, contended_s))


def learners_of(*updates: tuple[int, int, float]) -> tuple[LearnerFigures, ...]:
    """Learners with so many cores, such a share and such an update, a tenth slower with all cores at work."""
    return tuple(
        a_learner(update_s * (1.1 if crowded else 1.0), cores=cores, share=share, crowded=crowded)
        for cores, share, update_s in updates
        for crowded in (False, True)
    )


# --- what was measured ------------------------------------------------------------------------------------


def test_a_split_that_was_measured_costs_what_was_measured() -> None:
    costs = MeasuredCosts(measured(), Cluster(cores_per_node=2)).at(split())
    assert costs.actor.samples == SAMPLES
    assert close(costs.actor.sample, 0.10, 0.12)
    assert costs.actor.send_s == pytest.approx(20e-6)
    assert costs.buffer.receive_s == pytest.approx(30e-6)
    assert close(costs.buffer.store, 0.003, 0.0045)
    assert close(costs.buffer.draw, 0.001, 0.0015)
    assert close(costs.learner.update, 0.020, 0.022)
    # 10,000 bytes: 110 us to send.
    assert close(costs.learner.publish, 0.002 + 110e-6, 0.003 + 110e-6)
    assert (costs.buffer.hand_over_s, costs.learner.take_s) == (0.0, 0.0)
    exchange = costs.exchange
    assert (exchange.gradients_s, exchange.group_s, exchange.root_s, exchange.crossing) == (0, 0, 0, 0)
    assert costs.extrapolated == ()


SHARING = SharingFigures(actors=an_actor(2, True, 0.15), learner=a_learner(0.033, crowded=True))
"""An actor is a quarter slower than beside a learner on a core of its own, a learner by half."""


def test_roles_that_share_cores_cost_what_they_did_when_they_shared_some() -> None:
    table = MeasuredCosts(measured(sharing=SHARING), Cluster(cores_per_node=2))
    own, shared = table.at(split()), table.at(split(actors=2, pinned=False))
    assert close(own.actor.sample, 0.10, 0.12)
    assert close(shared.actor.sample, 1.25 * 0.10, 1.25 * 0.16)
    assert close(shared.learner.update, 1.5 * 0.020, 1.5 * 0.022)
    assert close(shared.buffer.store, 1.5 * 0.003, 1.5 * 0.0045)
    assert close(shared.buffer.draw, 1.5 * 0.001, 1.5 * 0.0015)
    assert close(shared.learner.publish, 1.5 * 0.002 + 110e-6, 1.5 * 0.003 + 110e-6)
    assert shared.extrapolated == ()


def test_pins_leave_a_learner_its_core_and_pinned_actors_share_the_others() -> None:
    table = MeasuredCosts(measured(sharing=SHARING), Cluster(cores_per_node=2))
    own, shared = table.at(split()), table.at(split(actors=2))
    assert own == table.at(split(pinned=False)), "there are cores enough"
    assert close(shared.actor.sample, 1.25 * 0.10, 1.25 * 0.16)
    assert shared.learner == own.learner
    on_one_core = MeasuredCosts(measured(1, sharing=SHARING), Cluster(cores_per_node=1)).at(split())
    assert close(on_one_core.learner.update, 1.5 * 0.020, 1.5 * 0.020)


def test_that_sharing_was_not_measured_is_said() -> None:
    table = MeasuredCosts(measured(), Cluster(cores_per_node=2))
    (said,) = table.at(split(actors=2, pinned=False)).extrapolated
    assert "roles that share cores" in said
    assert close(table.at(split(actors=2, pinned=False)).learner.update, 0.020, 0.022)


def test_a_size_that_was_measured_only_in_part_is_not_one_of_those_to_choose_from() -> None:
    whole = measured()
    alone = an_actor(1, False, 0.3, num_envs=4 * N)
    in_part = measured(actors=(*whole.actors, alone))
    both_alone = in_part.model_copy(update={"learners": (*whole.learners, a_learner(0.02, num_envs=4 * N))})
    busy = (an_actor(1, True, 0.4, num_envs=4 * N), a_learner(0.02, num_envs=4 * N, crowded=True))
    fully = both_alone.model_copy(
        update={"actors": (*both_alone.actors, busy[0]), "learners": (*both_alone.learners, busy[1])}
    )
    assert [table.sizes for table in (whole, in_part, both_alone)] == [(N,)] * 3
    assert fully.sizes == (N, 4 * N)
    # What nobody has measured in a crowd says nothing of crowds.
    two = Cluster(cores_per_node=2)
    assert MeasuredCosts(both_alone, two).at(split()) == MeasuredCosts(whole, two).at(split())


def test_numbers_of_updates_are_those_of_an_undivided_batch_and_of_measured_environments() -> None:
    figures = (*measured().learners, a_learner(0.015, share=2))
    costs = MeasuredCosts(measured(learners=figures), Cluster(cores_per_node=2))
    assert (costs.uses_per_update(N), costs.updates_per_version(N)) == (64.0, 5.0)
    with pytest.raises(KeyError):
        costs.at(split(num_envs=4 * N))
    with pytest.raises(KeyError):
        costs.uses_per_update(4 * N)


def test_an_actor_is_crowded_as_beside_a_number_of_actors_near_its_own() -> None:
    costs = MeasuredCosts(measured(), Cluster(cores_per_node=3))
    crowded = [costs.at(split(actors=actors)).actor.sample.contended_s for actors in (1, 2, 30)]
    assert crowded == pytest.approx([0.12, 0.16, 0.16])


def test_a_crowd_is_of_as_many_cores_as_were_at_work_and_more_hinder_no_more() -> None:
    fewer = MeasuredCosts(measured(cores=5), Cluster(cores_per_node=5)).at(split())
    # One neighbour, where there were four.
    assert close(fewer.actor.sample, 0.10, 0.105)
    assert close(fewer.learner.update, 0.020, 0.0205)
    table = MeasuredCosts(measured(cores=100, at_work=5), Cluster(cores_per_node=100))
    half, all_of_them, more = (table.at(split(actors=actors)) for actors in (2, 4, 99))
    assert close(half.learner.update, 0.020, 0.021)
    assert close(all_of_them.learner.update, 0.020, 0.022)
    assert close(more.learner.update, 0.020, 0.022)
    assert all_of_them.extrapolated == ()
    assert more.extrapolated == ("100 cores of a node at work: they hinder one another as 5 did",)
    one = measured(cores=1, actors=(an_actor(1, True, 0.1),), learners=(a_learner(0.02, crowded=True),))
    costs = MeasuredCosts(one, Cluster(cores_per_node=4)).at(split(actors=3))
    assert close(costs.actor.sample, 0.1, 0.1), "what was measured on one core knows no crowd"
    assert close(costs.learner.update, 0.02, 0.02)
    assert "hinder" in costs.extrapolated[0]


# --- more cores, more learners ----------------------------------------------------------------------------


LAWS = ("a learner with", "a batch divided")


@pytest.mark.parametrize(
    ("updates", "of", "update_s", "said"),
    [
        # Amdahl's law, 0.4 + 0.6 / c: 1, 0.7, 0.55, and 0.475 for eight cores.
        (((1, 1, 0.020), (2, 1, 0.014), (4, 1, 0.011)), split(learner_cores=8), 0.0095, "40% serial"),
        (((1, 1, 0.020), (2, 1, 0.014), (4, 1, 0.011)), split(learner_cores=3), 0.012, "40% serial"),
        # What was measured needs no law.
        (((1, 1, 0.020), (2, 1, 0.019), (4, 1, 0.011)), split(learner_cores=2), 0.019, None),
        # More cores neither slow an update down nor speed it up more than they are.
        (((1, 1, 0.020), (2, 1, 0.030)), split(learner_cores=8), 0.020, "serial"),
        (((1, 1, 0.020), (2, 1, 0.005)), split(learner_cores=8), 0.0025, "serial"),
        # Where only one was measured more are no faster.
        (((1, 1, 0.020),), split(learner_cores=4), 0.020, "the only number measured"),
        # A divided batch leaves what every update costs however small it is, 0.25 + 0.75 / L.
        (((1, 1, 0.020), (1, 2, 0.0125), (1, 4, 0.00875)), split(2), 0.0125, None),
        (((1, 1, 0.020), (1, 2, 0.0125), (1, 4, 0.00875)), split(8), 0.006875, "25% of the time"),
        (((1, 1, 0.020), (1, 2, 0.0125), (1, 4, 0.00875)), split(8192), 0.005, "25% of the time"),
    ],
)
def test_updates_of_more_cores_and_smaller_shares_follow_a_law_of_what_was_measured(
    updates: tuple[tuple[int, int, float], ...], of: Split, update_s: float, said: str | None
) -> None:
    table = measured(cores=5, learners=learners_of(*updates))
    costs = MeasuredCosts(table, Cluster(cores_per_node=10_000)).at(replace(of, actors=8))
    assert costs.learner.update.alone_s == pytest.approx(update_s, rel=1e-2 if of.learners > 8 else 1e-9)
    assert costs.learner.update.contended_s == pytest.approx(1.1 * costs.learner.update.alone_s)
    of_learners = [words for words in costs.extrapolated if words.startswith(LAWS)]
    assert [said in words for words in of_learners] == ([True] if said else [])


def test_a_divided_batch_is_drawn_and_its_fragments_are_stored_as_a_whole() -> None:
    figures = (
        *learners_of((1, 1, 0.020)),
        a_learner(0.0125, share=2).model_copy(update={"draw_s": once(9.0)}),
    )
    costs = MeasuredCosts(measured(learners=figures), Cluster(cores_per_node=4)).at(split(learners=2))
    assert close(costs.buffer.draw, 0.001, 0.0015)


def test_changes_that_were_measured_one_at_a_time_are_multiplied_and_it_is_said() -> None:
    figures = (
        *learners_of((1, 1, 0.020), (1, 2, 0.010)),
        a_learner(0.015, cores=2),
        a_learner(0.018, cores=2, crowded=True),
    )
    many_envs = tuple(
        a_learner(seconds, num_envs=4 * N, crowded=crowded)
        for seconds, crowded in ((0.024, False), (0.03, True))
    )
    actors = (*measured().actors, an_actor(1, False, 0.3, num_envs=4 * N))
    table = measured(cores=4, learners=(*figures, *many_envs), actors=actors)
    costs = MeasuredCosts(table, Cluster(cores_per_node=4))
    both = costs.at(split(learners=2, learner_cores=2))
    assert both.learner.update.alone_s == pytest.approx(0.020 * 0.75 * 0.5)
    assert any("multiplied" in words for words in both.extrapolated)
    other = costs.at(split(learner_cores=2, num_envs=4 * N, actors=2))
    assert close(other.learner.update, 0.024 * 0.75, 0.024 * 0.75 * 1.2)
    # Crowded, updates took 1.1 times as long with one number of environments and 1.25 with the other.
    assert close(costs.at(split(num_envs=4 * N, actors=3)).learner.update, 0.024, 0.024 * 1.175)


def test_the_crowding_of_an_update_is_that_of_the_most_cores_for_which_it_was_measured() -> None:
    figures = (
        a_learner(0.020),
        a_learner(0.022, crowded=True),
        a_learner(0.010, cores=2),
        a_learner(0.015, cores=2, crowded=True),
        a_learner(0.008, cores=4),  # All cores of the machine: no actor beside it.
    )
    costs = MeasuredCosts(measured(cores=4, learners=figures), Cluster(cores_per_node=40))
    of_four = costs.at(split(learner_cores=4, actors=36))
    assert close(of_four.learner.update, 0.008, 0.012)
    assert close(of_four.buffer.draw, 0.001, 0.0015)


# --- between learners, groups and nodes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("averaging", "cluster", "of", "expected_s", "said"),
    [
        # 2 (L - 1) steps of 1 ms, and 2 (L - 1) / L times 4 ms: 6, 12; 14 + 7 for eight.
        (((2, 0.006), (4, 0.012)), Cluster(40), split(2), 0.006, None),
        (((2, 0.006), (4, 0.012)), Cluster(40), split(8), 0.014 + 7 / 4 * 0.004, "from 2, 4 measured"),
        # What was measured needs no ring.
        (((2, 0.006), (4, 0.013), (8, 0.020)), Cluster(40), split(4), 0.013, None),
        # Faster than its messages, it leaves nothing for the steps.
        (((2, 0.0001),), Cluster(40), split(4), 1.5 * 0.0001, "from 2 measured"),
        # 10,000 bytes at 20 ns each are 0.2 ms, which two learners need once; 2 steps have the rest.
        (((2, 0.0012),), Cluster(40), split(4), 6 * 0.0005 + 1.5 * 0.0002, "from 2 measured"),
        ((), Cluster(40), split(4), 6 * 30e-6 + 1.5 * 0.0002, "from none measured"),
        # On several nodes 3/2 times 10,000 bytes go over the link.
        (((2, 0.006), (4, 0.012)), Cluster(8, 2, link_bytes_per_s=1e6), split(4, 2), 0.012, None),
        (((2, 0.006), (4, 0.012)), Cluster(4, 2, link_bytes_per_s=1e6), split(4, 2), 0.012 + 0.015, None),
    ],
)
def test_averaging_gradients_costs_what_was_measured_and_beyond_that_a_ring(
    averaging: tuple[tuple[int, float], ...],
    cluster: Cluster,
    of: Split,
    expected_s: float,
    said: str | None,
) -> None:
    figures = tuple(AveragingFigures(learners=number, seconds=once(value)) for number, value in averaging)
    costs = MeasuredCosts(measured(averaging=figures), cluster).at(of)
    assert costs.exchange.gradients_s == pytest.approx(expected_s)
    of_averaging = [words for words in costs.extrapolated if "averaging" in words]
    assert [said in words for words in of_averaging] == ([True] if said else [])


@pytest.mark.parametrize(
    ("averaging", "cluster", "root_s", "group_s"),
    [
        # 10,000 bytes: 110 us to send, 120 to receive; the group's own part is as much.
        (GroupAveraging(7, waits=True), Cluster(40), 230e-6, 460e-6),
        # A group that waits for no average pays for its own part alone.
        (GroupAveraging(7), Cluster(40), 230e-6, 230e-6),
        # With the moments of the optimiser 30,000 bytes: 310 us to send, 320 to receive.
        (GroupAveraging(7, values=3), Cluster(40), 630e-6, 630e-6),
        # On several nodes they go over the link and back.
        (GroupAveraging(7), Cluster(40, 4, link_bytes_per_s=1e6), 230e-6 + 0.020, None),
    ],
)
def test_the_root_receives_and_sends_the_parameters_of_each_group(
    averaging: GroupAveraging, cluster: Cluster, root_s: float, group_s: float | None
) -> None:
    costs = MeasuredCosts(measured(), cluster, averaging=averaging).at(split(groups=4))
    exchange = costs.exchange
    assert exchange.root_s == pytest.approx(root_s)
    assert group_s is None or exchange.group_s == pytest.approx(group_s)
    assert (exchange.sync_interval, exchange.waits) == (7, averaging.waits)
    assert any("4 groups" in words for words in costs.extrapolated)


@pytest.mark.parametrize(
    ("nodes", "groups", "learner_cores", "crossing"),
    [(1, 1, 1, 0.0), (2, 2, 1, 0.0), (2, 4, 1, 0.0), (2, 1, 1, 4 / 7), (4, 2, 2, 4 / 6), (2, 1, 4, 1.0)],
)
def test_fragments_cross_from_actors_that_are_not_on_their_learners_node(
    nodes: int, groups: int, learner_cores: int, crossing: float
) -> None:
    cluster = Cluster(cores_per_node=4, nodes=nodes, link_bytes_per_s=1e6)
    exchange = (
        MeasuredCosts(measured(), cluster).at(split(learner_cores=learner_cores, groups=groups)).exchange
    )
    assert exchange.crossing == pytest.approx(crossing)
    assert exchange.link_bytes_per_s == (1e6 if crossing else None)
    assert exchange.fragment_bytes == 1000


# 30 us and 10 ns a byte to send; 40 us and 20 ns to receive.
BETWEEN_NODES = (
    TransportFigures(engine="zmq", nbytes=1000, send_s=40e-6, receive_s=60e-6),
    TransportFigures(engine="zmq", nbytes=4000, send_s=70e-6, receive_s=120e-6),
)


def test_what_goes_between_nodes_costs_what_the_engine_there_does() -> None:
    table = measured(transport=(*measured().transport, *BETWEEN_NODES))

    def on(nodes: int, of: Split, cores: int = 4) -> Costs:
        return MeasuredCosts(table, Cluster(cores_per_node=cores, nodes=nodes)).at(of)

    assert on(1, split()) == MeasuredCosts(measured(), Cluster(cores_per_node=4)).at(split())
    both = on(2, split())  # 4 of 7 actors are elsewhere.
    assert both.actor.send_s == pytest.approx((3 * 20e-6 + 4 * 40e-6) / 7)
    assert both.buffer.receive_s == pytest.approx((3 * 30e-6 + 4 * 60e-6) / 7)
    assert any("cost what zmq costs here" in words for words in both.extrapolated)
    all_of_it = on(2, split(learner_cores=4))
    assert (all_of_it.actor.send_s, all_of_it.buffer.receive_s) == pytest.approx((40e-6, 60e-6))
    # A policy is sent once by each engine that has readers.
    for nodes, groups, sent_s in ((1, 1, 110e-6), (2, 2, 110e-6), (2, 1, 110e-6 + 130e-6)):
        publish = on(nodes, split(groups=groups)).learner.publish
        assert close(publish, 0.002 + sent_s, 0.003 + sent_s)
    # Parameters of groups go between nodes as fragments do.
    roots = [on(nodes, split(groups=2), cores=8).exchange.root_s for nodes in (1, 2)]
    assert roots == pytest.approx([230e-6, 130e-6 + 240e-6])


def test_fragments_that_cross_cost_no_more_where_the_engine_between_nodes_was_not_measured() -> None:
    costs = MeasuredCosts(measured(), Cluster(cores_per_node=4, nodes=2), remote="mpi").at(split())
    assert (costs.actor.send_s, costs.buffer.receive_s) == pytest.approx((20e-6, 30e-6))
    assert any("cost no more than inside" in words for words in costs.extrapolated)
    # Roles in one process send for nothing.
    costs = MeasuredCosts(measured(transport=()), Cluster(cores_per_node=2)).at(split())
    assert (costs.actor.send_s, costs.buffer.receive_s) == (0.0, 0.0)


def test_a_buffer_hands_each_learner_its_part_of_a_batch() -> None:
    table = measured(batch_bytes=6000)
    costs = MeasuredCosts(table, Cluster(cores_per_node=40), colocated=False)
    one = costs.at(split(buffer_cores=1))
    assert one.buffer.hand_over_s == pytest.approx(70e-6)
    assert one.learner.take_s == pytest.approx(80e-6)
    two = costs.at(split(learners=2, buffer_cores=1))
    assert two.buffer.hand_over_s == pytest.approx(2 * 40e-6)
    assert two.learner.take_s == pytest.approx(50e-6)
    # Beside a learner: 64 uses of an update, at 1000 bytes for 80 samples, are 800 bytes, 200 for each other.
    beside = MeasuredCosts(measured(), Cluster(cores_per_node=40)).at(split(learners=4))
    assert beside.buffer.hand_over_s == pytest.approx(3 * (10e-6 + 2e-6))
    assert beside.learner.take_s == 0.0


@pytest.mark.parametrize(
    ("cluster", "of", "said"),
    [
        (Cluster(3), split(actors=2), "3 cores of a node"),
        (Cluster(2, nodes=2), split(), "other nodes"),
        (Cluster(2), split(learners=3), "a batch divided among 3"),
        (Cluster(2), split(learners=3), "averaging over 3 learners"),
        (Cluster(2), split(groups=2), "averaging over 2 groups"),
        (Cluster(2), split(learner_cores=3), "a learner with 3 cores"),
    ],
)
def test_whatever_was_not_measured_is_named(cluster: Cluster, of: Split, said: str) -> None:
    words = MeasuredCosts(measured(), cluster).at(of).extrapolated
    assert any(said in one for one in words), words


@given(
    st.integers(1, 8),
    st.integers(1, 10_000),
    st.tuples(*[st.sampled_from((1, 2, 4, 8, 64))] * 3),
    st.integers(1, 10_000),
    st.floats(0.1, 3.0),
    st.floats(0.1, 3.0),
)
def test_no_split_costs_less_than_nothing(
    cores: int, node_cores: int, numbers: tuple[int, int, int], actors: int, of_cores: float, of_share: float
) -> None:
    figures = learners_of((1, 1, 0.02), (2, 1, 0.02 * of_cores), (1, 2, 0.02 * of_share))
    cluster = Cluster(node_cores, 4, link_bytes_per_s=1e9)
    learners, learner_cores, groups = numbers
    of = split(learners, learner_cores, actors, groups=groups)
    costs = MeasuredCosts(measured(cores=cores, learners=figures), cluster).at(of)
    buffer, exchange = costs.buffer, costs.exchange
    pieces = (costs.actor.sample, buffer.store, buffer.draw, costs.learner.update)
    seconds = [*(each for piece in pieces for each in astuple(piece)), buffer.hand_over_s]
    seconds += [exchange.gradients_s, exchange.group_s, exchange.root_s]
    assert all(0 <= each < math.inf for each in seconds)
    assert costs.learner.update.alone_s > 0


# --- fits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "fitted"),
    [
        ([(1.0, 5.0), (3.0, 1.0)], Line(3.0, 0.0)),
        ([(1.0, 1.0), (3.0, 5.0)], Line(0.0, 1.6)),
        ([(7.0, 2.0)], Line(2.0, 0.0)),
        ([], Line(0.0, 0.0)),
    ],
)
def test_a_line_of_times_neither_falls_nor_begins_below_zero(
    points: list[tuple[float, float]], fitted: Line
) -> None:
    assert line(points) == pytest.approx(fitted)


def test_the_lower_quartile_of_the_repeats_counts() -> None:
    ragged = Repeated(values=(0.1, 9.0, 0.2))
    actors = (
        an_actor(1, False, 0.1).model_copy(update={"fragment_s": ragged}),
        an_actor(1, False, 0.1, 4 * N),  # Two figures with one repeat outvote the other.
    )
    costs = MeasuredCosts(measured(actors=actors), Cluster(cores_per_node=2)).at(split())
    assert close(costs.actor.sample, 0.15, 0.15)


def test_what_most_figures_had_on_average_beyond_their_cost_is_expected_of_all() -> None:
    """Which of the repeats a neighbour hits is chance; a training goes through all of it."""

    def hit(repeated: Repeated) -> Repeated:
        (value,) = repeated.values
        return Repeated(values=(value, value, 2 * value, value))

    there = measured()
    actors = tuple(
        figures.model_copy(update={"fragment_s": hit(figures.fragment_s)}) if figures.crowded else figures
        for figures in there.actors
    )
    learners = tuple(
        figures.model_copy(update={"update_s": hit(figures.update_s)}) if figures.crowded else figures
        for figures in there.learners
    )
    hit_in_crowds = there.model_copy(update={"actors": actors, "learners": learners})
    before, after = (
        MeasuredCosts(of, Cluster(cores_per_node=2)).at(split()) for of in (there, hit_in_crowds)
    )
    assert after.actor.sample == Cost(before.actor.sample.alone_s, 1.25 * before.actor.sample.contended_s)
    assert after.learner.update == Cost(
        before.learner.update.alone_s, 1.25 * before.learner.update.contended_s
    )
    assert after.buffer.draw.contended_s == 1.25 * before.buffer.draw.contended_s, "a figure that was not hit"
