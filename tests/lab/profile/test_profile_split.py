"""Claims about the settings of a split, and about what of a config no split changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.profile.made_up_measurements import DQN, PPO, leaves

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import shipped_configs
from tianji_lab.profile.split import (
    Split,
    fingerprint,
    num_envs_options,
    split_of,
)

APEX = "configs/dqn_cartpole_apex.toml"


def changed(one: JobConfig, other: JobConfig) -> set[str]:
    before, after = leaves(one.model_dump(mode="json")), leaves(other.model_dump(mode="json"))
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


@pytest.mark.parametrize("config", shipped_configs())
def test_a_config_has_the_split_that_it_was_given_and_differs_in_nothing_else(config: str) -> None:
    before = load_config(config)
    own = split_of(before)
    wanted = replace(own, learner_cores=3, actors=2, num_envs=own.num_envs // 2 or 2)
    after = load_config(config, wanted.settings)
    assert split_of(after) == wanted
    assert changed(before, after) <= wanted.values.keys()


def test_cores_of_a_buffer_count_where_it_has_some_of_its_own() -> None:
    assert split_of(load_config(APEX, ["distribution.buffer.cores=2"])).cores == 4
    assert split_of(load_config(PPO)).buffer_cores == 0
    assert split_of(load_config(PPO, ["distribution.actor.cores=3"])).cores_of_actors == 3


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
    same = load_config(PPO, [*split.settings, "experiment.seed=7", "experiment.name=other"])
    assert fingerprint(same) == fingerprint(load_config(PPO))
    for override in ("distribution.actor.send_size=32", "training.gamma=0.9", "distribution.transport=zmq"):
        assert fingerprint(load_config(PPO, [override])) != fingerprint(load_config(PPO))


def test_how_groups_average_is_not_measured() -> None:
    settings = ["distribution.sync_interval=7", "distribution.sync_optimizer=true"]
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
