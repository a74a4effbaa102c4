"""Learners of one group on two hosts, between network namespaces."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from beds.namespaces import Wire
from beds.training import ENDLESS, Training, finished_summary, hosts_of

SPREAD = ("--set", "distribution.learner.num=2", "--set", 'distribution.learner.hosts=["*"]')
ZMQ = {"local": "shm", "remote": "zmq"}


@contextmanager
def spread(wire: Wire, place: Path, transport: str | dict[str, str], *options: str) -> Iterator[Training]:
    training = Training(wire, place, transport, *SPREAD, *options)
    try:
        yield training
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(training.root.pid, signal.SIGKILL)
        training.root.wait()


@pytest.mark.parametrize("transport", [ZMQ, "ucx"], ids=str)
def test_learners_on_two_hosts_update_alike(wire: Wire, tmp_path: Path, transport: str) -> None:
    """They compare parameters after each version, and would end the run if these differed."""
    with spread(wire, tmp_path, transport) as training:
        host = training.join()
        assert training.root.wait(120) == 0, training.log
        assert host.wait(60) == 0
        assert "over the network, unencrypted" in training.log
    summary = finished_summary(training.run)
    (learner, follower) = (
        next(role for role in summary["roles"] if role["role"] == name) for name in ("learner", "follower")
    )
    assert hosts_of(summary)[learner["rank"]] != hosts_of(summary)[follower["rank"]]
    assert summary["updates"] > 100
    assert wire.hosts[1].received_bytes > 1e6, "fragments and sums of gradients crossed the wire"


def test_a_host_with_a_learner_that_is_lost_ends_the_run_and_the_next_one_lets_it_go_on(
    wire: Wire, tmp_path: Path
) -> None:
    restarts = ("--set", "distribution.restart=true", "--set", "experiment.checkpoint_every_s=1")
    with spread(wire, tmp_path, ZMQ, *ENDLESS, *restarts) as training:
        host = training.join()
        training.until((training.run / "checkpoints/last").exists, "a checkpoint is there")
        os.killpg(host.pid, signal.SIGKILL)
        host.wait()
        training.until(lambda: "the run begins again" in training.log, "the run begins again")
        host = training.join()
        training.train_on()
        summary = training.finish()
        assert host.wait(60) == 0
    assert summary["session"]["number"] == 2


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_host_with_a_learner_that_is_cut_off_for_good_ends_the_run(wire: Wire, tmp_path: Path) -> None:
    """No connection of the learners says so: the one that waits for the other is ended by the root."""
    with spread(wire, tmp_path, ZMQ, *ENDLESS) as training:
        host = training.join()
        wire.set_link(up=False)
        assert training.root.wait(150) == 1, training.log
        assert "was lost with its host" in json.loads((training.run / "summary.json").read_text())["reason"]
        assert host.wait(150) == 1, "its root was gone"
        assert not wire.hosts[1].processes()
