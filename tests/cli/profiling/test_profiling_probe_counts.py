"""What a probe counts in its windows adds up, whatever the config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.profiling.probing import DQN, PPO, Asked, write_config

from tianji_cli.profiling.protocol import LearnedWindow, Prepared

PRIORITISED: dict[str, Any] = {
    "agent": {"priorities": True},
    "distribution": {"buffer": {"capacity": 5000, "sampler": "prioritised", "priority_updates": "sync"}},
}


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with Asked(tmp_path_factory.mktemp("probe")) as asked:
        yield asked


@pytest.fixture
def ppo(tmp_path: Path) -> str:
    return write_config(tmp_path / "ppo.toml", PPO)


@pytest.fixture
def dqn(tmp_path: Path) -> str:
    return write_config(tmp_path / "dqn.toml", DQN)


def check_rounds(windows: tuple[LearnedWindow, ...], *, updates: int, batch: int, fragments: int) -> None:
    """Windows hold whole rounds of an on-policy learner that never lacks a fragment."""
    for window in windows:
        assert window.versions > 0
        # Steps that begin a new episode are in no minibatch, so there may be a minibatch less.
        assert 0.8 * updates < window.updates / window.versions <= updates
        assert 0.8 * batch < window.uses / window.updates < 1.2 * batch
        assert window.fragments == window.versions * fragments
        check_seconds(window)


def check_seconds(window: LearnedWindow) -> None:
    seconds = (window.store_s, window.update_s, window.draw_s, window.rest_s)
    assert all(second > 0 for second in seconds)
    assert sum(seconds) < window.wall_s


@pytest.mark.parametrize("config", [PPO, DQN], ids=["ppo", "dqn"])
def test_an_actor_fills_whole_fragments_in_each_window(
    probe: Asked, tmp_path: Path, config: dict[str, Any]
) -> None:
    probe.prepared("actor", write_config(tmp_path / "job.toml", config))
    for window in probe.acted("actor", windows=4):
        assert window.fragments == int(window.fragments) > 0
        # Steps that begin a new episode are no experience.
        assert 0.8 * window.fragments * 8 * 16 < window.samples <= window.fragments * 8 * 16
        assert 0 < window.act_s + window.step_s < window.busy_s < window.wall_s


def test_a_learner_of_rollouts_makes_whole_rounds_in_each_window(probe: Asked, ppo: str) -> None:
    prepared = probe.prepared("learner", ppo)
    assert prepared.rho == 2.0
    assert prepared.batch_bytes == 0
    windows = probe.learned("learner", windows=4)
    check_rounds(windows, updates=2 * 256 // 64, batch=64, fragments=2)


def test_a_share_of_the_batch_leaves_the_rollout_whole(probe: Asked, ppo: str) -> None:
    probe.prepared("learner", ppo, share=4)
    check_rounds(probe.learned("learner"), updates=2 * 256 // 16, batch=16, fragments=2)


def test_a_learner_stays_on_policy_however_often_it_learns_from_the_same_fragments(
    probe: Asked, ppo: str
) -> None:
    # A policy that went on from round to round would be beyond this at once, which ends a round early.
    probe.prepared("learner", ppo, overrides=("training.target_kl=0.012", "training.learning_rate=1e-2"))
    check_rounds(probe.learned("learner", warm_s=0.3), updates=2 * 256 // 64, batch=64, fragments=2)


def check_replay(windows: tuple[LearnedWindow, ...], *, batch: int, capacity: int = 5000) -> None:
    """A learner of a full replay draws as often as the replay ratio has it, on average."""
    for window in windows:
        assert window.versions > 0
        assert window.updates == window.versions * 5
        assert window.uses == window.updates * batch
        check_seconds(window)
    uses, fragments = (sum(getattr(window, name) for window in windows) for name in ("uses", "fragments"))
    tolerance = 128 + batch / 4.0
    assert 0.8 * fragments * 128 - 2 * tolerance < uses / 4.0 < fragments * 128 + 2 * tolerance


@pytest.mark.parametrize("share", [1, 2])
def test_a_learner_of_a_replay_keeps_to_the_replay_ratio(probe: Asked, dqn: str, share: int) -> None:
    prepared = probe.prepared("learner", dqn, share=share)
    assert prepared.rho == 4.0
    assert prepared.batch_bytes > 0
    check_replay(probe.learned("learner", windows=4), batch=32 // share)


def test_a_replay_that_is_not_full_in_time_is_drawn_from_all_the_same(probe: Asked, tmp_path: Path) -> None:
    distribution = {"actor": {"send_size": 64}, "buffer": {"capacity": 20_000_000}}
    config = write_config(tmp_path / "job.toml", DQN, distribution=distribution)
    probe.prepared("learner", config, overrides=("environment.num_envs=64",))
    assert all(window.uses == window.updates * 32 > 0 for window in probe.learned("learner"))


@pytest.mark.parametrize("memory", ["ram", "mmap"])
def test_a_replay_that_would_fit_nowhere_is_measured_as_far_as_it_is_filled(
    probe: Asked, tmp_path: Path, memory: str
) -> None:
    distribution = {"actor": {"send_size": 64}, "buffer": {"capacity": 10**13, "memory": memory}}
    config = write_config(tmp_path / "job.toml", DQN, distribution=distribution)
    probe.prepared("learner", config, overrides=("environment.num_envs=64",))
    assert all(window.uses == window.updates * 32 > 0 for window in probe.learned("learner"))


@pytest.mark.parametrize(
    "sections",
    [
        PRIORITISED,
        {**PRIORITISED, "agent": {}},
        {"distribution": {"buffer": {"capacity": 5000, "colocate": False, "cores": 2}}},
        {"distribution": {"buffer": {"capacity": 5000, "sampler": "fresh", "save_with_checkpoint": True}}},
        {"distribution": {"buffer": {"capacity": 5000, "memory": "mmap"}, "balance": "free"}},
        {"distribution": {"hosts": 2, "transport": {"local": "shm", "remote": "zmq"}}},
    ],
    ids=["actors' priorities", "prioritised", "parted", "fresh, saved", "in a file, free", "two hosts"],
)
def test_every_kind_of_replay_can_be_measured(probe: Asked, tmp_path: Path, sections: dict[str, Any]) -> None:
    config = write_config(tmp_path / "job.toml", DQN, **sections)
    overrides = ("distribution.actor.send_size=16",)
    probe.prepared("learner", config, overrides=overrides)
    check_replay(probe.learned("learner", windows=4), batch=32)
    probe.prepared("actor", config, overrides=overrides)
    assert all(window.fragments >= 1 for window in probe.acted("actor"))


@pytest.mark.parametrize(
    "distribution",
    [
        {"mode": "sync", "actor": {"num": 2, "send_size": 16}},
        {"buffer": {"rollouts": 4}, "actor": {"send_size": 16}},
        {"transport": "inproc", "actor": {"send_size": 16}},
        {"transport": "zmq", "learner": {"cores": 2}, "actor": {"send_size": 16, "window": 5}},
    ],
    ids=["in step", "Lag4", "one process", "an engine that does not lend"],
)
def test_every_kind_of_rollouts_can_be_measured(
    probe: Asked, tmp_path: Path, distribution: dict[str, Any]
) -> None:
    config = write_config(tmp_path / "job.toml", PPO, distribution=distribution)
    probe.prepared("learner", config)
    check_rounds(probe.learned("learner"), updates=2 * 256 // 64, batch=64, fragments=2)
    probe.prepared("actor", config)
    assert all(window.fragments >= 1 for window in probe.acted("actor"))


def test_roles_take_turns_in_any_order_and_go_on_where_they_were(probe: Asked, ppo: str, dqn: str) -> None:
    for key, config in (("actor-p", ppo), ("learner-p", ppo), ("actor-d", dqn), ("learner-d", dqn)):
        probe.prepared(key, config)
    for _ in range(2):
        check_replay(probe.learned("learner-d", windows=3), batch=32)
        assert all(window.fragments >= 1 for window in probe.acted("actor-p"))
        check_rounds(probe.learned("learner-p"), updates=2 * 256 // 64, batch=64, fragments=2)
        assert all(window.fragments >= 1 for window in probe.acted("actor-d"))


def test_both_roles_of_a_config_have_the_same_facts(probe: Asked, dqn: str) -> None:
    actor, learner = (probe.prepared(key, dqn).model_dump() for key in ("actor", "learner"))
    assert (actor["rho"], learner["rho"]) == (None, 4.0)
    assert {**actor, "seconds": 0, "rho": 4.0} == {**learner, "seconds": 0}
    facts = Prepared(**actor)
    # 4 observations and 8 units, 8 and 2 actions; a policy also says how far training has come.
    assert facts.parameters == (4 + 1) * 8 + (8 + 1) * 2
    assert facts.policy_bytes == 4 * facts.parameters + 8
    assert facts.fragment_bytes > 17 * 8 * 4 * 4


def test_a_window_is_as_long_as_a_whole_round_takes(probe: Asked, ppo: str) -> None:
    slow = ("training.epochs=100",)
    probe.prepared("learner", ppo, overrides=slow)
    windows = probe.learned("learner", window_s=0.0, windows=2)
    check_rounds(windows, updates=100 * 256 // 64, batch=64, fragments=2)


def test_a_run_that_takes_too_long_ends_with_the_windows_that_there_are(probe: Asked, ppo: str) -> None:
    # Longer than the whole test may take, and it goes on afterwards.
    probe.prepared("learner", ppo, overrides=("training.epochs=1000000",))
    for _ in range(2):
        assert probe.learned("learner", limit_s=0.1) == ()


def test_one_window_is_enough_after_a_time(probe: Asked, ppo: str) -> None:
    probe.prepared("learner", ppo)
    assert len(probe.learned("learner", windows=1000, window_s=0.05, enough_s=0.0)) == 1
    assert len(probe.learned("learner", windows=1000, window_s=0.05, enough_s=0.3)) < 10


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
