import os
import socket
from collections.abc import Iterable
from typing import Any

import pytest

from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_algos.settings import NoSettings
from tianji_cli.config.schema import ChannelSection, Component, Graph, JobConfig, UserRoleSection
from tianji_cli.errors import UsageError
from tianji_cli.plan.graph import ChannelSize
from tianji_cli.plan.plan import Host, Plan, expected_hosts, make_plan, plan_for_ranks


def config(
    actors: int = 1, *, eval_episodes: int = 10, actor_cores: int = 1, learner_cores: int = 1, **more: Any
) -> JobConfig:
    return JobConfig(
        experiment={"name": "x", "stop": {"env_steps": 10}, "eval_episodes": eval_episodes},
        environment={"type": "gym", "id": "CartPole-v1"},
        agent=Component(type="ppo", settings=PPOAgentSettings()),
        model=Component(type="mlp_actor_critic", settings=MLPActorCriticSettings()),
        training=Component(type="ppo", settings=PPOSettings()),
        distribution={
            "actor": {"num": actors, "cores": actor_cores},
            "learner": {"cores": learner_cores},
            **more,
        },
    )


def here(cores: Iterable[int]) -> list[Host]:
    return [Host(socket.gethostname(), tuple(cores))]


def pins(plan: Plan) -> list[tuple[int, ...]]:
    return [process.cores for process in plan.processes]


def test_the_root_comes_first_then_the_learner_the_actors_and_the_evaluator() -> None:
    plan = make_plan(config(actors=2), here(range(4)))
    assert [process.rank for process in plan.processes] == list(range(5))
    assert [process.title for process in plan.processes] == [
        "root",
        "buffer and learner (group 0)",
        "actor 0 (group 0)",
        "actor 1 (group 0)",
        "evaluator",
    ]
    assert [process.actors for process in plan.processes] == [(), (), (0,), (1,), ()]
    assert {process.host for process in plan.processes} == {socket.gethostname()}
    assert plan.num_actors == 2
    assert [process.rank for process in plan.trainers] == [1, 2, 3]
    assert [process.rank for process in plan.carrying("actor")] == [2, 3]
    assert plan.transport == "shm"


@pytest.mark.parametrize(
    ("cores", "actors", "actor_cores", "learner_cores", "learner_pins", "actor_pins"),
    [
        # As many cores as roles: each has its own.
        (range(3), 2, 1, 1, (0,), [(1,), (2,)]),
        # Cores to spare stay free.
        (range(8), 2, 1, 1, (0,), [(1,), (2,)]),
        (range(8), 2, 2, 3, (0, 1, 2), [(3, 4), (5, 6)]),
        # More actors than cores: they go round what the learner leaves.
        (range(3), 4, 1, 1, (0,), [(1,), (2,), (1,), (2,)]),
        (range(2), 3, 1, 1, (0,), [(1,), (1,), (1,)]),
        (range(4), 2, 2, 1, (0,), [(1, 2), (1, 3)]),
        # An actor that wants more than is left gets all that is left.
        (range(3), 2, 5, 1, (0,), [(1, 2), (1, 2)]),
        # Too few to part learner and actors: the scheduler decides.
        (range(1), 2, 1, 1, (), [(), ()]),
        (range(2), 1, 1, 2, (), [()]),
        ([], 1, 1, 1, (), [()]),
        # The numbers are whatever the machine calls its cores.
        ([4, 6, 9], 2, 1, 1, (4,), [(6,), (9,)]),
    ],
)
def test_cores_are_placed(
    cores: list[int],
    actors: int,
    actor_cores: int,
    learner_cores: int,
    learner_pins: tuple[int, ...],
    actor_pins: list[tuple[int, ...]],
) -> None:
    job = config(actors, actor_cores=actor_cores, learner_cores=learner_cores)
    plan = make_plan(job, here(cores))
    assert pins(plan) == [(), learner_pins, *actor_pins, ()]
    threads = [process.threads for process in plan.processes]
    assert threads == [1, learner_cores, *[actor_cores] * actors, 1]


def test_nothing_is_pinned_if_nobody_wants_it() -> None:
    plan = make_plan(config(actors=2, pin_cores=False), here(range(8)))
    assert pins(plan) == [()] * 5


