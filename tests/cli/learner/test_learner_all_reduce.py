"""Learners in processes of their own that add up over loopback."""

import os
import signal
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.learner.learner_crew import FORK, PATIENCE_S, received

from tianji_cli.roles.learner.parallel.all_reduce import (
    AllReduceGroup,
    DivergedLearnersError,
    LostPeerError,
    _Digest,
)
from tianji_cli.wire.address import LOOPBACK
from tianji_transports.zmq.door import borrowed, listening


def in_step(
    store: Path, number: int, act: Callable[[AllReduceGroup], Any], interface: str = LOOPBACK
) -> list[Any]:
    """Let so many learners act; gives the result of each, None of one that was killed."""
    place = FORK.Queue()

    def run(index: int, pipe: Any) -> None:
        all_reduce = AllReduceGroup(index, number, interface=interface, timeout_s=PATIENCE_S)
        if opened := all_reduce.open(store):
            for _ in range(number):
                place.put(opened)  # As the root passes it on.
        all_reduce.meet(place.get())
        pipe.send([act(all_reduce)])
        all_reduce.close()

    pipes = [FORK.Pipe() for _ in range(number)]
    learners = [FORK.Process(target=run, args=(index, theirs)) for index, (_, theirs) in enumerate(pipes)]
    for learner in learners:
        learner.start()
    for learner in learners:
        learner.join(PATIENCE_S)
        learner.kill()
    return [received(ours)[0] if ours.poll() else None for ours, _ in pipes]


def test_sums_have_the_same_bits_for_all_and_are_in_the_order_of_the_learners(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((3, 50_001)).astype(np.float32)

    def act(all_reduce: AllReduceGroup) -> Any:
        own = torch.from_numpy(values[all_reduce.index].copy())
        counts = torch.tensor([all_reduce.index + 1], dtype=torch.int64)
        for _ in range(3):
            own.copy_(torch.from_numpy(values[all_reduce.index]))
            all_reduce.add_up(own)
        all_reduce.add_up(counts)
        return own.numpy(), int(counts)

    results = in_step(tmp_path / "store", 3, act)
    for total, count in results:
        np.testing.assert_array_equal(total, values[0] + values[1] + values[2])
        assert count == 6
    assert list(tmp_path.iterdir()) == [], "what they met by is gone"


@pytest.mark.parametrize(("interface", "ports"), [(LOOPBACK, [1, 1]), ("127.0.0.2", [2, 1])])
def test_once_the_learners_have_met_nobody_else_gets_a_connection(
    tmp_path: Path, interface: str, ports: list[int]
) -> None:
    """On several hosts the first has a port, too, at which they have met."""
    of_others = listening()  # What this process has from other tests, or from its parent.

    def act(all_reduce: AllReduceGroup) -> tuple[int, float]:
        open_ports = []
        for descriptor in listening() - of_others:
            with borrowed(descriptor) as listener:
                open_ports.append(listener.getsockname()[1])
        for port in open_ports:
            with socket.socket() as stranger:
                stranger.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    stranger.connect((interface, port))
        total = torch.ones(1)
        all_reduce.add_up(total)
        return len(open_ports), float(total)

    assert in_step(tmp_path / "store", 2, act, interface) == [(number, 2.0) for number in ports]
    assert list(tmp_path.iterdir()) == []


def test_all_learners_get_the_tensors_of_the_first(tmp_path: Path) -> None:
    def act(all_reduce: AllReduceGroup) -> Any:
        tensors = [torch.full((4, 2), float(all_reduce.index + 1)), torch.full((3,), 10.0 + all_reduce.index)]
        all_reduce.broadcast(tensors)
        return [tensor.tolist() for tensor in tensors]

    results = in_step(tmp_path / "store", 3, act)
    assert results[0] == results[1] == results[2] == [[[1.0, 1.0]] * 4, [10.0] * 3]


def test_a_difference_in_one_bit_is_found_and_its_learner_named(tmp_path: Path) -> None:
    def act(all_reduce: AllReduceGroup) -> str:
        parameters = np.linspace(0, 1, 1001, dtype=np.float32)
        all_reduce.check_same(4, parameters)
        if all_reduce.index == 2:
            parameters.view(np.uint32)[777] ^= 1
        with pytest.raises(DivergedLearnersError) as raised:
            all_reduce.check_same(5, parameters)
        return str(raised.value)

    results = in_step(tmp_path / "store", 3, act)
    assert len(set(results)) == 1
    assert "after version 5 of the policy: learner 2 of 3 not those of learner 0" in results[0]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_digest_depends_on_every_value_and_its_place(size: int) -> None:
    digest, parameters = _Digest(), np.random.default_rng(2).standard_normal(size).astype(np.float32)
    found = {digest(parameters)}
    for place in range(size):
        changed = parameters.copy()
        changed.view(np.uint32)[place] ^= 1 << 30
        found.add(digest(changed))
    assert len(found) == size + 1
    if size > 2:
        assert digest(parameters[::-1].copy()) not in found


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_learner_is_missed_by_all_others(tmp_path: Path, victim: int) -> None:
    def act(all_reduce: AllReduceGroup) -> str:
        gradient = torch.ones(5000)
        all_reduce.add_up(gradient)
        if all_reduce.index == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(LostPeerError):
            all_reduce.add_up(gradient)
        assert all_reduce.lost is not None
        all_reduce.await_news()
        with pytest.raises(LostPeerError, match="has lost another"):
            all_reduce.add_up(gradient)
        return "missed"

    results = in_step(tmp_path / "store", 3, act)
    assert [results[index] for index in range(3) if index != victim] == ["missed"] * 2


@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_when_one_learner_leaves_all_others_hear_of_it_from_their_connections(
    tmp_path: Path, leaving: int
) -> None:
    all_have_heard = FORK.Barrier(3)

    def act(all_reduce: AllReduceGroup) -> str:
        connections = weakref.ref(all_reduce._group)
        all_reduce.add_up(torch.ones(5000))
        if all_reduce.index == leaving:
            all_reduce.close()
        with pytest.raises(LostPeerError) as kept:
            all_reduce.add_up(torch.ones(5000))
        assert connections() is None, f"closed, though {kept!r} is kept"
        all_have_heard.wait(10.0)  # No process ends before: that would close its connections, too.
        return "heard"

    assert in_step(tmp_path / "store", 3, act) == ["heard"] * 3


def test_learners_that_do_not_come_are_named_as_the_problem(tmp_path: Path) -> None:
    with pytest.raises(LostPeerError, match=r"the 2 learners of the group have not met within 0\.5 s"):
        AllReduceGroup(0, 2, timeout_s=0.5).meet(str(tmp_path / "store"))
