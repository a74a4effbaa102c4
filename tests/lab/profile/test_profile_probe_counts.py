"""What a probe counts in its windows adds up, whatever the config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.warm import WarmCommands
from lab.profile.probing import DQN, PPO, Asked, write_config

from tianji_cli.wire.parameters import policy_layout
from tianji_lab.profile.probe.protocol import Average, Averaged, Failed, LearnedWindow, Prepared

FRESH = {"capacity": 5000, "sampler": "fresh", "save_with_checkpoint": True}
PRIORITISED: dict[str, Any] = {"capacity": 5000, "sampler": "prioritised", "priority_updates": "sync"}


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory, warm_commands: WarmCommands) -> Iterator[Asked]:
    with Asked(tmp_path_factory.mktemp("probe"), warm_commands) as asked:
        yield asked


@pytest.fixture
def ppo(tmp_path: Path) -> str:
    return write_config(tmp_path / "ppo.toml", PPO)


@pytest.fixture
def dqn(tmp_path: Path) -> str:
    return write_config(tmp_path / "dqn.toml", DQN)


def check_rounds(windows: tuple[LearnedWindow, ...], *, updates: int = 8, batch: int = 64) -> None:
    """Windows hold whole rounds of an on-policy learner that never lacks a fragment."""
    for window in windows:
        assert window.versions > 0
        # Steps that begin a new episode are in no minibatch, so there may be a minibatch less.
        assert 0.8 * updates < window.updates / window.versions <= updates
        assert 0.8 * batch < window.uses / window.updates < 1.2 * batch
        assert window.fragments == window.versions * 2
        check_seconds(window)


def check_replay(windows: tuple[LearnedWindow, ...], *, batch: int = 32) -> None:
    """A learner of a full replay draws as often as the replay ratio has it, on average."""
    for window in windows:
        assert window.versions > 0
        assert window.updates == window.versions * 5
        assert window.uses == window.updates * batch
        check_seconds(window)
    uses, fragments = (sum(getattr(window, name) for window in windows) for name in ("uses", "fragments"))
    tolerance = 128 + batch / 4.0
    assert 0.8 * fragments * 128 - 2 * tolerance < uses / 4.0 < fragments * 128 + 2 * tolerance


def check_seconds(window: LearnedWindow) -> None:
    seconds = (window.store_s, window.update_s, window.draw_s, window.rest_s)
    assert all(second > 0 for second in seconds)
    assert sum(seconds) < window.wall_s


def check_actor(probe: Asked, config: str, overrides: tuple[str, ...] = ()) -> None:
    """Windows hold whole fragments of 16 steps of 8 environments."""
    probe.prepared("actor", config, overrides=overrides)
    for window in probe.acted("actor"):
        assert window.fragments == int(window.fragments) > 0
        # Steps that begin a new episode are no experience.
        assert 0.8 * window.fragments * 8 * 16 < window.samples <= window.fragments * 8 * 16
        assert 0 < window.act_s + window.step_s < window.busy_s < window.wall_s


REPLAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "actors' priorities": {"agent": {"priorities": True}, "distribution": {"buffer": PRIORITISED}},
    "prioritised": {"distribution": {"buffer": PRIORITISED}},
    "parted": {"distribution": {"buffer": {"capacity": 5000, "colocate": False, "cores": 2}}},
    "fresh": {"distribution": {"buffer": FRESH}},
    "in a file": {"distribution": {"buffer": {"capacity": 5000, "memory": "mmap"}, "balance": "free"}},
    "two hosts": {"distribution": {"hosts": 2, "transport": {"local": "shm", "remote": "zmq"}}},
}
ROLLOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    # A policy that went on from round to round would be beyond this at once, which ends a round early.
    "on policy": {"training": {"target_kl": 0.012, "learning_rate": 1e-2}},
    "in step": {"distribution": {"mode": "sync", "actor": {"num": 2, "send_size": 16}}},
    "Lag4": {"distribution": {"buffer": {"rollouts": 4}, "actor": {"send_size": 16}}},
    "one process": {"distribution": {"transport": "inproc", "actor": {"send_size": 16}}},
    "no lending": {"distribution": {"transport": "zmq", "learner": {"cores": 2}, "actor": {"send_size": 16}}},
}


@pytest.mark.parametrize("kind", REPLAYS)
def test_a_learner_of_any_replay_keeps_to_the_replay_ratio(probe: Asked, tmp_path: Path, kind: str) -> None:
    config = write_config(tmp_path / "job.toml", DQN, **REPLAYS[kind])
    overrides = ("distribution.actor.send_size=16",)
    prepared = probe.prepared("learner", config, overrides=overrides)
    assert (prepared.rho, prepared.batch_bytes > 0) == (4.0, True)
    check_replay(probe.learned("learner", windows=4))
    check_actor(probe, config, overrides)


@pytest.mark.parametrize("kind", ROLLOUTS)
def test_a_learner_of_any_rollouts_makes_whole_rounds_in_each_window(
    probe: Asked, tmp_path: Path, kind: str
) -> None:
    config = write_config(tmp_path / "job.toml", PPO, **ROLLOUTS[kind])
    prepared = probe.prepared("learner", config)
    assert (prepared.rho, prepared.batch_bytes) == (2.0, 0)
    check_rounds(probe.learned("learner", warm_s=0.3 if kind == "on policy" else 0.02))
    check_actor(probe, config)


def test_a_share_of_the_batch_leaves_the_rollout_and_the_replay_ratio_as_they_are(
    probe: Asked, ppo: str, dqn: str
) -> None:
    probe.prepared("learner", ppo, share=4)
    check_rounds(probe.learned("learner"), updates=2 * 256 // 16, batch=16)
    assert probe.prepared("learner", dqn, share=2).rho == 4.0
    check_replay(probe.learned("learner", windows=4), batch=16)


@pytest.mark.parametrize(
    "buffer",
    [{"capacity": 20_000_000}, {"capacity": 10**13, "memory": "ram"}, {"capacity": 10**13, "memory": "mmap"}],
    ids=["not filled in time", "fits into no memory", "fits onto no disk"],
)
def test_a_replay_that_cannot_be_filled_is_measured_as_far_as_it_is(
    probe: Asked, tmp_path: Path, buffer: dict[str, Any]
) -> None:
    distribution = {"actor": {"send_size": 64}, "buffer": buffer}
    config = write_config(tmp_path / "job.toml", DQN, distribution=distribution)
    probe.prepared("learner", config, overrides=("environment.num_envs=64",))
    assert all(window.uses == window.updates * 32 > 0 for window in probe.learned("learner"))


def test_roles_take_turns_in_any_order_and_go_on_where_they_were(probe: Asked, ppo: str, dqn: str) -> None:
    for key, config in (("actor-p", ppo), ("learner-p", ppo), ("actor-d", dqn), ("learner-d", dqn)):
        probe.prepared(key, config)
    for _ in range(2):
        check_replay(probe.learned("learner-d", windows=3))
        assert all(window.fragments >= 1 for window in probe.acted("actor-p"))
        check_rounds(probe.learned("learner-p"))
        assert all(window.fragments >= 1 for window in probe.acted("actor-d"))


def test_both_roles_of_a_config_have_the_same_facts(probe: Asked, dqn: str) -> None:
    actor, learner = (probe.prepared(key, dqn).model_dump() for key in ("actor", "learner"))
    assert (actor["rho"], learner["rho"]) == (None, 4.0)
    assert {**actor, "seconds": 0, "rho": 4.0} == {**learner, "seconds": 0}
    facts = Prepared(**actor)
    # 4 observations and 8 units, 8 and 2 actions; a policy also says how far training has come.
    assert facts.parameters == (4 + 1) * 8 + (8 + 1) * 2
    assert facts.policy_bytes == policy_layout(facts.parameters).nbytes == 4 * facts.parameters + 64
    assert facts.fragment_bytes > 17 * 8 * 4 * 4


def test_windows_are_whole_rounds_and_no_more_than_there_is_time_for(probe: Asked, ppo: str) -> None:
    probe.prepared("learner", ppo)
    assert len(probe.learned("learner", windows=1000, window_s=0.05, enough_s=0.0)) == 1
    assert len(probe.learned("learner", windows=1000, window_s=0.05, enough_s=0.3)) < 10
    probe.prepared("learner", ppo, overrides=("training.epochs=100",))
    check_rounds(probe.learned("learner", window_s=0.0, windows=2), updates=100 * 256 // 64)
    # Longer than the whole test may take, and it goes on afterwards.
    probe.prepared("learner", ppo, overrides=("training.epochs=1000000",))
    for _ in range(2):
        assert probe.learned("learner", limit_s=0.1) == ()


@pytest.mark.parametrize(("role", "every"), [("actor", 1), ("actor", 3), ("learner", 1)])
def test_who_pauses_works_and_sleeps_in_turns(probe: Asked, ppo: str, role: str, every: int) -> None:
    """As in step: what a sleep takes is no work, and comes after so many fragments or versions."""
    probe.prepared(role, ppo)
    pauses = {"pause_s": 0.01, "pause_every": every}
    if role == "actor":
        for acted in probe.acted(role, windows=4, **pauses):
            assert acted.wall_s > acted.busy_s + 0.01 * (acted.fragments // every)
    else:
        for learned in probe.learned(role, windows=4, **pauses):
            worked_s = learned.store_s + learned.update_s + learned.draw_s + learned.rest_s
            assert learned.wall_s > worked_s + 0.01 * learned.versions


def test_probes_average_and_none_waits_for_one_that_is_gone(probe: Asked, tmp_path: Path) -> None:
    def part(rank: int, size: int, store: str, timeout_s: float = 60.0) -> Average:
        place = str(tmp_path / store)
        return Average(rank=rank, size=size, store=place, values=1000, rounds=5, timeout_s=timeout_s)

    with Asked(tmp_path) as other:
        for rank, each in enumerate((probe, other)):
            each.say(part(rank, 2, "store").model_dump_json().encode())
        answers = [each.hear() for each in (probe, other)]
    assert isinstance(probe.ask(part(0, 2, "nobody", timeout_s=0.5)), Failed)
    for answer in (*answers, probe.ask(part(0, 1, "alone"))):
        assert isinstance(answer, Averaged)
        assert len(answer.seconds) == 5
        assert all(second > 0 for second in answer.seconds)