def test_the_cores_are_those_that_this_process_may_use() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert pins(make_plan(config())) == pins(make_plan(config(), here(allowed)))


def test_without_episodes_to_evaluate_there_is_no_evaluator() -> None:
    plan = make_plan(config(eval_episodes=0), here(range(4)))
    assert plan.carrying("evaluator") == ()
    assert [process.rank for process in plan.processes] == [0, 1, 2]


def test_inproc_puts_a_group_into_one_process_whose_senders_stop_first() -> None:
    plan = make_plan(config(actors=3, transport="inproc", learner_cores=2), here(range(8)))
    (group,) = plan.trainers
    assert group.roles == ("actor", "actor", "actor", "buffer", "learner")
    assert (group.rank, group.actors, group.cores, group.threads) == (1, (0, 1, 2), (0, 1), 2)
    assert group.title == "actor, buffer and learner (group 0)"
    assert [process.title for process in plan.processes] == ["root", group.title, "evaluator"]


def test_only_the_learner_computes_on_the_device() -> None:
    plan = make_plan(config(actors=1, device="cuda:1"), here(range(4)))
    assert [process.device for process in plan.processes] == ["cpu", "cuda:1", "cpu", "cpu"]


def test_a_plan_follows_from_the_config_alone() -> None:
    assert make_plan(config(actors=3), here(range(4))) == make_plan(config(actors=3), here(range(4)))


def on(*hosts: tuple[str, int]) -> list[Host]:
    return [Host(name, tuple(range(cores))) for name, cores in hosts]


def hosts(plan: Plan) -> list[str]:
    return [process.host for process in plan.processes]


def test_actors_go_where_cores_are_left_and_the_learner_stays_with_the_root() -> None:
    plan = make_plan(config(actors=4, hosts=2), on(("a", 2), ("b", 3)))
    assert hosts(plan) == ["a", "a", "a", "b", "b", "b", "a"]
    assert pins(plan) == [(), (0,), (1,), (0,), (1,), (2,), ()]


def test_the_only_actor_goes_to_the_emptier_host() -> None:
    assert hosts(make_plan(config(actors=1, hosts=2), on(("a", 2), ("b", 2))))[2] == "b"


def test_actors_are_spread_evenly_over_hosts_that_are_full() -> None:
    plan = make_plan(config(actors=4, hosts=2, learner_cores=4), on(("a", 2), ("b", 0)))
    assert hosts(plan)[2:6] == ["a", "a", "b", "b"]


def test_a_plan_over_hosts_names_the_engines_that_it_uses() -> None:
    job = config(actors=2, hosts=2, transport={"local": "shm", "remote": "zmq"})
    assert make_plan(job, on(("a", 2), ("b", 2))).transport == "shm+zmq"
    assert make_plan(job, on(("a", 2))).transport == "shm"


def test_ranks_that_run_already_stay_where_they_are() -> None:
    ranks = [host for host in on(("a", 4), ("b", 4)) for _ in range(3)][:5]
    plan = plan_for_ranks(config(actors=2), ranks)
    assert hosts(plan) == ["a", "a", "a", "b", "b"]
    assert plan.processes[3].cores == (0,), "the first actor of a host has its first core"


def test_a_buffer_that_is_not_colocated_has_the_rank_before_its_learner() -> None:
    plan = make_plan(config(actors=2, buffer={"colocate": False}, device="cuda:1"), here(range(4)))
    assert [process.title for process in plan.processes] == [
        "root",
        "buffer (group 0)",
        "learner (group 0)",
        "actor 0 (group 0)",
        "actor 1 (group 0)",
        "evaluator",
    ]
    assert [process.rank for process in plan.processes] == list(range(6))
    assert [process.device for process in plan.processes] == ["cpu", "cpu", "cuda:1", "cpu", "cpu", "cpu"]
    assert plan.processes[1].host == plan.processes[2].host


