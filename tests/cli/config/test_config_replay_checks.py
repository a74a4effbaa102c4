"""Settings of the buffer and of the balance that cannot work together, or that nobody heeds, are refused."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.config.checks import host_warnings
from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.config.schema import JobConfig, least_tolerance
from tianji_cli.errors import ConfigError, Problem
from tianji_cli.roles.buffer.rate_limiter import RateLimiter

REPLAY = """
[experiment]
stop = { env_steps = 100_000 }
[environment]
type = "gym"
id = "CartPole-v1"
num_envs = 8
[agent]
type = "dqn"
[training]
batch_size = 64
replay_ratio = 4.0
warmup_steps = 1000
[distribution]
[distribution.actor]
send_size = 16
[distribution.buffer]
capacity = 10_240
"""
"""A fragment has 128 env steps; a batch is worth 16."""

ROLLOUTS = """
[experiment]
stop = { env_steps = 100_000 }
[environment]
type = "gym"
id = "CartPole-v1"
num_envs = 16
[agent]
type = "ppo"
[training]
rollout_steps = 1024
"""

RULE = """
from pydantic import BaseModel
from tianji_algos.core import ReplayEmbryo

class Settings(BaseModel):
    batch_size: int
    replay_ratio: float
    warmup_steps: int
    publish_every: int = 1
    n_step: int = 1
    gamma: float = 0.99

class Rule(ReplayEmbryo):
    settings_type = Settings
