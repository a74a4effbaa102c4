"""Runs whose roles of the user's own are connected with one another, by ``[graph]``."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS
from ports import free_address
from safetensors.numpy import load_file

ROLES = """
import os
import signal
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

class Halver(UserRole):
    channel, held = "fragments", False
    def change(self, fields):
        fields["reward"] *= 0.5
    def turn(self):
        if not self.held and self.probe(self.channel) is None:
            return False
        self.held = not self.forward(self.channel, self.change)
        return not self.held
    def stop(self):
        self.forward_rest(self.channel, self.change)

class Middle(Halver):
    channel = "numbers"
    def change(self, fields):
        pass

class Grader(Halver):
    channel = "batches"
    def change(self, fields):
        fields["reward"] += 10

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

class Again(Halver):
    restartable = True
    seen = 0
    def change(self, fields):
        self.seen += 1
    def state(self):
        return {"seen": np.array(self.seen)}
    def load_state(self, state):
        self.seen = int(state["seen"])
    def report(self):
        return super().report() | {"seen": self.seen}

class Choosy(Again):
    def turn(self):
        if not self.held and self.probe("fragments") is not None:
            self.seen += 1
            if self.seen % 3 == 0:
                self.drop("third")
                return True
            self.held = True
        if not self.held:
            return False
        self.held = not self.forward("fragments")
        return not self.held

class Burst(Again):
    # Its first process drops ten fragments in one turn, which it never reports, and dies in it.
    def turn(self):
        if self.context.transport.incarnation or self.seen < 5:
            return super().turn()
        fragments = samples = 0
        while fragments < 10:
            fragment = self.probe("fragments")
            if fragment is None:
                self.context.transport.wait(0.1)
                continue
            samples += int(fragment.record.header["samples"])
            self.drop("burst")
            fragments += 1
        (self.directory / "dropped").write_text(str(samples))
        os.kill(os.getpid(), signal.SIGKILL)

class Untold(Choosy):
    def state(self):
        return {"seen": np.array("many")}

class Labeller(Halver):
    @classmethod
    def fields(cls, spaces, settings):
        return FieldSpec("label", np.dtype(np.float32)), FieldSpec("about", np.dtype(np.int64), (2,))
    def change(self, fields):
        fields["label"][...] = fields["reward"] * 3
        fields["about"][...] = 7

class Twice(Labeller):
    @classmethod
    def fields(cls, spaces, settings):
        return (FieldSpec("reward", np.dtype(np.float32)),)

class Reader(Halver):
    def change(self, fields):
        assert (fields["label"] == 3 * fields["reward"]).all() and (fields["about"] == 7).all()

class Source(UserRole):
    restartable = True
    made, lacks = 0, ()
    def turn(self):
        if self.made == 40:
            return False
        fragment = self.loan("fragments")
        if fragment is FULL:
            return False
        for name in fragment.fields:
            if name not in self.lacks:
                fragment.fields[name][...] = name == "mask"
        fragment.fields["episode_return"].fill(np.nan)
        self.push("fragments", fragment)
        self.made += 1
        return True

class Careless(Source):
    lacks = ("reward", "truncated")

class Worker(UserRole):
    ordered = False
    def __init__(self, context):
        super().__init__(context)
        self.numbers = []
    def turn(self):
        if self.context.number == 0:
            time.sleep(0.2)
        numbers = self.probe("numbers")
        if numbers is not None:
            self.numbers.append(int(numbers.fields["number"]))
        return numbers is not None
    def stop(self):
        while self.turn():
            pass
    def report(self):
        return super().report() | {"sum": sum(self.numbers), "rises": self.numbers == sorted(self.numbers)}

class MakerAgain(Maker):
    restartable = True

class TakerAgain(Taker):
    restartable = True
    def turn(self):
        return self.probe("numbers") is not None

class Lost(UserRole):
    def turn(self):
        return self.probe("letters") is not None
"""
EMBRYOS = """
from tianji_algos.dqn.dqn import DQNEmbryo
from tianji_algos.ppo.ppo import PPOEmbryo