@pytest.mark.parametrize(
    ("cores", "buffer_cores", "learner_cores", "buffer_pins", "learner_pins", "actor_pins"),
    [
        # The learner has the first cores, then the buffer, and the actors what is left.
        (range(4), 1, 1, (1,), (0,), [(2,), (3,)]),
        (range(8), 2, 3, (3, 4), (0, 1, 2), [(5,), (6,)]),
        (range(3), 1, 1, (1,), (0,), [(2,), (2,)]),
        # With no core left for actors, the buffer shares theirs.
        (range(2), 1, 1, (1,), (0,), [(1,), (1,)]),
        (range(3), 2, 1, (1, 2), (0,), [(1,), (2,)]),
        (range(1), 1, 1, (), (), [(), ()]),
    ],
)
def test_a_buffer_of_its_own_is_placed_after_the_learner(
    cores: range,
    buffer_cores: int,
    learner_cores: int,
    buffer_pins: tuple[int, ...],
    learner_pins: tuple[int, ...],
    actor_pins: list[tuple[int, ...]],
) -> None:
    buffer = {"colocate": False, "cores": buffer_cores}
    plan = make_plan(config(actors=2, learner_cores=learner_cores, buffer=buffer), here(cores))
    assert pins(plan) == [(), buffer_pins, learner_pins, *actor_pins, ()]
    assert [process.threads for process in plan.processes] == [1, buffer_cores, learner_cores, 1, 1, 1]


def test_several_buffers_have_the_ranks_before_their_learner_and_cores_of_their_own() -> None:
    buffer = {"colocate": False, "num": 2}
    plan = make_plan(config(actors=3, buffer=buffer), here(range(8)))
    assert [process.title for process in plan.processes[1:5]] == [
        "buffer 0 (group 0)",
        "buffer 1 (group 0)",
        "learner (group 0)",
        "actor 0 (group 0)",
    ]
    assert pins(plan)[1:7] == [(1,), (2,), (0,), (3,), (4,), (5,)]


def test_buffers_are_spread_over_the_hosts_of_their_group_and_leave_actors_the_rest() -> None:
    buffer = {"colocate": False, "num": 2}
    plan = make_plan(config(actors=4, hosts=2, buffer=buffer), on(("a", 4), ("b", 3)))
    assert hosts(plan) == ["a", "a", "b", "a", "a", "a", "b", "b", "a"]
    assert pins(plan) == [(), (1,), (0,), (0,), (2,), (3,), (1,), (2,), ()]
    assert [plan.upstream(rank) for rank in (1, 2, 4)] == [{4, 5}, {6, 7}, set()]


def test_several_processes_of_a_user_role_are_spread_over_the_hosts_beside_their_actors() -> None:
    roles = {"relabel": UserRoleSection(type="some:Role", settings=NoSettings(), num=2)}
    fragments = ChannelSection(path=["actor", "relabel", "buffer"])
    graph = {"roles": roles, "graph": Graph(channels={"fragments": fragments})}
    plan = make_plan(config(actors=4, hosts=2).model_copy(update=graph), on(("a", 3), ("b", 2)))
    first, second = plan.carrying("relabel")
    assert (first.host, second.host) == ("a", "b")
    for process in (first, second):
        assert {plan.processes[rank].host for rank in plan.upstream(process.rank)} == {process.host}


def test_actors_have_the_first_pages_and_each_role_of_the_path_one_for_each_maker_before_it() -> None:
    names = ("relabel", "filter", "demo")
    roles = {name: UserRoleSection(type="some:Role", settings=NoSettings(), num=2) for name in names}
    roles["filter"] = roles["filter"].model_copy(update={"num": 1})
    fragments = ChannelSection(path=[("actor", "demo"), "relabel", "filter", "buffer"])
    graph = {"roles": roles, "graph": Graph(channels={"fragments": fragments})}
    plan = make_plan(config(actors=2).model_copy(update=graph), here(range(4)))
    (first, second), (sieve,) = plan.carrying("relabel"), plan.carrying("filter")
    actors, sources = (0, 1), [plan.source_number(process.rank) for process in plan.carrying("demo")]
    assert [plan.pages[process.rank, *process.actors] for process in plan.carrying("actor")] == [0, 1]
    assert sorted(plan.pages.values()) == list(range(len(plan.pages)))
    for process, number in zip(plan.carrying("demo"), sources, strict=True):
        assert plan.pages_of(process.rank) == (plan.pages[process.rank, number],)
    of_each = {
        process.rank: {number for rank, number in plan.pages if rank == process.rank}
        for process in (first, second, sieve)
    }
    assert of_each[sieve.rank] == {*actors, *sources}
    assert of_each[first.rank] | of_each[second.rank] == {*actors, *sources}
    assert not of_each[first.rank] & of_each[second.rank]


