"""Runs whose roles of the user's own are connected with one another, by ``[graph]``."""

import signal
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS
from ports import free_address

ROLES = """
import time
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
        self.forward_rest("numbers")

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

class Slow(Taker):
    def turn(self):
        time.sleep(0.4)
        return super().turn()

class Halver(UserRole):
    held = False
    def change(self, fields):
        fields["reward"] *= 0.5
    def turn(self):
        if not self.held and self.probe("fragments") is None:
            return False
        self.held = not self.forward("fragments", self.change)
        return not self.held
    def stop(self):
        self.forward_rest("fragments", self.change)

class Same(Halver):
    def change(self, fields):
        pass

class Checker(Halver):
    highest = 0.0
    def change(self, fields):
        self.highest = max(self.highest, float(fields["reward"].max()))
    def report(self):
        return super().report() | {"highest": self.highest}

class Sieve(Halver):
    seen = 0
    def turn(self):
        if not self.held:
            if self.probe("fragments") is None:
                return False
            self.seen += 1
            if self.seen % 5 == 4:
                return True
        self.held = not self.forward("fragments")
        return not self.held

class Lost(UserRole):
    def turn(self):
        return self.probe("letters") is not None
"""
DQN: dict[str, Any] = {
    "agent": {"type": "dqn", "epsilon_steps": 2000},
    "model": {"type": "mlp_q", "hidden": [16]},
    "training": {"batch_size": 64, "replay_ratio": 2.0, "warmup_steps": 512, "publish_every": 8},
}
RECORDS = """
class Objects:
    @classmethod
    def fields(cls, spaces, config):
        return (FieldSpec("number", np.dtype(object)),)

class Twice:
    @classmethod
    def fields(cls, spaces, config):
        return (FieldSpec("number", np.dtype(np.int64)),) * 2

class Raising:
    @classmethod
    def fields(cls, spaces, config):
        raise KeyError("no such space")
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
    ["shm", "zmq", *(pytest.param(engine, marks=pytest.mark.soak) for engine in ("mpi", "ucx"))],
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


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("Objects", "'number' holds objects, which no other process can read"),
        ("Twice", "two fields are called 'number'"),
        ("Raising", "KeyError: 'no such space'"),
    ],
)
def test_a_record_that_cannot_be_laid_out_is_refused_before_there_is_a_run(
    workplace: Any, record: str, why: str
) -> None:
    (workplace.place / "graph_roles.py").write_text(ROLES + RECORDS)
    channel = {"graph": {"channels": {"numbers": {"record": f"graph_roles:{record}"}}}}
    command = workplace.command("train", str(workplace.config(GRAPH, channel)), "--out", "out")
    command.wait(2)
    assert f"the fields of record 'graph_roles:{record}' cannot be laid out" in command.stderr
    assert why in command.stderr
    assert not (workplace.place / "out").exists()


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


def between(*types: str) -> dict[str, Any]:
    """Roles between actors and the buffer, in this order."""
    names = [one.lower() for one in types]
    roles = {name: {"type": f"graph_roles:{one}"} for name, one in zip(names, types, strict=True)}
    return {"roles": roles, "graph": {"channels": {"fragments": {"path": ["actor", *names, "buffer"]}}}}


def check_account(summary: dict[str, Any]) -> None:
    terms = summary["received"] + summary["in_flight"] + summary["lost"] + summary["dropped"]
    assert summary["produced"] == terms
    assert summary["rejected_frames"] == 0


@pytest.mark.parametrize(
    ("transport", "learns"),
    [
        ("shm", {}),
        ("zmq", DQN | {"distribution": {"buffer": {"colocate": False}}}),
        *(pytest.param(engine, {}, marks=pytest.mark.soak) for engine in ("zmq", "mpi", "ucx")),
    ],
)
def test_fragments_pass_the_roles_of_their_path_and_the_learner_gets_what_these_made_of_them(
    workplace: Any, transport: str, learns: dict[str, Any]
) -> None:
    workplace.base = workplace.base | learns
    distribution = learns.get("distribution", {}) | {"transport": transport, "actor": {"num": 2}}
    summary = workplace.train(between("Halver", "Checker"), {"distribution": distribution}).finish()
    check_account(summary)
    assert summary["lost"] == 0
    halver, checker = summary["extra"].values()
    assert halver["channels"]["fragments"]["sent"] == checker["channels"]["fragments"]["received"] > 0
    assert checker["highest"] == 0.5, "CartPole's rewards are 1"


def test_two_roles_share_the_actors_and_one_that_is_killed_ends_the_run_with_an_exact_account(
    workplace: Any,
) -> None:
    shared = {"distribution": {"actor": {"num": 4}}, "roles": {"halver": {"num": 2}}}
    run = workplace.train(between("Halver"), ENDLESS, shared)
    run.train_until(3000)
    both = [said["channels"]["fragments"]["sent"] for said in run.rows[-1]["extra"].values()]
    assert len(both) == 2
    assert all(both)
    run.command.kill("halver 1")
    summary = run.finish(1)
    assert "halver 1 (group 0) was killed by SIGKILL" in summary["reason"]
    check_account(summary)


def test_a_receiver_that_takes_seconds_for_its_rest_gets_all_of_it(workplace: Any) -> None:
    run = workplace.train(GRAPH, ENDLESS, {"roles": {"taker": {"type": "graph_roles:Slow"}}})
    run.train_until(1000)
    run.command.signal_all(signal.SIGINT)
    check_all_came(run.finish(130))


def test_a_learner_that_is_killed_ends_a_run_whose_role_has_fragments_to_send_on(workplace: Any) -> None:
    run = workplace.train(between("Same"), ENDLESS, {"distribution": {"actor": {"num": 2}}})
    run.train_until(2000)
    run.command.kill("buffer and learner")
    summary = run.finish(1)
    assert "buffer and learner (group 0) was killed by SIGKILL" in summary["reason"]
    check_account(summary)


def test_each_group_has_a_path_of_its_own_and_a_resumed_run_goes_on_with_it(workplace: Any) -> None:
    run = workplace.train(between("Same"), {"distribution": {"groups": 2}})
    first = run.finish()
    goal = f"experiment.stop.env_steps={first['env_steps'] + 2048}"
    second = workplace.resume(run, "--set", goal).finish()
    for summary in (first, second):
        check_account(summary)
        assert summary["lost"] == 0
        assert all(said["channels"]["fragments"]["sent"] for said in summary["extra"].values())


def test_a_killed_actor_comes_again_to_the_role_behind_it(workplace: Any) -> None:
    run = workplace.train(between("Same"), ENDLESS, {"distribution": {"actor": {"num": 2}}})
    run.train_until(2000)
    run.command.kill("actor 1")
    workplace.until(lambda: "restarting it" in run.log, "it is started again")
    run.train_until(run.env_steps + 4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    check_account(summary)


def test_a_run_in_step_is_the_same_run_with_a_role_that_changes_nothing(workplace: Any) -> None:
    in_step = {"distribution": {"mode": "sync", "actor": {"num": 2}}}
    workplace.begins_cold = True  # Warm commands have one seed of hashes in common.
    alone, passed = workplace.train(in_step), None
    alone.finish()
    passed = workplace.train(in_step, between("Same"))
    check_account(passed.finish())
    place = "checkpoints/last/model.safetensors"
    assert (alone.path / place).read_bytes() == (passed.path / place).read_bytes()


def test_what_a_role_does_not_send_on_is_counted_as_lost(workplace: Any) -> None:
    run = workplace.train(between("Sieve"), ENDLESS)
    run.train_until(4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    check_account(summary)
    (said,) = summary["extra"].values()
    passed = said["channels"]["fragments"]
    assert passed["received"] > passed["sent"]
    assert summary["lost"] > 0


def test_a_dry_run_draws_roles_channels_and_slots(workplace: Any) -> None:
    slots = {
        "graph": {
            "slots": {"best": {"writer": "taker", "readers": ["maker"], "record": "graph_roles:Numbers"}}
        }
    }
    config = str(workplace.config(GRAPH, slots, {"roles": {"maker": {"num": 2}}}))
    workplace.command("train", config, "--dry-run", "--out", "graph.svg").wait(0)
    drawn = (workplace.place / "graph.svg").read_text()
    for name in ("maker (2)", "middle", "taker", "numbers", "best", "fragments", "policy", "one process"):
        assert f">{name}<" in drawn
    refused = workplace.command("train", config, "--dry-run", "--out", "no/graph.svg")
    refused.wait(2)
    assert "cannot write no/graph.svg: No such file or directory" in refused.stderr
