"""An actor that sends copies: all or nothing, in memory that it asked for before the fragment was begun."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root.accounting import reconcile
from tianji_cli.telemetry.snapshot import Account
from tianji_cli.worker.builder import Builder
from tianji_cli.worker.channels import wiring_of
from tianji_transports.composite import edge_capabilities
from tianji_transports.core import FULL
from tianji_transports.inproc import InprocTransport

OpenStage = Callable[..., Any]


def claimed(endpoint: InprocTransport, channel: str) -> bytes | None:
    claim = endpoint.probe(channel)
    if claim is None:
        return None
    data = bytes(claim.view())
    claim.release()
    return data


def test_every_receiver_gets_the_same_bytes_as_the_buffer(
    acting: OpenStage, work: Callable[..., bool]
) -> None:
    one = acting(steps=4, num_envs=2, copies=2)
    for _ in range(10):
        work(one.actor, 5)
        fragment = claimed(one.receiver, "fragments")
        assert fragment is not None
        assert [claimed(copyist, f"copies-{i}") for i, copyist in enumerate(one.copyists)] == [fragment] * 2


@pytest.mark.parametrize("slow", ["buffer", "copies-0", "copies-1"])
def test_whoever_is_behind_holds_the_actor_back_before_its_first_step(
    acting: OpenStage, work: Callable[..., bool], slow: str
) -> None:
    one = acting(steps=4, num_envs=2, window=2, copies=2)
    ends = {"buffer": (one.receiver, "fragments")}
    ends |= {f"copies-{i}": (copyist, f"copies-{i}") for i, copyist in enumerate(one.copyists)}
    others = [end for name, end in ends.items() if name != slow]
    for _ in range(40):
        work(one.actor)
        for end in others:
            claimed(*end)
    page = one.file.read(0)
    assert (page.pushed, page.produced, page.unfinished) == (2, 16, 0)
    assert all(claimed(*end) is None for end in others), "no other got more than the slow one"
    assert claimed(*ends[slow]) is not None
    work(one.actor, 20)
    assert one.file.read(0).pushed == 3
    assert all(claimed(*end) is not None for end in ends.values())


@pytest.mark.parametrize("slow", ["buffer", "copies-0"])
def test_an_actor_that_stops_while_it_waits_for_memory_gives_back_what_it_had(
    acting: OpenStage, work: Callable[..., bool], slow: str
) -> None:
    one = acting(steps=4, num_envs=2, window=1, copies=1)
    work(one.actor, 20)
    end = (one.receiver, "fragments") if slow == "copies-0" else (one.copyists[0], "copies-0")
    assert claimed(*end) is not None
    work(one.actor, 20)
    one.actor.stop()
    page = one.file.read(0)
    assert (page.pushed, page.dropped, page.unfinished) == (1, 0, 0)
    if slow == "copies-0":
        assert one.sender.loan(0, "fragments", 8) is not FULL
    else:
        assert one.sender.loan(2, "copies-0", 8) is not FULL


@pytest.mark.parametrize("turns", [1, 4], ids=["begun", "full and not pushed"])
def test_a_fragment_that_was_not_pushed_is_dropped_once_and_copied_to_nobody(
    acting: OpenStage, work: Callable[..., bool], turns: int
) -> None:
    one = acting(steps=4, num_envs=2, window=1, copies=2)
    work(one.actor, turns)
    one.actor.stop()
    page = one.file.read(0)
    assert reconcile({(0, 0): page}, {}, set()) == Account(page.produced, 0, 0, 0, dropped=page.produced)
    assert page.produced == page.dropped > 0
    for i, copyist in enumerate(one.copyists):
        assert claimed(copyist, f"copies-{i}") is None
        assert one.sender.loan(2 + i, f"copies-{i}", 8) is not FULL


def test_in_step_copies_change_nothing_of_what_an_actor_makes(
    stage: OpenStage, work: Callable[..., bool]
) -> None:
    alone = stage(steps=4, num_envs=2, per_version=2, window=2)
    copied = stage(steps=4, num_envs=2, per_version=2, window=2, copies=1)
    for version in range(4):
        made = []
        for one in (alone, copied):
            one.publish(version)
            work(one.actor, 20)
            made.append([one.receive() for _ in range(2)])
        while claimed(copied.copyists[0], "copies-0"):
            pass
        for first, second in zip(*made, strict=True):
            assert {name: array.tobytes() for name, array in first.fields.items()} == {
                name: array.tobytes() for name, array in second.fields.items()
            }
            assert first.header["sequence"] == second.header["sequence"]


def test_time_that_an_actor_waits_for_a_receiver_is_counted_as_that_receiver_s(
    acting: OpenStage, work: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(10_000))
    monkeypatch.setattr("tianji_cli.roles.actor.actor.time.monotonic", lambda: float(next(now)))
    one = acting(steps=4, num_envs=2, window=2, copies=2)
    for _ in range(40):
        work(one.actor)
        claimed(one.receiver, "fragments")
        claimed(one.copyists[0], "copies-0")
    waited_s = one.actor.report().waited_s
    assert list(waited_s) == ["role1"]
    assert waited_s["role1"] > 20.0
    claimed(one.copyists[1], "copies-1")
    work(one.actor, 4)
    assert list(one.actor.report().waited_s) == ["role1"]
    for _ in range(20):
        work(one.actor)
        claimed(one.receiver, "fragments")
        for i, copyist in enumerate(one.copyists):
            claimed(copyist, f"copies-{i}")
    settled = one.actor.report().waited_s["role1"]
    work(one.actor, 3)
    assert one.actor.report().waited_s["role1"] == settled, "none is behind any more"


def test_a_copy_is_claimed_alone_however_many_fragments_the_buffer_borrows(tmp_path: Path) -> None:
    roles = 'roles.tape={ type = "tianji_cli.roles.user_role:UserRole", receives = ["fragments"] }'
    config = load_config("configs/ppo_cartpole.toml", [roles])
    plan = make_plan(config, [Host("here", (0, 1))])
    builder = Builder(Job("copies", "", plan, tmp_path, tmp_path), config, plan.processes[1], 0)
    lends = edge_capabilities("shm", "zmq", plan.endpoints)
    channels = {channel.name: channel for channel in wiring_of(builder, lends).channels}
    assert channels["fragments"].borrow > 1
    assert channels["fragments-tape"].borrow == 1
    assert channels["fragments-tape"].window == channels["fragments"].window