def test_each_actor_sends_to_one_of_several_buffers_and_the_learner_hears_of_all() -> None:
    plan = make_plan(config(actors=3, buffer={"colocate": False, "num": 2}), here(range(8)))
    sizes = dict.fromkeys(("fragments", "batches", "arrivals", "priorities"), ChannelSize(64))
    channels = plan.wiring("job", sizes, {"policy": 8}).channels
    fragments = {one.receiver: one.senders for one in channels if one.name == "fragments"}
    assert fragments == {1: (4,), 2: (5, 6)}
    assert [(one.receiver, one.senders) for one in channels if one.name == "batches"] == [(3, (1, 2))]
    assert plan.fragment_holders() == {1, 2}


def test_inproc_has_no_process_of_its_own_for_a_buffer() -> None:
    plan = make_plan(config(transport="inproc", buffer={"colocate": False}), here(range(4)))
    assert [process.roles for process in plan.trainers] == [("actor", "buffer", "learner")]


def test_actors_leave_room_for_a_buffer_on_its_host() -> None:
    plan = make_plan(config(actors=3, hosts=2, buffer={"colocate": False}), on(("a", 3), ("b", 2)))
    assert hosts(plan) == ["a", "a", "a", "a", "b", "b", "a"]


def test_followers_come_after_their_learner_and_have_cores_like_it() -> None:
    job = config(actors=2, groups=2, learner={"num": 3, "cores": 2})
    plan = make_plan(job, here(range(16)))
    assert [process.title for process in plan.processes[1:7]] == [
        "buffer and learner (group 0)",
        "follower 1 (group 0)",
        "follower 2 (group 0)",
        "actor 0 (group 0)",
        "actor 1 (group 0)",
        "buffer and learner (group 1)",
    ]
    assert pins(plan)[1:4] == [(0, 1), (2, 3), (4, 5)]
    assert pins(plan)[6:9] == [(6, 7), (8, 9), (10, 11)]
    assert pins(plan)[4:6] == [(12,), (13,)]
    assert plan.groups == (0, 1)
    assert [process.number for process in plan.carrying("follower")] == [1, 2, 1, 2]


def test_learners_of_a_group_have_a_gpu_each_if_none_is_named() -> None:
    devices = {
        device: [
            process.device
            for process in make_plan(config(device=device, learner={"num": 2}), here(range(4))).trainers
        ]
        for device in ("cuda", "cuda:1", "cpu")
    }
    assert devices == {
        "cuda": ["cuda:0", "cuda:1", "cpu"],
        "cuda:1": ["cuda:1", "cuda:1", "cpu"],
        "cpu": ["cpu", "cpu", "cpu"],
    }


def test_actors_and_the_evaluator_compute_where_the_config_says_and_go_round_the_gpus_of_their_host() -> None:
    on_gpus = {"actor": {"num": 2, "device": "cuda"}, "groups": 2, "pin_cores": False}
    on_one = make_plan(config(**on_gpus), [Host("a")])
    assert [process.device for process in on_one.carrying("actor")] == [f"cuda:{n}" for n in range(4)]
    assert {process.device for process in on_one.carrying("learner")} == {"cpu"}
    assert on_one.processes[-1].device == "cuda"
    on_two = make_plan(config(**on_gpus), [Host("a"), Host("b")])
    assert [process.device for process in on_two.carrying("actor")] == ["cuda:0", "cuda:1"] * 2
    named = make_plan(config(device="cuda", actor={"num": 2, "device": "cuda:1"}), [Host("a")])
    assert [process.device for process in named.processes] == ["cpu", "cuda", "cuda:1", "cuda:1", "cuda:1"]
    alone = make_plan(config(actor={"device": "cuda"}), [Host("a")])
    assert alone.carrying("actor")[0].device == "cuda"