"""

BUFFER, BALANCE = "distribution.buffer", "distribution.balance"
PRIORITIES = ["agent.priorities=true", "agent.priority_gamma=0.9", "agent.priority_reward_scale=0.5"]


def load(tmp_path: Path, text: str, *settings: str) -> JobConfig:
    (tmp_path / "config.toml").write_text(text)
    return load_config(str(tmp_path / "config.toml"), settings)


def only_problem(tmp_path: Path, text: str, *settings: str) -> Problem:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text, *settings)
    (problem,) = refused.value.problems
    return problem


def test_what_a_learner_learns_from_is_in_its_settings(tmp_path: Path) -> None:
    replay, rollouts = load(tmp_path, REPLAY), load(tmp_path, ROLLOUTS)
    assert (replay.learns_from_replay, rollouts.learns_from_replay) == (True, False)
    assert replay.fragment_steps == 128
    assert replay.replay_settings.batch_size == 64


@pytest.mark.parametrize(
    "settings",
    [
        [f'{BUFFER}.sampler="prioritised"'],
        [f'{BUFFER}.sampler="prioritised"', f'{BUFFER}.priority_updates="sync"'],
        [f'{BUFFER}.sampler="prioritised"', f'{BUFFER}.priority_updates="sync"', f"{BUFFER}.colocate=false"],
        [f'{BUFFER}.sampler="prioritised"', "agent.priorities=true"],
        [f'{BUFFER}.sampler="prioritised"', *PRIORITIES, "training.gamma=0.9", "training.reward_scale=0.5"],
        [f'{BUFFER}.sampler="prioritised"', f"{BUFFER}.importance_steps=1000"],
        ["agent.priority_gamma=0.9", "training.target_tau=0.1", "agent.epsilon_base=0.3"],
        [f'{BUFFER}.sampler="fresh"', f'{BUFFER}.memory="mmap"', f"{BUFFER}.save_with_checkpoint=true"],
        [f"{BUFFER}.colocate=false", f"{BUFFER}.cores=2"],
        [
            f"{BUFFER}.colocate=false",
            f"{BUFFER}.num=2",
            "distribution.actor.num=3",
            f"{BUFFER}.capacity=1024",
        ],
        ['distribution.transport="inproc"'],
        [f'{BALANCE}="free"'],
        [f"{BALANCE}_tolerance=72"],
        [f"{BUFFER}.capacity=1000"],
        [f"{BUFFER}.capacity=1024", "distribution.actor.num=4"],
        ["training.warmup_steps=64"],
        ["experiment.stop={ env_steps = 1001 }"],
    ],
    ids=str,
)
def test_settings_of_a_replay_that_fit_are_accepted_and_run_again(
    tmp_path: Path, settings: list[str]
) -> None:
    config = load(tmp_path, REPLAY, *settings)
    assert load(tmp_path, dump_config(config)) == config


@pytest.mark.parametrize(
    ("settings", "key", "right"),
    [
        (['distribution.mode="sync"'], "distribution.mode", 'mode = "async"'),
        ([f"{BUFFER}.rollouts=2"], f"{BUFFER}.rollouts", "did you mean capacity"),
        ([f'{BUFFER}.priority_updates="sync"'], f"{BUFFER}.priority_updates", 'sampler = "prioritised"'),
        (["agent.priorities=true"], "agent.priorities", 'sampler = "prioritised"'),
        ([f"{BUFFER}.priority_exponent=0.5"], f"{BUFFER}.priority_exponent", 'sampler = "prioritised"'),
        ([f"{BUFFER}.importance_exponent=0.5"], f"{BUFFER}.importance_exponent", 'sampler = "prioritised"'),
        ([f"{BUFFER}.importance_steps=1000"], f"{BUFFER}.importance_steps", 'sampler = "prioritised"'),
        (
            [f'{BUFFER}.sampler="prioritised"', *PRIORITIES[:2], "training.reward_scale=1.0"],
            "agent.priority_gamma",
            "agent.priority_gamma = 0.99 would be right",
        ),
        (
            [f'{BUFFER}.sampler="prioritised"', PRIORITIES[0], "training.reward_scale=0.5"],
            "training.reward_scale",
            "agent.priority_reward_scale = 0.5 would be right",
        ),
        ([f'{BALANCE}="free"', f"{BALANCE}_tolerance=1000"], f"{BALANCE}_tolerance", 'balance = "held"'),
        ([f"{BUFFER}.cores=2"], f"{BUFFER}.cores", "cores = 1 would be right"),
        (["training.batch_size=1001"], "training.batch_size", "warmup_steps = 1001 would be right"),
        ([f"{BALANCE}_tolerance=71"], f"{BALANCE}_tolerance", "balance_tolerance = 72"),
        ([f"{BALANCE}_tolerance=72", "environment.num_envs=16"], f"{BALANCE}_tolerance", "= 136"),
        ([f"{BUFFER}.capacity=100"], f"{BUFFER}.capacity", "capacity = 1000"),
        ([f"{BUFFER}.capacity=999"], f"{BUFFER}.capacity", "capacity = 1000"),
        (["training.warmup_steps=20000"], "training.warmup_steps", "capacity = 20000"),
        (["distribution.actor.num=41"], "distribution.actor.num", "capacity = 10496"),
        (["distribution.actor.window=81"], "distribution.actor.window", "capacity = 10368"),
        (["distribution.actor.send_size=2000"], "distribution.actor.send_size", "capacity = 32000"),
        (["experiment.stop={ env_steps = 1000 }"], "experiment.stop", "more than 1000"),
        ([f"{BUFFER}.num=2"], f"{BUFFER}.num", "colocate = false would be right"),
        (
            [f"{BUFFER}.num=2", f"{BUFFER}.colocate=false", "distribution.actor.num=1"],
            f"{BUFFER}.num",
            "num = 1 would be right",
        ),
        (
            [f"{BUFFER}.num=3", f"{BUFFER}.colocate=false", "distribution.actor.num=2"],
            f"{BUFFER}.num",
            "num = 2 would be right",
        ),
        (
            [
                f"{BUFFER}.num=2",
                f"{BUFFER}.colocate=false",
                "distribution.actor.num=2",
                f"{BUFFER}.capacity=998",
            ],
            f"{BUFFER}.capacity",
            "capacity = 1000 would be right",
        ),
        (
            [
                f"{BUFFER}.num=2",
                f"{BUFFER}.colocate=false",
                "distribution.learner.num=2",
                "distribution.actor.num=2",
            ],
            f"{BUFFER}.colocate",
            "colocate = true or distribution.learner.num = 1 would be right",
        ),
        (
            [f"{BUFFER}.colocate=false", 'distribution.transport="inproc"'],
            f"{BUFFER}.colocate",
            'transport = "shm"',
        ),
    ],
    ids=str,
)
def test_settings_that_a_replay_cannot_work_with_are_refused(
    tmp_path: Path, settings: list[str], key: str, right: str
) -> None:
    problem = only_problem(tmp_path, REPLAY, *settings)
    assert problem.where == "--set"
    assert problem.key.startswith(key)
    assert right in problem.remedy


@pytest.mark.parametrize(
    ("settings", "right"),
    [
        ([f"{BUFFER}.capacity=100"], f"{BUFFER}.capacity=1000"),
        ([f"{BUFFER}.capacity=300", "training.batch_size=900"], f"{BUFFER}.capacity=1000"),
        (["distribution.actor.num=41"], f"{BUFFER}.capacity=10496"),
        ([f"{BALANCE}_tolerance=71"], f"{BALANCE}_tolerance=72"),
    ],
    ids=str,
)
def test_what_a_refusal_names_is_accepted(tmp_path: Path, settings: list[str], right: str) -> None:
    name, _, value = right.partition("=")
    assert f"{name.rpartition('.')[2]} = {value}" in str(only_problem(tmp_path, REPLAY, *settings))
    load(tmp_path, REPLAY, *settings, right)


@pytest.mark.parametrize(
    ("setting", "right"),
    [
        ("warmup_steps=63", "warmup_steps = 64 would be right"),
        ("replay_ratio=0.0", "more than 0 is right"),
        ("batch_size=0", "at least 1 is right"),
        ("publish_every=0", "at least 1 is right"),
        ("n_step=0", "1 to 127 is right"),
        ("n_step=128", "1 to 127 is right"),
    ],
)
def test_a_users_own_rule_is_refused_numbers_that_no_replay_can_do_with(
    tmp_path: Path, setting: str, right: str
) -> None:
    (tmp_path / "replay_rule_a.py").write_text(RULE)
    own = REPLAY.replace('type = "dqn"\n[training]', 'type = "dqn"\n[training]\ntype = "replay_rule_a:Rule"')
    problem = only_problem(tmp_path, own, f"training.{setting}")
    assert problem.key == f"training.{setting.partition('=')[0]}"
    assert problem.remedy == right
    assert load(tmp_path, own).learns_from_replay


@given(
    fragment=st.integers(1, 500),
    batch=st.integers(1, 500),
    rho=st.floats(0.1, 50),
    warmup=st.integers(0, 1000),
    seed=st.integers(0, 2**32 - 1),
)
def test_within_the_least_tolerance_that_is_accepted_one_side_may_always_go_on(
    fragment: int, batch: int, rho: float, warmup: int, seed: int
) -> None:
    random = Random(seed)
    balance = RateLimiter(rho, batch + warmup, math.ceil(least_tolerance(fragment, batch, rho)))
    for _ in range(500):
        may_receive, may_consume = balance.may_receive(fragment), balance.may_consume(batch)
        assert may_receive or may_consume
        if may_receive and (not may_consume or random.random() < 0.5):
            balance.received += random.randint(1, fragment)  # Steps that end an episode are no experience.
        else:
            balance.consumed += batch


@pytest.mark.parametrize(
    ("setting", "right"),
    [
        (f"{BUFFER}.capacity=50_000", "did you mean rollouts"),
        (f'{BUFFER}.sampler="prioritised"', "rollouts are used whole"),
        (f"{BUFFER}.priority_exponent=0.5", "leave it out"),
        (f"{BUFFER}.importance_exponent=0.5", "leave it out"),
        (f"{BUFFER}.importance_steps=1000", "leave it out"),
        (f'{BUFFER}.priority_updates="sync"', "leave it out"),
        (f'{BUFFER}.memory="mmap"', "leave it out"),
        (f"{BUFFER}.save_with_checkpoint=true", "leave it out"),
        (f'{BALANCE}="free"', '"held" would be right'),
        (f"{BALANCE}_tolerance=100", "leave it out"),
    ],
)
def test_settings_of_a_replay_are_refused_where_rollouts_are_learnt_from(
    tmp_path: Path, setting: str, right: str
) -> None:
    problem = only_problem(tmp_path, ROLLOUTS, setting)
    assert (problem.where, problem.key) == ("--set", setting.partition("=")[0])
    assert "'ppo'" in problem.what
    assert right in problem.remedy


def test_buffers_of_rollouts_may_be_apart_from_the_learner_unless_actors_wait_for_it(tmp_path: Path) -> None:
    apart = (f"{BUFFER}.colocate=false", f"{BUFFER}.cores=2", f"{BUFFER}.num=2", "distribution.actor.num=2")
    assert load(tmp_path, ROLLOUTS, *apart, f"{BUFFER}.rollouts=4").distribution.buffer.num == 2
    problem = only_problem(tmp_path, ROLLOUTS, *apart, 'distribution.mode="sync"')
    assert problem.key.startswith(f"{BUFFER}.colocate")
    assert problem.remedy == 'colocate = true or mode = "async" would be right'


def test_cores_of_a_buffer_of_rollouts_are_refused(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, ROLLOUTS, f"{BUFFER}.cores=2")
    assert (problem.key, problem.remedy) == (f"{BUFFER}.cores", "cores = 1 would be right")


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_buffer_may_hold_several_rollouts(tmp_path: Path, mode: str) -> None:
    settings = (f"{BUFFER}.rollouts=8", f'distribution.mode="{mode}"')
    assert load(tmp_path, ROLLOUTS, *settings).distribution.buffer.rollouts == 8


def test_the_config_that_a_run_on_rollouts_leaves_behind_runs_again(tmp_path: Path) -> None:
    config = load(tmp_path, ROLLOUTS)
    assert "capacity" in dump_config(config)
    assert load(tmp_path, dump_config(config)) == config


def test_a_buffer_of_its_own_counts_among_those_that_ask_for_cores(tmp_path: Path) -> None:
    parted = load(tmp_path, REPLAY, f"{BUFFER}.colocate=false", "distribution.pin_cores=true")
    assert host_warnings(parted, cores=3) == []
    (warning,) = host_warnings(parted, cores=2)
    assert "learners, buffers and actors ask for 3 cores" in warning
    assert host_warnings(load(tmp_path, REPLAY), cores=2) == []


def test_roles_that_are_not_pinned_are_meant_to_share_cores_but_actors_alone_have_to_find_room(
    tmp_path: Path,
) -> None:
    shared = load(tmp_path, REPLAY, "distribution.actor.num=2", "distribution.pin_cores=false")
    assert host_warnings(shared, cores=2) == []
    (warning,) = host_warnings(shared, cores=1)
    assert "learners and actors ask for 3 cores and there are 1" in warning


def test_roles_find_room_on_all_hosts_together(tmp_path: Path) -> None:
    two = ("distribution.hosts=2", 'distribution.transport={ local = "shm", remote = "zmq" }')
    spread = load(tmp_path, REPLAY, *two, "distribution.actor.num=3", "distribution.pin_cores=true")
    assert host_warnings(spread, cores=2) == []
    (warning,) = host_warnings(spread, cores=1)
    assert "ask for 4 cores and there are 2" in warning


SAMPLER = """
from tianji_cli.roles.buffer.replay.samplers import PrioritisedSampler, UniformSampler

