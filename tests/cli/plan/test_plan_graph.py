"""Edges of a plan, as data: between roles, and then between ranks."""

from __future__ import annotations

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.plan.graph import ChannelSize, fragments_to
from tianji_cli.plan.plan import Host, Plan, make_plan

HERE = [Host("here")]


def edges(plan: Plan) -> set[tuple[str, str, str]]:
    return {(*roles, edge.name) for edge in plan.channels for roles in edge.roles}


def slots(plan: Plan) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {edge.name: (edge.writer, edge.readers) for edge in plan.slots}


def test_one_group_with_one_learner_has_one_channel_and_one_slot() -> None:
    plan = make_plan(load_config("configs/ppo_cartpole.toml"), HERE)
    assert edges(plan) == {("actor", "buffer", "fragments")}
    assert slots(plan) == {"policy": ("learner", ("actor",))}


def test_a_replay_in_a_process_of_its_own_talks_with_the_learner() -> None:
    plan = make_plan(load_config("configs/dqn_cartpole_apex.toml"), HERE)
    assert edges(plan) == {
        ("actor", "buffer", "fragments"),
        ("buffer", "learner", "batches"),
        ("buffer", "learner", "arrivals"),
        ("learner", "buffer", "priorities"),
    }


@pytest.mark.parametrize(("sampler", "answers"), [("uniform", False), ("prioritised", True)])
def test_followers_are_dealt_shares_and_answer_only_with_priorities(sampler: str, answers: bool) -> None:
    overrides = ["distribution.learner.num=2", f"distribution.buffer.sampler={sampler}"]
    plan = make_plan(load_config("configs/dqn_cartpole.toml", overrides), HERE)
    assert {("learner", "follower", "headers"), ("learner", "follower", "shards")} <= edges(plan)
    assert (("follower", "learner", "priorities") in edges(plan)) == answers


def test_the_root_takes_part_once_there_are_several_groups() -> None:
    plan = make_plan(load_config("configs/ppo_cartpole.toml", ["distribution.groups=2"]), HERE)
    assert ("learner", "root", "contributions") in edges(plan)
    assert slots(plan)["average"] == ("root", ("learner",))


APART = [
    "distribution.inference={num=2}",
    "distribution.actor.num=5",
    "distribution.groups=2",
    "training.rollout_steps=20480",
]


def test_inference_apart_alone_reads_policies_and_the_actors_ask_it() -> None:
    plan = make_plan(load_config("configs/ppo_cartpole.toml", APART), HERE)
    asked = {("actor", "inference", "requests"), ("inference", "actor", "answers")}
    assert edges(plan) >= asked | {("actor", "buffer", "fragments")}
    assert slots(plan)["policy"] == ("learner", ("inference",))


def test_two_actors_share_a_process_where_inference_is_apart() -> None:
    plan = make_plan(load_config("configs/ppo_cartpole.toml", APART), HERE)
    _, *first = (process.title for process in plan.trainers if process.group == 0)
    assert first == [
        "inference 0 (group 0)",
        "inference 1 (group 0)",
        "actors 0 and 1 (group 0)",
        "actors 2 and 3 (group 0)",
        "actor 4 (group 0)",
    ]
    assert plan.producers() == {4, 5, 6, 10, 11, 12}, "they are started again when they die"


def test_each_of_several_serves_its_share_and_outlives_it() -> None:
    plan = make_plan(load_config("configs/ppo_cartpole.toml", APART), HERE)
    sizes = {
        "fragments": ChannelSize(64, 2),
        "contributions": ChannelSize(64),
        "requests": ChannelSize(64, 1),
        "answers": ChannelSize(64, 2),
    }
    channels = plan.wiring("job", sizes, {"policy": 8, "average": 16}).channels
    asking = {c.receiver: (c.senders, c.window) for c in channels if c.name == "requests"}
    assert asking == {2: ((4,), 2), 3: ((5, 6), 2), 8: ((10,), 2), 9: ((11, 12), 2)}, (
        "a request for each actor"
    )
    assert {c.receiver for c in channels if c.name == "answers"} == {4, 5, 6, 10, 11, 12}
    outlived = plan.outlived()
    assert outlived[2] == {4, 5, 6}
    assert outlived[4] == set(), "answers hold no actor back"


def test_a_plan_becomes_a_wiring_of_ranks() -> None:
    overrides = [
        "distribution.groups=2",
        "distribution.learner.num=3",
        "distribution.actor.num=2",
        "training.rollout_steps=12288",
    ]
    job = load_config("configs/ppo_cartpole.toml", overrides)
    plan = make_plan(job, HERE)
    sizes = {name: ChannelSize(64, 3) for name in ("fragments", "headers", "shards", "contributions")}
    wiring = plan.wiring("job", sizes, {"policy": 8, "average": 16})
    assert {(c.name, c.senders, c.receiver) for c in wiring.channels} == {
        ("fragments", (4, 5), 1),
        ("fragments", (9, 10), 6),
        *(("headers", (1,), rank) for rank in (2, 3)),
        *(("headers", (6,), rank) for rank in (7, 8)),
        *(("shards", (1,), rank) for rank in (2, 3)),
        *(("shards", (6,), rank) for rank in (7, 8)),
        ("contributions", (1, 6), 0),
    }
    assert {(slot.name, slot.writer, slot.readers, slot.max_bytes) for slot in wiring.slots} == {
        ("policy-0", 1, (4, 5), 8),
        ("policy-1", 6, (9, 10), 8),
        ("average", 0, (1, 6), 16),
    }


def test_roles_that_share_a_process_share_its_window() -> None:
    job = load_config(
        "configs/ppo_cartpole.toml", ["distribution.transport=inproc", "distribution.actor.num=3"]
    )
    wiring = make_plan(job, HERE).wiring("job", {"fragments": ChannelSize(64, 2)}, {"policy": 8})
    assert wiring.channels[0].window == 6
    assert wiring.slots[0].readers == (1,)


def test_a_role_outlives_those_that_send_it_samples() -> None:
    plan = make_plan(load_config("configs/dqn_cartpole_apex.toml", ["distribution.actor.num=2"]), HERE)
    buffer, learner, *actors = (process.rank for process in plan.trainers)
    outlived = plan.outlived()
    assert outlived[buffer] == set(actors)
    assert outlived[learner] == {buffer}, "not of its own priorities"
    assert outlived[actors[0]] == set()


def test_copies_have_a_channel_for_each_role() -> None:
    assert fragments_to("recorder") == "fragments-recorder"