def test_the_root_has_an_endpoint_once_there_are_several_groups() -> None:
    assert 0 not in make_plan(config()).endpoints
    plan = make_plan(config(groups=2), [Host("a", (0, 1)), Host("b", (0, 1))])
    assert plan.endpoints == {0: "a", 1: "a", 2: "a", 3: "b", 4: "b"}
    assert plan.transport == "shm", "it has one engine for both kinds of edges"
    several = config(groups=2, transport={"local": "shm", "remote": "zmq"})
    assert make_plan(several, [Host("a"), Host("b")]).transport == "shm+zmq"


def test_the_learners_of_all_groups_on_a_host_have_a_gpu_each() -> None:
    job = config(device="cuda", groups=4, pin_cores=False)
    on_one = make_plan(job, [Host("a")])
    assert [process.device for process in on_one.carrying("learner")] == [f"cuda:{n}" for n in range(4)]
    on_two = make_plan(job, [Host("a"), Host("b")])
    assert [process.device for process in on_two.carrying("learner")] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cuda:1",
    ]
    assert make_plan(config(device="cuda"), [Host("a")]).carrying("learner")[0].device == "cuda"


def test_ranks_may_part_the_learners_of_a_group() -> None:
    job = config(learner={"num": 2}, eval_episodes=0)
    here, there = Host("a"), Host("b")
    assert plan_for_ranks(job, [here, here, there, there]).carrying("follower")[0].host == "b"


def places(plan: Plan, role: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(process.host, process.cores) for process in plan.carrying(role)]


THREE = on(("a", 4), ("b1", 4), ("b2", 4))


@pytest.mark.parametrize("names", [["b*"], ["b1", "host-2"], ["host-[12]"]])
def test_actors_go_to_the_hosts_that_are_named_by_themselves_or_by_their_seats(names: list[str]) -> None:
    plan = make_plan(config(actor={"num": 4, "hosts": names}, hosts=3), THREE)
    assert [host for host, _ in places(plan, "actor")] == ["b1", "b1", "b2", "b2"]
    assert plan.carrying("learner")[0].host == "a"


def test_learners_stay_on_one_host_unless_the_config_names_several() -> None:
    assert hosts(make_plan(config(hosts=3, learner={"num": 3}), THREE))[:4] == ["a"] * 4
    plan = make_plan(config(hosts=3, learner={"num": 3, "hosts": ["*"]}), THREE)
    assert [plan.carrying("learner")[0].host, *(host for host, _ in places(plan, "follower"))] == [
        *("a", "b1", "b2")
    ]


def test_groups_take_turns_over_the_names_of_hosts() -> None:
    job = config(actors=2, hosts=3, groups=3, group_hosts=["b*", "a"])
    plan = make_plan(job, THREE)
    assert [plan.carrying("learner", group)[0].host for group in range(3)] == ["b1", "a", "b2"]
    assert {process.host for process in plan.carrying("actor", 0)} == {"b1", "b2"}
    # The hosts of a role need not be among those of its group.
    learners = config(hosts=3, groups=2, group_hosts=["b1", "b2"], learner={"hosts": ["a", "b2"]})
    assert [process.host for process in make_plan(learners, THREE).carrying("learner")] == ["a", "b2"]


def test_a_name_that_no_host_has_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(
        UsageError, match=r"^distribution\.actor\.hosts: c\* is none of 3 hosts \(a = host-0, b1"
    ):
        make_plan(config(hosts=3, actor={"hosts": ["b1", "c*"]}), THREE)
    with pytest.raises(UsageError, match=r"^distribution\.group_hosts: c is none of "):
        make_plan(config(hosts=3, group_hosts=["c"]), THREE)


def test_hosts_that_are_named_and_not_there_are_planned_as_those_that_will_join() -> None:
    job = config(actors=3, hosts=3, actor={"num": 3, "hosts": ["b*", "a", "c"]})
    expected = expected_hosts(job, on(("a", 4)))
    assert [host.name for host in expected] == ["a", "c", "b*"], "whole names first"
    assert [host for host, _ in places(make_plan(job, expected), "actor")] == ["a", "c", "b*"]


