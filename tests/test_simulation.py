"""A job of one's own roles, from Python: trained in processes, or in one thread in any order of moves."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tianji
from tianji_algos.core import Spaces
from tianji_algos.fields import FieldSpec
from tianji_cli.config.schema import JobConfig
from tianji_cli.roles.records import Fields
from tianji_cli.roles.user_role import RoleContext, UserRole
from tianji_transports.core import FULL

MANY = settings(max_examples=25)
SEEDS = st.integers(0, 2**32)
SMALL: dict[str, Any] = {
    "experiment": {"seed": 5, "stop": {"env_steps": 10**6}, "plots": False},
    "environment": {"num_envs": 2},
    "model": {"hidden": [4]},
}
PPO: dict[str, Any] = {"training": {"rollout_steps": 32, "minibatch_size": 16, "epochs": 1}}
DQN: dict[str, Any] = {"training": {"batch_size": 8, "replay_ratio": 1.0, "warmup_steps": 32, "n_step": 1}}
ACTORS: dict[str, Any] = {"pin_cores": False, "actor": {"num": 2, "send_size": 4}}
APART: dict[str, Any] = {"distribution": ACTORS | {"buffer": {"colocate": False, "capacity": 512}}}


class Number:
    """A record of a maker's own count."""

    @classmethod
    def fields(cls, _spaces: Spaces, _config: JobConfig) -> Sequence[FieldSpec]:
        return FieldSpec("number", np.dtype(np.int64)), FieldSpec("maker", np.dtype(np.int64))


class Maker(UserRole):
    made = 0
    seen = 0

    def turn(self) -> bool:
        newest = self.latest("newest", newer_than=self.seen)
        if newest is not None:
            self.seen = newest.version
            assert self.seen == int(newest.fields["number"])
        record = self.loan("numbers")
        if record is FULL:
            return False
        record.fields["number"][...] = self.made
        record.fields["maker"][...] = self.context.number
        self.push("numbers", record)
        self.made += 1
        return True

    def report(self) -> dict[str, Any]:
        return super().report() | {"seen": self.seen}


class Taker(UserRole):
    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self._taken: dict[int, list[int]] = {}

    def turn(self) -> bool:
        record = self.probe("numbers")
        if record is None:
            return False
        self._taken.setdefault(int(record.fields["maker"]), []).append(int(record.fields["number"]))
        self.publish("newest", number=sum(map(len, self._taken.values())), maker=0)
        return True

    def stop(self) -> None:
        while self.turn():
            pass

    def report(self) -> dict[str, Any]:
        taken = {str(maker): numbers for maker, numbers in self._taken.items()}
        return super().report() | {"taken": taken}


class Forwarder(UserRole):
    """Sends on what comes; ``change`` may alter it."""

    channel = "fragments"
    held = False

    def change(self, _fields: Fields) -> None:
        """Change nothing."""

    def turn(self) -> bool:
        if not self.held and self.probe(self.channel) is None:
            return False
        self.held = not self.forward(self.channel, self.change)
        return not self.held

    def stop(self) -> None:
        self.forward_rest(self.channel, self.change)


class Restartable(Forwarder):
    restartable = True


class NumberForwarder(Forwarder):
    channel = "numbers"


class Leaky(Forwarder):
    """Loses what it holds when there is no room, and goes on as if it had sent it."""

    def turn(self) -> bool:
        if self.probe(self.channel) is None:
            return False
        self.forward(self.channel)
        return True


class Hasty(Forwarder):
    """Forgets, when it is stopped, what it holds and what still comes."""

    def stop(self) -> None:
        pass


class Gatherer(Forwarder):
    """Sends fragments on by threes."""

    holds = 2
    gathered = 0
    sends = False

    def turn(self) -> bool:
        if not self.sends:
            worked = self.probe(self.channel) is not None
            self.gathered += worked
            self.sends = self.gathered > self.holds
            return worked
        worked = self.forward(self.channel)
        self.gathered -= worked
        self.sends = self.gathered > 0
        return worked