class LearnsLabels(PPOEmbryo):
    def minibatches(self, fragments):
        for fields in fragments:
            assert (fields["label"] == 3 * fields["reward"]).all()
        return super().minibatches(fragments)

class Graded(DQNEmbryo):
    def update(self, batch):
        assert batch.reward.min() >= 11
        return super().update(batch)

class ReplaysLabels(DQNEmbryo):
    def update(self, batch):
        assert batch.fields["label"].min() == 3.0 and (batch.fields["about"] == 7).all()
        return super().update(batch)
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


def test_the_page_of_a_run_shows_its_graph(workplace: Any) -> None:
    run = workplace.train(GRAPH, {"experiment": {"plots": True}})
    run.finish()
    workplace.command("report", str(run.path), "--out", "page.html").wait(0)
    page = (workplace.place / "page.html").read_text()
    assert "Data flow" in page
    for name in ("maker", "middle", "taker", "numbers"):
        assert f">{name}<" in page


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


def test_one_role_of_the_job_takes_the_records_of_all_groups(workplace: Any) -> None:
    one = {"distribution": {"groups": 2}, "roles": {"taker": {"per": "job"}}}
    summary = workplace.train(GRAPH, one).finish()
    assert len(counts(summary, "maker")) == 2
    (taken,) = counts(summary, "taker")
    assert taken["received"] == sum(one["sent"] for one in counts(summary, "maker")) > 0
    assert taken["lost"] == 0
    (said,) = (said for name, said in summary["extra"].items() if name.startswith("taker-"))
    assert said["senders"] == 2


def test_a_role_of_the_job_goes_on_with_the_groups_that_are_left(workplace: Any) -> None:
    tables = {
        "distribution": {"groups": 2},
        "roles": {
            "maker": {"type": "graph_roles:Maker", "per": "job"},
            "taker": {"type": "graph_roles:Taker"},
        },
        "graph": {"channels": {"numbers": {"path": ["maker", "taker"], "record": "graph_roles:Numbers"}}},
    }
    run = workplace.train(tables, ENDLESS)
    run.train_until(2000)
    run.command.kill("buffer and learner (group 1)")
    workplace.until(lambda: "group 1 is lost" in run.log, "its group is lost")

    def sent() -> int:
        return sum(
            one["channels"]["numbers"]["sent"]
            for name, one in run.rows[-1]["extra"].items()
            if name.startswith("maker") and one.get("channels")
        )

    earlier = sent()
    workplace.until(lambda: sent() > earlier + 1000, "the other group is served")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    taken = [one for one in counts(summary, "taker") if one["received"] > 1000]
    assert taken
    assert all(one["lost"] == 0 for one in taken)


def test_each_record_goes_to_the_receiver_with_most_room(workplace: Any) -> None:
    numbers = {"path": ["maker", "worker"], "record": "graph_roles:Numbers", "route": "credit"}
    summary = workplace.train(
        {
            "roles": {
                "maker": {"type": "graph_roles:Maker"},
                "worker": {"type": "graph_roles:Worker", "num": 2},
            },
            "graph": {"channels": {"numbers": numbers}},
        }
    ).finish()
    (made,) = counts(summary, "maker")
    slow, fast = counts(summary, "worker")
    assert slow["received"] + fast["received"] == made["sent"] > 20
    assert fast["received"] > slow["received"] > 0
    assert slow["lost"] == fast["lost"] == 0
    said = [one for name, one in summary["extra"].items() if name.startswith("worker-")]
    assert sum(one["sum"] for one in said) == made["sent"] * (made["sent"] - 1) // 2, "each came once"
    assert all(one["rises"] for one in said)


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


