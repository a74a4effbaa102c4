"""Claims about what a split sets, and what of a config no split changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.profile.probing import leaves

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import shipped_configs
from tianji_lab.model.costs import Split, Workload
from tianji_lab.profile.scaling import GroupAveraging
from tianji_lab.profile.settings import (
    as_settings,
    averaging_of,
    fingerprint,
    num_envs_options,
    split_of,
    split_values,
    with_split,
    workload_of,
)

APEX = "configs/dqn_cartpole_apex.toml"
DQN = "configs/dqn_cartpole.toml"
PPO = "configs/ppo_cartpole.toml"
SYNC = "configs/ppo_cartpole_sync.toml"


def workload(config: str, *overrides: str, split: Split | None = None) -> Workload:
    return workload_of(load_config(config, overrides), 8.0, 512.0, 20.0, split)


def changed(one: JobConfig, other: JobConfig) -> set[str]:
    before, after = leaves(one.model_dump(mode="json")), leaves(other.model_dump(mode="json"))
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


@pytest.mark.parametrize("config", shipped_configs())
def test_a_config_has_the_split_that_it_was_given_and_differs_in_nothing_else(config: str) -> None:
    before = load_config(config)
    own = split_of(before)
    wanted = replace(own, learner_cores=3, actors=2, num_envs=own.num_envs // 2 or 2)
    after = load_config(config, as_settings(split_values(wanted)))
    assert split_of(after) == wanted
    assert changed(before, after) <= split_values(wanted).keys()
    # A config may have a split that cannot be run.
    split = Split(learners=4, learner_cores=2, actors=3, num_envs=16, groups=8)
    assert split_of(with_split(load_config(PPO), split)) == split


def test_cores_of_a_buffer_count_where_it_has_some_of_its_own() -> None:
    assert split_of(load_config(APEX, ["distribution.buffer.cores=2"])).cores == 4
    assert split_of(load_config(PPO)).buffer_cores == 0
    assert split_of(load_config(PPO, ["distribution.actor.cores=3"])).cores_of_actors == 3


def test_an_actors_window_is_no_more_than_its_share_of_a_rollout() -> None:
    assert workload(PPO).window == 1  # A fragment is the whole of it.
    of_four = replace(split_of(load_config(PPO)), num_envs=16)
    assert workload(PPO, split=of_four).window == 2
    assert workload(PPO, split=replace(of_four, actors=3)).window == 2
    assert workload(PPO, split=replace(of_four, actors=4)).window == 1
    assert workload(DQN, "distribution.actor.window=7").window == 7


def test_a_rollout_stays_as_long_and_has_as_many_fragments_for_the_model_as_for_the_job() -> None:
    few = replace(split_of(load_config(PPO)), num_envs=16)
    assert workload(PPO).rollout_steps == workload(PPO, split=few).rollout_steps == 4096
    assert workload(DQN).rollout_steps is None
    for num_envs, fragments in ((64, 1), (16, 4)):
        job = with_split(load_config(PPO), Split(1, 1, 1, num_envs))
        assert job.fragments_per_rollout == workload(PPO).fragments_per_rollout(num_envs) == fragments


def test_the_tolerance_is_that_of_the_balance() -> None:
    assert workload(DQN).tolerance == 32 * 32 + 512 / 8
    few = replace(split_of(load_config(DQN)), num_envs=8)
    assert workload(DQN, split=few).tolerance == 8 * 32 + 512 / 8
    assert workload(DQN, "distribution.balance_tolerance=3000").tolerance == 3000
    assert workload(DQN, "distribution.balance=free").tolerance is None
    assert workload(PPO).tolerance is None


def test_who_waits_and_who_shares_a_process_is_the_configs() -> None:
    assert workload("configs/ppo_cartpole_sync.toml").in_step
    assert not workload(APEX).colocated
    assert workload(PPO, "distribution.transport=inproc").one_process
    plain = workload(PPO)
    assert (plain.in_step, plain.colocated, plain.one_process) == (False, True, False)


def test_environments_are_offered_as_far_as_the_config_allows() -> None:
    assert num_envs_options(DQN) == (8, 16, 32, 64, 128)
    assert num_envs_options(PPO) == (16, 32, 64)  # A rollout is one fragment of 64 of them.
    assert num_envs_options("configs/dqn_cartpole_paper.toml") == (1, 2, 4)
    assert num_envs_options(DQN, ["environment.num_envs=6"]) == (3, 6, 12, 24)
    # Some only fewer actors can have.
    in_step = ["distribution.actor.num=4", "environment.num_envs=16"]
    assert num_envs_options("configs/ppo_cartpole_sync.toml", in_step) == (4, 8, 16, 32, 64)


def test_measurements_are_of_use_whatever_the_split_and_the_experiment_but_not_for_other_work() -> None:
    split = Split(learners=1, learner_cores=2, actors=3, num_envs=16)
    same = load_config(PPO, [*as_settings(split_values(split)), "experiment.seed=7", "experiment.name=other"])
    assert fingerprint(same) == fingerprint(load_config(PPO))
    for override in ("distribution.actor.send_size=32", "training.gamma=0.9", "distribution.transport=zmq"):
        assert fingerprint(load_config(PPO, [override])) != fingerprint(load_config(PPO))


def test_how_groups_average_is_the_configs_and_is_not_measured() -> None:
    settings = ["distribution.sync_interval=7", "distribution.sync_optimizer=true"]
    assert averaging_of(load_config(PPO, settings)) == GroupAveraging(7, waits=False, values=3)
    rmsprop = load_config(PPO, [*settings, 'training.optimizer="rmsprop"'])
    assert averaging_of(rmsprop) == GroupAveraging(7, waits=False, values=2)
    assert averaging_of(load_config(SYNC, ["distribution.groups=2"])) == GroupAveraging(
        100, waits=True, values=1
    )
    assert fingerprint(load_config(PPO, settings)) == fingerprint(load_config(PPO))


def test_an_engine_between_hosts_counts_only_where_there_are_several() -> None:
    one, two = "distribution.hosts=1", "distribution.hosts=2"
    to_zmq, to_mpi = (
        f'distribution.transport={{ local = "shm", remote = "{remote}" }}' for remote in ("zmq", "mpi")
    )
    alike = [fingerprint(load_config(PPO, settings)) for settings in ([], [one, to_zmq], [one, to_mpi])]
    others = [fingerprint(load_config(PPO, settings)) for settings in ([two, to_zmq], [two, to_mpi])]
    assert len(set(alike)) == 1
    assert len({*alike, *others}) == 3