class Greedy(Forwarder):
    """Takes more fragments than it says before it sends the first one on."""

    holds = 2

    def turn(self) -> bool:
        return self.probe(self.channel) is not None


class Deaf(Forwarder):
    def turn(self) -> bool:
        return False


class Late(Forwarder):
    """Fails at its ninth fragment."""

    seen = 0

    def change(self, _fields: Fields) -> None:
        self.seen += 1
        if self.seen == 9:
            raise ValueError("nine are too many")


def program(
    between: type[UserRole] | None = None, learns: dict[str, Any] = PPO, **more: Any
) -> tianji.Program:
    """Build a job with a role between its actors and the buffer, and perhaps others."""
    config = "configs/ppo_cartpole.toml" if learns is PPO else "configs/dqn_cartpole.toml"
    if between is not None:
        more["roles"] = {"middle": between}
        more["channels"] = {"fragments": ["actor", "middle", "buffer"]}
    return tianji.Program(config, **{**SMALL, "distribution": ACTORS, **learns, **more})


def numbers(middle: type[UserRole] | tuple[type[UserRole], dict[str, Any]], **keys: Any) -> tianji.Program:
    """Build a job with two makers of numbers, a role in the middle and a taker."""
    roles = {"maker": (Maker, {"num": 2}), "middle": middle, "taker": Taker}
    path = {"path": ["maker", "middle", "taker"], "record": Number, **keys}
    return tianji.Program(
        "configs/ppo_cartpole.toml",
        roles=roles,
        channels={"numbers": path},
        slots={"newest": {"writer": "taker", "readers": ["maker"], "record": Number}},
        **{**SMALL, **PPO, "distribution": ACTORS},
    )


JOBS = {
    "a role that comes again": program(Restartable),
    "a role that comes again, before a replay apart": program(Restartable, DQN | APART),
    "a role that gathers": program(Gatherer),
    "a role that gathers, before a replay apart": program(Gatherer, DQN | APART),
    "rollouts": program(Forwarder),
    "replay": program(Forwarder, DQN),
    "replay apart": program(Forwarder, DQN | APART),
    "inference apart": program(Forwarder, distribution=ACTORS | {"inference": {"num": 1}}),
    "without a role": program(None),
}


@pytest.mark.parametrize("job", JOBS)
@given(seed=SEEDS)
@MANY
def test_each_sample_is_accounted_for_whoever_moves_and_whichever_actors_die(job: str, seed: int) -> None:
    end = JOBS[job].simulate(seed, moves=300, deaths=0.02).check()
    account = end.account
    assert account.produced == account.received + account.in_flight + account.lost + account.dropped
    assert account.in_flight == 0, "the shutdown is in order"
    assert account.lost == 0 or "!" in end.order
    if job in {"rollouts", "replay"}:
        assert account.lost <= 8 * end.order.count("!"), "a fragment for each death"


@given(seed=SEEDS)
@MANY
def test_each_record_comes_once_and_in_order(seed: int) -> None:
    end = numbers(NumberForwarder).simulate(seed, moves=300, deaths=0.02).check()
    made = {name: one["channels"]["numbers"] for name, one in end.summary.extra.items() if "maker" in name}
    assert [one.get("unclaimed", 0) for one in made.values()] == [0, 0]
    seen = [one["seen"] for one in end.summary.extra.values() if "seen" in one]
    assert 0 <= max(seen) <= sum(one["sent"] for one in made.values())
    (taken,) = (one["taken"] for one in end.summary.extra.values() if "taken" in one)
    in_order = [list(range(one["sent"])) for one in made.values()]
    assert [taken.get(maker, []) for maker in ("0", "1")] == in_order


@given(ranks=st.lists(st.integers(0, 5), max_size=200))
@MANY
def test_any_list_of_ranks_is_an_order(ranks: list[int]) -> None:
    end = JOBS["rollouts"].simulate(order=" ".join(map(str, ranks)), moves=0).check()
    assert end.summary.reason == "all moves were made"