class Own(UniformSampler):
    pass

class Weighted(PrioritisedSampler):
    pass
"""


def test_a_sampler_of_ones_own_is_found_and_says_whether_it_has_priorities(tmp_path: Path) -> None:
    (tmp_path / "my_samplers.py").write_text(SAMPLER)
    own = load(tmp_path, REPLAY, f'{BUFFER}.sampler="my_samplers:Own"')
    assert not own.distribution.buffer.has_priorities
    weighted = (f'{BUFFER}.sampler="my_samplers:Weighted"', f"{BUFFER}.importance_exponent=0.5")
    config = load(tmp_path, REPLAY, *weighted)
    assert config.distribution.buffer.has_priorities
    assert load(tmp_path, dump_config(config)) == config
    refused = only_problem(tmp_path, REPLAY, f'{BUFFER}.sampler="my_samplers:Own"', "agent.priorities=true")
    assert refused.key == "agent.priorities"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("prioritized", "did you mean 'prioritised'?"),
        ("my_samplers:Owm", "did you mean my_samplers:Own?"),
        ("no_samplers:Own", "there is no module 'no_samplers'"),
    ],
)
def test_a_sampler_that_does_not_exist_is_refused(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "my_samplers.py").write_text(SAMPLER)
    problem = only_problem(tmp_path, REPLAY, f'{BUFFER}.sampler="{name}"')
    assert problem.key == f"{BUFFER}.sampler"
    assert what in str(problem)


def test_a_rule_without_a_reward_scale_goes_with_an_agent_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "replay_rule_b.py").write_text(RULE)
    own = REPLAY.replace('type = "dqn"\n[training]', 'type = "dqn"\n[training]\ntype = "replay_rule_b:Rule"')
    prioritised = (f'{BUFFER}.sampler="prioritised"', "agent.priorities=true")
    assert load(tmp_path, own, *prioritised, "agent.priority_reward_scale=0.5").learns_from_replay
    problem = only_problem(tmp_path, own, *prioritised, "training.gamma=0.9")
    assert problem.remedy == "agent.priority_gamma = 0.9 would be right"
