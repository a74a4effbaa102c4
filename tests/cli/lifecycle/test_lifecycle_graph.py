"""Runs whose roles of the user's own are connected with one another, by ``[graph]``."""

import signal
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS
from ports import free_address

ROLES = """
import numpy as np
from tianji_algos.fields import FieldSpec
from tianji_cli.roles.user_role import UserRole
from tianji_transports.core import FULL

class Numbers:
    @classmethod
    def fields(cls, spaces, config):
        whole, byte = np.dtype(np.int64), np.dtype(np.uint8)
        return FieldSpec("number", whole), FieldSpec("maker", whole), FieldSpec("filling", byte, (1000,))

class Maker(UserRole):
    made = 0
    def turn(self):
        numbers = self.loan("numbers")
        if numbers is FULL:
            return False
        numbers.fields["number"][...] = self.made
        numbers.fields["maker"][...] = self.context.number
        numbers.fields["filling"].fill(self.made % 256)
        self.push("numbers", numbers)
        self.made += 1
        return True

class Middle(UserRole):
    held = False
    def turn(self):
        if not self.held and self.probe("numbers") is None:
            return False
        self.held = not self.forward("numbers")
        return not self.held
    def stop(self):
        while self.held or self.probe("numbers") is not None:
            self.held = not self.forward("numbers")
            if self.held:
                self.context.transport.wait(0.1)

class Taker(UserRole):
    def __init__(self, context):
        super().__init__(context)
        self.next, self.senders, self.right = {}, set(), True
    def turn(self):
        numbers = self.probe("numbers")
        if numbers is None:
            return False
        number, maker = int(numbers.fields["number"]), int(numbers.fields["maker"])
        self.right &= number == self.next.get(maker, 0)
        self.right &= bool((numbers.fields["filling"] == number % 256).all())
        self.next[maker] = number + 1
        self.senders.add(numbers.sender)
        return True
    def stop(self):
        while self.turn():
            pass
    def report(self):
        return super().report() | {"right": self.right, "senders": len(self.senders)}

class Late(Taker):
    def turn(self):
        return (self.directory / "go").exists() and super().turn()

class Lost(UserRole):
    def turn(self):
        return self.probe("letters") is not None
"""
GRAPH: dict[str, Any] = {
    "roles": {
        "maker": {"type": "graph_roles:Maker"},
        "middle": {"type": "graph_roles:Middle"},
        "taker": {"type": "graph_roles:Taker"},
    },
    "graph": {
        "channels": {
            "numbers": {"path": ["maker", "middle", "taker"], "record": "graph_roles:Numbers", "window": 3}
        }
    },
}


@pytest.fixture(autouse=True)
def roles(workplace: Any) -> None:
    (workplace.place / "graph_roles.py").write_text(ROLES)


def counts(summary: dict[str, Any], role: str) -> list[dict[str, int]]:
    """Counts of the channel of numbers at all processes of a role."""
    return [
        said["channels"]["numbers"]
        for name, said in summary["extra"].items()
        if name.startswith(f"{role}-") and "channels" in said
    ]


def check_all_came(summary: dict[str, Any]) -> None:
    """Each record that a maker sent went through the middle to a taker, once and in order."""
    made = sum(one["sent"] for one in counts(summary, "maker"))
    through, taken = counts(summary, "middle"), counts(summary, "taker")
    assert made > 0
    assert sum(one["received"] for one in through) == made
    assert sum(one["sent"] for one in through) == made
    assert sum(one["received"] for one in taken) == made
    assert [one["lost"] for one in (*through, *taken)] == [0] * (len(through) + len(taken))
    assert all(said["right"] for name, said in summary["extra"].items() if name.startswith("taker-"))
    assert summary["rejected_frames"] == 0
    assert summary["lost"] == 0


@pytest.mark.parametrize(
    "transport",
    ["shm", "zmq", *(pytest.param(engine, marks=pytest.mark.soak) for engine in ("inproc", "mpi", "ucx"))],
)
def test_every_record_goes_the_whole_path_once_and_in_order(workplace: Any, transport: str) -> None:
    run = workplace.train(GRAPH, {"distribution": {"transport": transport}})
    summary = run.finish()
    assert summary["status"] == "finished"
    check_all_came(summary)


def test_several_senders_share_several_receivers_in_each_group(workplace: Any) -> None:
    several = {
        "distribution": {"groups": 2},
        "roles": {"maker": {"num": 3}, "middle": {"num": 2}},
        "graph": {"channels": {"numbers": {"route": "share"}}},
    }
    summary = workplace.train(GRAPH, several).finish()
    check_all_came(summary)
    made = [one["sent"] for one in counts(summary, "maker")]
    assert len(made) == 6
    assert all(made)
    assert len(counts(summary, "middle")) == 4
    senders = [said["senders"] for name, said in summary["extra"].items() if name.startswith("taker-")]
    assert senders == [2, 2]


def test_a_receiver_that_is_behind_holds_the_others_back_and_loses_nothing(workplace: Any) -> None:
    run = workplace.train(GRAPH, ENDLESS, {"roles": {"taker": {"type": "graph_roles:Late"}}})
    run.train_until(1000)
    rows = len(run.rows)
    workplace.until(lambda: len(run.rows) > rows + 5, "a second has passed")
    # Three in each window, and one that the middle holds.
    assert run.rows[-1]["extra"]["maker-2"]["channels"]["numbers"]["sent"] <= 7
    (run.path / "roles/taker-0").mkdir(parents=True, exist_ok=True)
    (run.path / "roles/taker-0/go").touch()
    more = lambda: run.rows[-1]["extra"]["maker-2"]["channels"]["numbers"]["sent"] > 100  # noqa: E731
    workplace.until(more, "the maker goes on")
    run.command.signal_all(signal.SIGINT)
    check_all_came(run.finish(130))


def test_a_role_that_is_killed_ends_the_run_and_is_named(workplace: Any) -> None:
    run = workplace.train(GRAPH, ENDLESS)
    run.train_until(1000)
    run.command.kill("middle")
    assert "middle (group 0) was killed by SIGKILL" in run.finish(1)["reason"]


def test_a_role_that_asks_for_a_channel_of_another_is_told_so(workplace: Any) -> None:
    run = workplace.train(GRAPH, ENDLESS, {"roles": {"taker": {"type": "graph_roles:Lost"}}})
    reason = run.finish(1)["reason"]
    assert "nothing in [graph] says that 'taker' receives the channel 'letters'" in reason


def test_a_host_that_joins_gets_the_records_module_too(workplace: Any) -> None:
    address = free_address()
    two = {"distribution": {"transport": "zmq", "hosts": 2, "groups": 2, "actor": {"num": 1}}}
    run = workplace.train(GRAPH, two, options=("--listen", address, "--quiet"))
    workplace.until((run.path / "job.key").exists, "the key is written")
    host = workplace.command("join", address, "--key", str(run.path / "job.key"))
    summary = run.finish()
    host.wait(0)
    check_all_came(summary)
    assert len(counts(summary, "taker")) == 2