@pytest.mark.parametrize("transport", ["shm", "zmq", pytest.param("ucx", marks=pytest.mark.soak)])
def test_a_role_that_is_killed_again_and_again_comes_again_and_every_sample_is_counted(
    workplace: Any, transport: str
) -> None:
    apart = {"distribution": {"transport": transport, "actor": {"num": 2}, "max_restarts_per_minute": 60}}
    run = workplace.train(between("Again", "Choosy", "Checker"), ENDLESS, apart)
    moments = random.Random(transport)
    for kills, title in enumerate(("again", "choosy", "actor 0", "choosy"), start=1):
        run.train_until(run.env_steps + moments.randrange(1000, 3000))
        run.command.kill(title)
        comes = lambda kills=kills: run.log.count("was killed by SIGKILL") == kills  # noqa: E731
        workplace.until(comes, "it is noticed")
    run.train_until(run.env_steps + 4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert run.log.count("restarting it") == 4
    check_account(summary)
    reasons = next(said for name, said in summary["extra"].items() if name.startswith("choosy"))
    dropped = reasons["channels"]["fragments"]["dropped"]
    assert dropped.keys() == {"third", "reason not reported"}
    assert summary["dropped"] - sum(dropped.values()) in range(2 * 16 * 8), "but for what actors gave up"


def has_seen(state: Path) -> bool:
    """Tell whether the saved state of an ``Again`` counts a fragment."""
    try:
        return int(load_file(state)["seen"]) > 0
    except FileNotFoundError:
        return False


def test_a_role_that_is_killed_goes_on_with_what_it_has_saved_as_a_resumed_run_does(workplace: Any) -> None:
    often = {"experiment": {"checkpoint_every_s": 0.5}}
    run = workplace.train(between("Again"), ENDLESS, often)
    place = run.path / "checkpoints/roles/again/last/state.safetensors"
    run.train_until(3000)
    workplace.until(lambda: has_seen(place), "a state is saved after the first fragment")
    run.command.kill("again")

    def goes_on() -> bool:
        reports = [report for row in run.rows[-1:] for report in (row.get("extra") or {}).values()]
        return any(one["seen"] > one["channels"]["fragments"]["sent"] for one in reports)

    workplace.until(goes_on, "the next one counts those of the first life too")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    check_account(summary)
    (first,) = summary["extra"].values()
    assert first["seen"] > first["channels"]["fragments"]["sent"], "it counts those of its first life too"
    goal = f"experiment.stop.env_steps={summary['env_steps'] + 2048}"
    (second,) = workplace.resume(run, "--set", goal).finish()["extra"].values()
    assert second["seen"] == first["seen"] + second["channels"]["fragments"]["sent"]
    on = "experiment.stop.env_steps=1000000"
    two = ("--set", "roles.again.num=2", "--set", "distribution.actor.num=2")
    more = workplace.resume(run, *two, "--set", on)
    more.command.wait(1)
    assert (
        "was saved by another number of processes than roles.again.num = 2" in more.log + more.command.stderr
    )
    place.write_bytes(b"x" * place.stat().st_size)
    refused = workplace.resume(run, "--set", on)
    refused.command.wait(1)
    assert "state.safetensors" in refused.command.stderr + refused.log


@pytest.mark.parametrize("killed", ["maker", "taker"])
def test_a_sender_or_receiver_of_records_comes_again_and_the_others_go_on(
    workplace: Any, killed: str
) -> None:
    types = {"maker": {"type": "graph_roles:MakerAgain"}, "taker": {"type": "graph_roles:TakerAgain"}}
    run = workplace.train(GRAPH, ENDLESS, {"roles": types})
    run.train_until(1000)
    run.command.kill(killed)
    workplace.until(lambda: "restarting it" in run.log, "it is started again")

    def sent() -> int:
        return run.rows[-1]["extra"]["maker-2"].get("channels", {}).get("numbers", {}).get("sent", 0)

    earlier = sent()
    workplace.until(lambda: 0 < sent() != earlier, "records go on")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert [one["lost"] for one in counts(summary, "taker")] == [0]
    assert summary["rejected_frames"] == 0


def test_what_a_role_leaves_out_for_a_reason_counts_as_dropped(workplace: Any) -> None:
    run = workplace.train(between("Choosy"), ENDLESS, {"distribution": {"actor": {"num": 2}}})
    run.train_until(4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    check_account(summary)
    (said,) = summary["extra"].values()
    dropped = said["channels"]["fragments"]["dropped"]["third"]
    assert dropped > 0
    assert summary["dropped"] - dropped in range(2 * 16 * 8), "but for what the actors gave up"
    assert summary["lost"] == 0


@pytest.mark.parametrize("transport", ["shm", pytest.param("ucx", marks=pytest.mark.soak)])
def test_what_a_role_dropped_just_before_it_was_killed_is_dropped_to_the_sample(
    workplace: Any, transport: str
) -> None:
    two = {"distribution": {"transport": transport, "actor": {"num": 2}}}
    run = workplace.train(between("Burst"), ENDLESS, two)
    workplace.until(lambda: "restarting it" in run.log, "it is started again")
    run.train_until(run.env_steps + 4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    check_account(summary)
    (said,) = summary["extra"].values()
    dropped = int((run.path / "roles/burst-0/dropped").read_text())
    assert said["channels"]["fragments"]["dropped"] == {"reason not reported": dropped}
    assert summary["dropped"] - dropped in range(2 * 16 * 8), "but for what the actors gave up"
    # Two of each actor in its window, and what the actors pushed before the role was there again.
    assert summary["lost"] <= 2 * 2 * 16 * 8


@pytest.mark.parametrize(("learns", "embryo"), [({}, "LearnsLabels"), (DQN, "ReplaysLabels")])
def test_the_fields_that_a_role_adds_come_to_those_behind_it_and_to_the_update_rule(
    workplace: Any, learns: dict[str, Any], embryo: str
) -> None:
    workplace.base = workplace.base | learns
    (workplace.place / "embryos.py").write_text(EMBRYOS)
    own = {"training": {"type": f"embryos:{embryo}"}}
    summary = workplace.train(between("Labeller", "Reader"), own).finish()
    check_account(summary)
    assert summary["updates"] > 0
    assert summary["lost"] == 0


def test_a_field_that_is_there_already_cannot_be_added(workplace: Any) -> None:
    command = workplace.command("train", str(workplace.config(between("Twice"))), "--out", "out")
    command.wait(2)
    assert "the fields that role 'twice' adds cannot be laid out" in command.stderr
    assert "distinct names" in command.stderr


@pytest.mark.parametrize(("transport", "waits"), [("shm", "async"), ("zmq", "sync")])
def test_a_role_may_change_batches_between_buffer_and_learner(
    workplace: Any, transport: str, waits: str
) -> None:
    workplace.base = workplace.base | DQN
    (workplace.place / "embryos.py").write_text(EMBRYOS)
    buffer = {"colocate": False, "sampler": "prioritised", "priority_updates": waits}
    own = {
        "roles": {"grader": {"type": "graph_roles:Grader"}},
        "graph": {"channels": {"batches": {"path": ["buffer", "grader", "learner"]}}},
        "distribution": {"transport": transport, "buffer": buffer},
        "training": {"type": "embryos:Graded"},
    }
    summary = workplace.train(own).finish()
    check_account(summary)
    (said,) = summary["extra"].values()
    passed = said["channels"]["batches"]
    assert passed["received"] == passed["sent"] >= summary["updates"] > 0


def with_source(type_: str = "Source") -> dict[str, Any]:
    """A source of fragments beside the actors, with a table for its samples."""
    return DQN | {
        "roles": {"source": {"type": f"graph_roles:{type_}"}},
        "graph": {"channels": {"fragments": {"path": [["actor", "source"], "buffer"]}}},
        "distribution": {"buffer": {"tables": {"source": {"share": 0.25}}}},
    }


def made_in(row: dict[str, Any]) -> int:
    """Samples that the source has made, by a row of the metrics."""
    return sum(said.get("channels", {}).get("fragments", {}).get("made", 0) for said in row["extra"].values())


@pytest.mark.parametrize(
    ("transport", "buffer"),
    [("shm", {"colocate": False, "sampler": "prioritised"}), ("zmq", {"sampler": "prioritised"})],
)
def test_half_of_each_batch_may_come_from_a_source_which_counts_nowhere_else(
    workplace: Any, transport: str, buffer: dict[str, Any]
) -> None:
    workplace.base = {name: part for name, part in workplace.base.items() if name not in DQN}
    config = {"distribution": {"transport": transport, "buffer": buffer, "actor": {"num": 2}}}
    run = workplace.train(with_source(), ENDLESS, config)
    run.train_until(2000)
    made_before = lambda: made_in(run.rows[-1])  # noqa: E731
    workplace.until(made_before, "it has made some")
    run.command.kill("source")
    workplace.until(lambda: "restarting it" in run.log, "it is started again")
    before = made_in(run.rows[-1])
    workplace.until(lambda: made_in(run.rows[-1]) > before, "its successor has made some")
    run.train_until(run.env_steps + 4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    check_account(summary)
    assert summary["updates"] > 0
    (said,) = summary["extra"].values()
    made = said["channels"]["fragments"]
    assert 0 < made["sent"] <= 40
    assert made["made"] > made["sent"] * 16 * 8, "with those of the process that was killed"
    assert made["made"] % (16 * 8) == 0
    assert summary["received"] == summary["env_steps"]
    assert [one["restarts"] for one in summary["roles"] if one["role"] == "source"] == [1]
    assert summary["replay_ratio"]["actual"] == pytest.approx(2.0, rel=0.1)
    uses = summary["consumed"] / (summary["updates"] * 64)
    assert uses == pytest.approx(1.0), "an update uses all of its batch"


@pytest.mark.parametrize(
    "shared",
    [
        {"buffer": {"colocate": False, "num": 2, "sampler": "prioritised"}},
        {"learner": {"num": 2}, "buffer": {"sampler": "prioritised"}},
    ],
    ids=["buffers", "learners"],
)
def test_several_buffers_and_several_learners_have_their_share_of_each_table(
    workplace: Any, shared: dict[str, Any]
) -> None:
    workplace.base = {name: part for name, part in workplace.base.items() if name not in DQN}
    sources = {"roles": {"source": {"num": 2}}, "distribution": {"actor": {"num": 2}}}
    run = workplace.train(with_source(), sources, ENDLESS, {"distribution": shared})
    run.train_until(6000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    check_account(summary)
    assert summary["lost"] == 0
    assert summary["received"] == summary["env_steps"]
    assert summary["replay_ratio"]["actual"] == pytest.approx(2.0, rel=0.1)
    assert summary["consumed"] == summary["updates"] * 64
    made = [one["channels"]["fragments"]["made"] for one in summary["extra"].values()]
    assert len(made) == 2
    assert min(made) > 0


def test_a_buffer_is_lost_with_its_source_and_the_other_goes_on_with_its_table(workplace: Any) -> None:
    workplace.base = {name: part for name, part in workplace.base.items() if name not in DQN}
    several = {"actor": {"num": 2}, "buffer": {"colocate": False, "num": 2}}
    run = workplace.train(with_source(), ENDLESS, {"roles": {"source": {"num": 2}}, "distribution": several})
    run.train_until(3000)
    run.command.kill("buffer 1")
    workplace.until(lambda: "the others go on" in run.log, "the loss is said")
    before = run.rows[-1]["updates"]
    run.train_until(run.env_steps + 4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert "source 1 (group 0), actor 1 (group 0); the others go on" in run.log
    assert summary["env_steps"] == summary["received"]
    assert summary["updates"] > before + 20


def test_a_source_that_leaves_a_field_unwritten_ends_the_run_and_is_told_which(workplace: Any) -> None:
    workplace.base = {name: part for name, part in workplace.base.items() if name not in DQN}
    reason = workplace.train(with_source("Careless")).finish(1)["reason"]
    assert "a fragment lacks reward, truncated: write every field" in reason


def test_a_state_that_is_no_array_of_numbers_ends_the_run_and_says_so(workplace: Any) -> None:
    reason = workplace.train(between("Untold")).finish(1)["reason"]
    assert "'seen' is <U4, and a state has arrays of numbers" in reason


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
