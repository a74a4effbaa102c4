"""`tianji train --env ID`: every environment that an agent can act in gets a config that can be trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cli.config.shown_spaces import ACTIONS, NOBODYS, OBSERVATIONS, Slow, Told

from tianji_algos import registry as algorithms
from tianji_algos.models.images import image_shape
from tianji_cli.config import without_file
from tianji_cli.config.defaults import (
    AGENTS,
    REPLAY_BYTES,
    SMALLEST_REPLAY,
    Seen,
    _residual_work,
    defaults,
)
from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.without_file import config_without_file
from tianji_cli.errors import ConfigError, UsageError
from tianji_cli.worker.parts import Parts

OWN = """
from tianji_algos.models.actor_q import GaussianActorQ
from tianji_algos.settings import Settings


class Own(GaussianActorQ):
    class settings_type(Settings):
        width: int = 8
"""
SHOWN = "cli.config.shown_spaces:Shown"
STEERED = {"ppo", "sac", "td3"}
"""Agents that choose real numbers."""
PICTURES = [name for name in OBSERVATIONS if "picture" in name]


@pytest.fixture(autouse=True)
def path_is_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


def fits(agent: str, observation: str, action: str) -> bool:
    acts = {"ppo": set(ACTIONS), "dqn": {"one of"}, "sac": {"numbers"}, "td3": {"numbers"}}[agent]
    return action in acts and observation in OBSERVATIONS


def chosen(agent: str, observation: str, action: str, *overrides: str, cores: int = 2) -> JobConfig:
    spaces = [f"environment.options.observation={observation}", f"environment.options.action={action}"]
    return config_without_file(SHOWN, agent, [*spaces, *overrides], cores)


FITTING = [
    (agent, observation, action)
    for agent in AGENTS
    for observation in OBSERVATIONS
    for action in ACTIONS
    if fits(agent, observation, action)
]


@pytest.mark.parametrize(("agent", "observation", "action"), FITTING)
def test_what_is_chosen_can_be_built(agent: str, observation: str, action: str) -> None:
    config = chosen(agent, observation, action)
    parts = Parts(config)
    model = parts.model()
    parts.agent(model, config.environment.num_envs, 0)
    assert parts.layout.nbytes > 0
    assert algorithms.load("embryo", agent)(parts.spaces, model, config.training.settings, 0)


@pytest.mark.parametrize(
    ("agent", "observation", "action"),
    [
        (agent, observation, action)
        for agent in AGENTS
        for observation in ("numbers", "picture")
        for action in ACTIONS
        if not fits(agent, observation, action)
    ],
)
def test_an_agent_that_cannot_act_there_is_refused_in_a_sentence_with_those_that_can(
    agent: str, observation: str, action: str
) -> None:
    with pytest.raises(UsageError, match=rf"^--agent {agent}: [^\n]+ would be right[^\n]*$"):
        chosen(agent, observation, action)


def settings_of(config: JobConfig) -> dict[str, Any]:
    """All that a config says, but for the names of run and environment."""
    said = config.model_dump(mode="json")
    del said["experiment"]["name"], said["environment"]["type"]
    return said


@pytest.mark.parametrize("agent", AGENTS)
def test_environments_that_show_and_take_the_same_get_the_same_settings(agent: str) -> None:
    action = "numbers" if agent in STEERED else "one of"
    options = [f"environment.options.action={action}"]
    one = config_without_file(SHOWN, agent, options, 2)
    other = config_without_file(SHOWN.replace("Shown", "Other"), agent, options, 2)
    assert settings_of(one) == settings_of(other)
    assert (one.experiment.name, other.experiment.name) == (f"{agent}_Shown", f"{agent}_Other")


@pytest.mark.parametrize(("agent", "observation", "action"), FITTING)
@pytest.mark.parametrize("cores", [1, 2, 3, 5, 64])
def test_more_cores_get_more_actors_and_nothing_else(
    agent: str, observation: str, action: str, cores: int
) -> None:
    seen = Seen(OBSERVATIONS[observation], ACTIONS[action])
    few, many = (defaults(agent, seen, number, 10**6) for number in (1, cores))
    actors = {1: 1, 2: 1, 3: 2, 5: 4, 64: 4}[cores] if agent == "ppo" else 1
    assert many["distribution"]["actor"].pop("num") == actors
    assert few["distribution"]["actor"].pop("num") == 1
    assert few == many


@pytest.mark.parametrize(
    ("agent", "observation", "action", "step_s", "cores", "actors", "num_envs"),
    [
        ("ppo", "numbers", "one of", 2e-5, 64, 4, 16),
        ("ppo", "numbers", "one of", 3e-4, 64, 8, 8),
        ("ppo", "numbers", "one of", 1e-2, 64, 16, 4),
        ("ppo", "numbers", "one of", 1e-2, 12, 8, 8),
        ("ppo", "numbers", "one of", 1e-2, 3, 2, 16),
        ("ppo", "picture", "one of", 1e-3, 64, 4, 16),
        ("ppo", "numbers", "numbers", 2e-5, 64, 4, 4),
        ("ppo", "numbers", "numbers", 1e-2, 64, 16, 1),
        ("dqn", "numbers", "one of", 2e-5, 64, 1, 8),
        ("dqn", "numbers", "one of", 5e-4, 64, 11, 8),
        ("dqn", "numbers", "one of", 1.0, 64, 16, 8),
        ("dqn", "picture", "one of", 5e-4, 64, 1, 8),
        ("sac", "numbers", "numbers", 1e-3, 64, 1, 4),
        ("td3", "numbers", "numbers", 3e-2, 4, 3, 4),
    ],
)
def test_actors_are_as_many_as_the_learner_can_follow(
    agent: str, observation: str, action: str, step_s: float, cores: int, actors: int, num_envs: int
) -> None:
    seen = Seen(OBSERVATIONS[observation], ACTIONS[action], step_s=step_s)
    table = defaults(agent, seen, cores, 10**6)
    assert (table["distribution"]["actor"]["num"], table["environment"]["num_envs"]) == (actors, num_envs)
    if agent == "ppo":
        fragment = num_envs * table["distribution"]["actor"]["send_size"]
        assert table["training"]["rollout_steps"] % (actors * fragment) == 0


@pytest.mark.parametrize(("cores", "actors", "steps"), [(2, 1, False), (8, 7, True)])
def test_an_environment_is_stepped_where_there_are_cores_for_several_actors(
    cores: int, actors: int, steps: bool
) -> None:
    Slow.steps = 0
    config = config_without_file("cli.config.shown_spaces:Slow", "dqn", (), cores)
    assert config.distribution.actor.num.max == actors
    assert (Slow.steps > 0) is steps
    assert Slow.steps < 100


def test_an_environment_that_refuses_random_actions_is_taken_to_be_quick() -> None:
    assert config_without_file("cli.config.shown_spaces:Strict", "dqn", (), 8).distribution.actor.num.max == 1


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 64])
def test_actors_in_step_share_a_rollout_evenly(cores: int) -> None:
    config = chosen("ppo", "numbers", "one of", "distribution.mode=sync", cores=cores)
    assert config.fragments_per_rollout % config.distribution.actor.num.max == 0


def test_bounded_real_numbers_begin_near_one_another_and_in_long_fragments() -> None:
    body = chosen("ppo", "numbers", "numbers")
    assert body.model.settings.model_dump()["initial_log_std"] == -0.5
    assert body.training.settings.model_dump()["learning_rate_schedule"] == "constant"
    assert (body.environment.num_envs, body.distribution.actor.send_size) == (4, 128)
    unbounded = Seen(OBSERVATIONS["numbers"], gym.spaces.Box(-np.inf, np.inf, (2,), np.float32))
    half = Seen(OBSERVATIONS["numbers"], gym.spaces.Box(0.0, np.inf, (2,), np.float32))
    for seen in (unbounded, half, Seen(OBSERVATIONS["picture"], ACTIONS["numbers"])):
        assert "initial_log_std" not in defaults("ppo", seen, 2, 10**6)["model"]
    choice = chosen("ppo", "numbers", "one of")
    assert (choice.environment.num_envs, choice.distribution.actor.send_size) == (16, 32)


def test_networks_and_normalisation_follow_what_is_seen() -> None:
    models = {name: chosen("ppo", name, "one of").model for name in OBSERVATIONS}
    assert {name for name, model in models.items() if model.type == "cnn_actor_critic"} == set(PICTURES)
    encoders = {name: models[name].settings.model_dump()["encoder"] for name in PICTURES}
    assert encoders["picture"] == encoders["large picture"] == "impala_small"
    settings = {name: chosen("ppo", name, "one of").training.settings.model_dump() for name in OBSERVATIONS}
    assert {one["normalize_observations"] for one in settings.values()} == {"auto"}
    assert {one["normalize_rewards"] for one in settings.values()} == {True}


@pytest.mark.parametrize(("name", "kernels"), [("small picture", [4, 3]), ("picture", None)])
def test_the_network_for_images_is_as_large_as_the_machine_learns_with_fast(
    name: str, kernels: list[int] | None
) -> None:
    small = {"encoder": "impala_small"} | ({"kernels": kernels, "strides": [2, 2]} if kernels else {})
    large = {"encoder": "impala_large"}
    for agent, action in (("ppo", "one of"), ("dqn", "one of"), ("sac", "numbers"), ("td3", "numbers")):
        for work_per_s, network in ((5e9, small), (1e13, large)):
            seen = Seen(OBSERVATIONS[name], ACTIONS[action], work_per_s=work_per_s)
            found = defaults(agent, seen, 2, 10**6)["model"]
            assert found.pop("type").startswith("cnn_")
            assert found == network


def test_the_work_of_a_residual_network_is_what_its_layers_multiply() -> None:
    # 4 x 84 x 84: sections at 84, 42 and 21 pixels, blocks at 42, 21 and 11, a layer of 3872 x 256.
    first = 9 * (84**2 * 4 * 16 + 42**2 * 16 * 32 + 21**2 * 32 * 32)
    blocks = 36 * (42**2 * 16**2 + 21**2 * 32**2 + 11**2 * 32**2)
    image = image_shape(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8))
    assert image is not None
    assert _residual_work(image) == first + blocks + 11 * 11 * 32 * 256


def test_the_speed_of_the_machine_is_looked_at_for_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_file, "_work_per_s", lambda: 1e13)
    assert chosen("ppo", "small picture", "one of").model.settings.model_dump()["encoder"] == "impala_large"
    monkeypatch.setattr(without_file, "_work_per_s", lambda: pytest.fail("there is no image"))
    assert chosen("ppo", "numbers", "one of").model.type == "mlp_actor_critic"


def test_a_network_of_one_s_own_takes_the_place_of_the_default_ones(
    tmp_path: Path,
) -> None:
    (tmp_path / "own_network.py").write_text(OWN)
    for name, action in (("small picture", "numbers"), ("numbers", "numbers")):
        config = chosen("sac", name, action, "model.type=own_network:Own", "model.width=5")
        assert config.model.type == "own_network:Own"
        assert config.model.settings.model_dump() == {"width": 5}


def test_a_replay_is_as_large_as_memory_for_its_observations_allows() -> None:
    capacity = {name: chosen("dqn", name, "one of").distribution.buffer.capacity for name in OBSERVATIONS}
    assert capacity["numbers"] == 200_000
    assert capacity["picture"] == REPLAY_BYTES // (84 * 84)
    assert capacity["large picture"] == REPLAY_BYTES // (210 * 160 * 3) >= SMALLEST_REPLAY
    assert chosen("sac", "numbers", "numbers").distribution.buffer.capacity == 1_000_000


def test_schedules_end_with_the_run_and_stay_where_its_end_is_not_known() -> None:
    usual = chosen("dqn", "numbers", "one of")
    assert usual.experiment.stop.targets == {"env_steps": 1_000_000.0}
    assert usual.training.settings.model_dump()["schedule_steps"] == 1_000_000
    short = chosen("dqn", "numbers", "one of", "experiment.stop.env_steps=5e4")
    assert short.training.settings.model_dump()["schedule_steps"] == 50_000
    assert short.agent.settings.model_dump()["epsilon_steps"] == 5_000
    endless = chosen("dqn", "numbers", "one of", "experiment.stop={ wall_s = 9 }")
    assert endless.training.settings.model_dump()["learning_rate_schedule"] == "constant"
    both = chosen("dqn", "numbers", "one of", "experiment.stop.wall_s=9")
    assert both.experiment.stop.targets == {"env_steps": 1_000_000.0, "wall_s": 9.0}


@pytest.mark.parametrize("agent", ["ppo", "dqn", "sac", "td3"])
@pytest.mark.parametrize("steps", [600, 1500, 4000, 9000])
def test_a_short_run_has_updates(agent: str, steps: int) -> None:
    action = "one of" if agent == "dqn" else "numbers"
    training = chosen(agent, "numbers", action, f"experiment.stop.env_steps={steps}").training.settings
    said = training.model_dump()
    assert said["batch_size" if agent != "ppo" else "minibatch_size"] <= said.get("warmup_steps", steps)
    assert said.get("warmup_steps", said.get("rollout_steps")) <= steps // 2
    usual = chosen(agent, "numbers", action).training.settings.model_dump()
    assert usual.get("warmup_steps", usual.get("rollout_steps")) >= 2000


def test_set_wins_over_defaults_and_the_config_loads_again_as_it_is(tmp_path: Path) -> None:
    config = chosen("ppo", "numbers", "numbers", "training.gamma=0.9", "experiment.name=mine")
    assert config.training.settings.model_dump()["gamma"] == 0.9
    assert config.experiment.name == "mine"
    (tmp_path / "config.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "config.toml")) == config


def test_ids_of_gymnasium_come_first_and_games_of_atari_after_them() -> None:
    cartpole = config_without_file("CartPole-v1", "ppo", (), 2)
    assert (cartpole.environment.type, cartpole.environment.id) == ("gym", "CartPole-v1")
    pytest.importorskip("ale_py")
    pong = config_without_file("Pong", "dqn", (), 2)
    assert (pong.environment.type, pong.environment.id) == ("atari", "Pong")
    assert pong.model.type == "cnn_q"
    assert pong.experiment.stop.env_steps == 10_000_000


@pytest.mark.parametrize(
    ("env", "override", "said"),
    [
        ("CartPol-v1", "", "--env: environment.id: gymnasium has no environment 'CartPol-v1'; did you mean"),
        ("no_such_module:X", "", "--env: environment.type: environment type 'no_such_module:X': there is no"),
        ("CartPole-v1", "environment.id=Acrobot-v1", "--set: environment.id: --env says it; leave one"),
        ("CartPole-v1", "agent.type=dqn", "--set: agent.type: --agent says it; leave one of them out"),
        ("CartPole-v1", 'agent={ type = "dqn" }', "--set: agent.type: --agent says it; leave one"),
        (
            "Pong",
            'environment.metrics=["lives"]',
            "--set: environment.metrics: type 'atari' makes no gymnasium",
        ),
        ("CartPole-v1", 'environment.wrappers=["ClipRewad"]', "--set: environment.wrappers[0]: "),
        (SHOWN.replace("Shown", "Shwn"), "", "--env: environment.type: "),
        ("CartPole-v1", "environment=3", "--set: environment: 3 is no section; write [environment]"),
        ("CartPole-v1", "environment.num_env=3", "--set: environment.num_env: unknown key; did you mean"),
        ("CartPole-v1", "training.gama=3", "--set: training.gama: unknown key; did you mean 'gamma'?"),
        ("CartPole-v1", "training.rollout_steps=1000", "--set: training.rollout_steps: a rollout of 1000"),
        ("CartPole-v1", "experiment.stop.env_steps=2", "--set: experiment.stop.env_steps: 2 steps end"),
    ],
)
def test_what_does_not_fit_is_one_line_that_names_the_option(env: str, override: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_without_file(env, "ppo", [override] if override else [], 2)
    [line] = str(refused.value).splitlines()
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("env", "agent", "said"),
    [
        ("CartPole-v1", "pppo", "--agent pppo: no such agent; did you mean 'ppo'?"),
        ("CartPole-v1", "impala", "--agent impala: it has no defaults; ppo, dqn, sac or td3 has"),
        (SHOWN.replace("Shown", "Team"), "ppo", "'ppo' acts for a single agent, and cli.config.shown_spaces"),
    ],
)
def test_where_no_defaults_are_possible_a_sentence_says_why(env: str, agent: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        config_without_file(env, agent, (), 2)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("action", NOBODYS)
def test_actions_that_no_agent_chooses_are_refused_with_what_would_be_right(agent: str, action: str) -> None:
    with pytest.raises(
        UsageError, match=f"--agent {agent}: no agent chooses from .*a Box of floats would be"
    ):
        chosen(agent, "numbers", action)


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_another_model_brings_its_own_defaults(agent: str) -> None:
    model = {"ppo": "recurrent_actor_critic", "dqn": "mlp_q"}[agent]
    config = chosen(agent, "picture", "one of", f"model.type={model}")
    assert config.model.type == model
    assert config.model.settings == algorithms.settings_type("model", model)()


def test_a_failure_names_the_environment_once() -> None:
    with pytest.raises(UsageError) as refused:
        config_without_file(SHOWN, "ppo", ["environment.options.observations=numbers"], 2)
    assert str(refused.value).startswith(f"--env {SHOWN} cannot be built with options ")


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_a_mask_in_the_info_is_shown_to_agents(agent: str) -> None:
    config = config_without_file("Taxi-v4", agent, (), 2)
    assert [wrapper.type for wrapper in config.environment.wrappers] == ["ActionMask"]
    assert not config_without_file("FrozenLake-v1", agent, (), 2).environment.wrappers
    own = config_without_file("Taxi-v4", agent, ["environment.wrappers=[]"], 2)
    assert not own.environment.wrappers


@pytest.mark.parametrize(("flags", "wrappers", "built"), [(0, [], 1), (2, ["ActionMask"], 2)])
def test_an_environment_is_built_again_only_where_it_gets_a_wrapper(
    flags: int, wrappers: list[str], built: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "built", 0)
    told = SHOWN.replace("Shown", "Told")
    config = config_without_file(told, "ppo", [f"environment.options.flags={flags}"], 2)
    assert [wrapper.type for wrapper in config.environment.wrappers] == wrappers
    assert Told.built == built


def test_a_mask_of_another_number_of_actions_is_refused() -> None:
    with pytest.raises(UsageError, match=r"of shape \(3,\) in its info for 2 actions; \(2,\) would be right"):
        config_without_file(SHOWN.replace("Shown", "Told"), "ppo", ["environment.options.flags=3"], 2)


def test_a_function_that_makes_a_base_env_needs_no_file() -> None:
    config = config_without_file(SHOWN.replace("Shown", "make"), "dqn", (), 2)
    assert not config.environment.wrappers


def test_observations_of_several_parts_have_defaults() -> None:
    config = config_without_file("Blackjack-v1", "ppo", (), 2)
    assert config.model.type == "mlp_actor_critic"
    assert config.training.settings.normalize_observations == "auto"