def test_only_hosts_that_are_there_from_the_start_learn() -> None:
    seats = {"min": 2, "max": 3}
    plan = make_plan(config(actors=3, hosts=seats, learner={"num": 2, "hosts": ["*"]}), THREE)
    assert hosts(plan)[1:3] == ["a", "b1"]
    for late in ({"learner": {"hosts": ["b2"]}}, {"group_hosts": ["b2"]}):
        with pytest.raises(UsageError, match="puts learner on hosts that may not come"):
            make_plan(config(actors=3, hosts=seats, **late), THREE)


def test_named_cores_are_shared_out_on_each_host_and_others_are_left_to_other_roles() -> None:
    job = config(learner={"cores": "4-7"}, actor={"num": 3, "cores": "1-3,8-10"})
    plan = make_plan(job, on(("a", 12)))
    assert places(plan, "learner") == [("a", (4, 5, 6, 7))]
    assert places(plan, "actor") == [("a", (1, 2)), ("a", (3, 8)), ("a", (9, 10))]
    assert [process.threads for process in plan.processes] == [1, 4, 2, 2, 2, 1]
    # More processes than cores: each has one, in turn. A role without names has what is left.
    plan = make_plan(config(actor={"num": 4, "cores": "0-1"}), on(("a", 4)))
    assert places(plan, "actor") == [("a", (0,)), ("a", (0,)), ("a", (1,)), ("a", (1,))]
    assert places(plan, "learner") == [("a", (2,))]


def test_cores_that_a_host_does_not_have_are_refused_with_those_that_it_has() -> None:
    job = config(actor={"cores": "2-9"})
    with pytest.raises(UsageError, match=r"^distribution\.actor\.cores names 6 cores that a does not have"):
        make_plan(job, on(("a", 4)))
    assert places(make_plan(job, [Host("a")]), "actor") == [("a", tuple(range(2, 10)))], "unknown cores"
    later = config(hosts=2, actor={"cores": "2-9", "hosts": ["b"]})
    plan = make_plan(later, expected_hosts(later, on(("a", 2))))
    assert places(plan, "actor") == [("b", tuple(range(2, 10)))], "a host that has not joined yet"


def test_names_of_hosts_are_no_names_of_seats() -> None:
    job = config(hosts=3, actor={"num": 2, "hosts": ["h*"]})
    plan = make_plan(job, on(("a", 4), ("h1", 4), ("h2", 4)))
    assert [host for host, _ in places(plan, "actor")] == ["h1", "h2"]


def test_of_names_that_overlap_the_whole_one_is_planned_as_a_host_and_numbers_go_on_behind() -> None:
    job = config(actors=3, hosts=4, learner={"hosts": ["gpu*"]}, buffer={"hosts": ["gpu1"]})
    assert [host.name for host in expected_hosts(job, on(("a", 4)))] == ["a", "gpu1", "host-2", "host-3"]
    varies = config(actors=3, hosts={"min": 2, "max": 3}, actor={"num": 3, "hosts": ["cpu1"]})
    assert [host.name for host in expected_hosts(varies, on(("a", 4)))] == ["a", "cpu1", "host-2"]


def test_cores_are_kept_for_a_role_only_where_it_is() -> None:
    job = config(hosts=2, actor={"num": 2, "hosts": ["b"], "cores": "0-3"}, learner={"cores": 4})
    plan = make_plan(job, on(("a", 8), ("b", 8)))
    assert places(plan, "learner") == [("a", (0, 1, 2, 3))]


def test_a_buffer_apart_is_where_its_learner_is() -> None:
    job = config(hosts=2, buffer={"colocate": False}, learner={"hosts": ["b"]})
    plan = make_plan(job, on(("a", 4), ("b", 4)))
    assert [host for host, _ in places(plan, "buffer")] == ["b"]


def test_groups_of_one_name_take_turns_over_its_hosts() -> None:
    plan = make_plan(config(actors=2, hosts=3, groups=2, group_hosts=["b*"]), THREE)
    assert [host for host, _ in places(plan, "learner")] == ["b1", "b2"]


def test_names_of_hosts_are_refused_where_a_launcher_places_the_ranks() -> None:
    with pytest.raises(UsageError, match=r"^distribution\.actor\.hosts: an MPI launcher places"):
        plan_for_ranks(config(actor={"hosts": ["a"]}, eval_episodes=0), [Host("a")] * 3)