def test_a_seed_has_one_order_and_one_end() -> None:
    first, second, other = (JOBS["rollouts"].simulate(seed, deaths=0.02) for seed in (1, 1, 2))
    assert (first.order, first.account) == (second.order, second.account)
    assert first.order != other.order
    again = JOBS["rollouts"].simulate(order=first.order)
    assert (again.order, again.account, again.summary.extra) == (
        first.order,
        first.account,
        first.summary.extra,
    )


def failing_order(job: tianji.Program, **more: Any) -> tuple[str, str]:
    """Find a seed whose simulation fails; returns the message and the order in it."""
    for seed in range(20):
        try:
            job.simulate(seed, **more).check()
        except tianji.TianjiError as error:
            found = re.search(r"simulate\(order='(.*)'\)$", str(error))
            assert found is not None
            return str(error), found[1]
    pytest.fail("no order was found in which it fails")


@pytest.mark.parametrize("broken", [Leaky, Hasty])
def test_a_role_that_loses_a_fragment_in_silence_is_found_and_its_order_repeats_it(
    broken: type[UserRole],
) -> None:
    job = program(broken)
    message, order = failing_order(job)
    assert re.match(r"\d+ samples did not arrive, and deaths explain 0 \(Account\(", message)
    with pytest.raises(tianji.TianjiError) as again:
        job.simulate(order=order).check()
    assert str(again.value) == message


def test_roles_that_wait_for_one_another_are_found() -> None:
    message, _ = failing_order(program(Deaf))
    assert message.startswith("all processes wait for one another (Account(")


def test_a_role_that_takes_more_than_its_class_says_is_told_so() -> None:
    with pytest.raises(RuntimeError, match=r"3 messages of 'fragments-middle' are held.* holds = 2"):
        program(Greedy).simulate(1)


def test_an_error_of_a_role_is_raised_with_the_order_in_which_it_comes_again() -> None:
    job = program(Late)
    with pytest.raises(ValueError, match="nine are too many") as first:
        job.simulate(3)
    (note,) = first.value.__notes__
    order = note.partition("order='")[2].removesuffix("')")
    with pytest.raises(ValueError, match="nine are too many") as second:
        job.simulate(order=order)
    assert second.value.__notes__ == [note]


def test_an_actor_that_dies_at_a_push_takes_a_fragment_along_and_comes_again() -> None:
    def lost(order: str) -> int:
        return JOBS["without a role"].simulate(order=order).check().account.lost

    quiet = JOBS["without a role"].simulate(4, moves=200)
    actor = max(set(quiet.order.split()) - {".", "0"})
    moves = quiet.order.split()
    places = [at for at, move in enumerate(moves) if move == actor]
    died = {lost(" ".join([*moves[:at], f"{actor}!0", *moves[at + 1 :]])) for at in places}
    assert len(died) > 3, "it was killed in all rows of a fragment, and at its push"


def test_several_learners_are_refused() -> None:
    several = program(distribution=ACTORS | {"groups": 2})
    with pytest.raises(
        tianji.TianjiError, match=r"no learner can wait for another; distribution\.groups = 1"
    ):
        several.simulate()


def test_a_program_is_trained_in_processes_too(tmp_path: Path, warm_children: None) -> None:
    job = program(
        Forwarder, experiment=SMALL["experiment"] | {"stop": {"env_steps": 1024}, "eval_episodes": 0}
    )
    run = job.train(out=tmp_path, distribution={"transport": "zmq"})
    assert run.summary is not None
    assert (run.summary["status"], run.summary["lost"], run.summary["transport"]) == ("finished", 0, "zmq")
    assert run.config["roles"]["middle"]["type"] == f"{__name__}:Forwarder"
    assert str(Path(__file__).parents[__name__.count(".")]) in run.config["experiment"]["extensions"]
