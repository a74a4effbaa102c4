"""Hyperparameters of a population's members: drawn and perturbed within their ranges, and no other key."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_algos.ppo.settings import PPOSettings
from tianji_cli.config.loader import dump_config, load_config, parse_config
from tianji_cli.config.population import Explorer, config_with
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError
from tianji_cli.root.observers.population import first_members

CONFIG = """
[experiment]
stop = { env_steps = 100_000 }
[environment]
type = "gym"
id = "CartPole-v1"
[agent]
type = "ppo"
[training]
normalize_rewards = false
[distribution]
groups = 3
[population]
interval = 1000
[population.perturb]
training.learning_rate = { low = 1e-5, high = 1e-2, log = true, initial = [1e-5, 1e-3, 1e-2] }
training.epochs = { low = 1, high = 8 }
training.gamma = { choices = [0.9, 0.99, 0.999] }
training.clip_range = { low = 0.1, high = 0.3, factors = [0.5, 2.0] }
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    return load(tmp_path_factory.mktemp("population"))


def load(place: Path, *settings: str) -> JobConfig:
    file = place / "config.toml"
    file.write_text(CONFIG)
    return load_config(str(file), settings)


def test_members_begin_with_what_the_config_says_or_with_draws_by_the_seed(
    tmp_path: Path,
) -> None:
    one, again, other = (first_members(load(tmp_path, f"experiment.seed={seed}")) for seed in (1, 1, 2))
    assert one == again != other
    assert [member["training.learning_rate"] for member in one] == [1e-5, 1e-3, 1e-2]
    assert all(1 <= member["training.epochs"] <= 8 for member in one)


@given(seed=st.integers(0, 1000))
def test_hyperparameters_stay_in_their_ranges_and_settings_take_them(config: JobConfig, seed: int) -> None:
    explorer, rng = Explorer(config), np.random.default_rng(seed)
    own: dict[str, Any] = dict(explorer.first(3, rng)[seed % 3])
    for _ in range(20):
        own = explorer.near(own, rng)
        assert 1e-5 <= own["training.learning_rate"] <= 1e-2
        assert own["training.epochs"] in range(1, 9)
        assert type(own["training.epochs"]) is int
        assert own["training.gamma"] in {0.9, 0.99, 0.999}
        assert 0.1 <= own["training.clip_range"] <= 0.3
        settings = config_with(config, own).training.settings
        assert isinstance(settings, PPOSettings)
        assert settings.learning_rate == own["training.learning_rate"]
        assert settings.minibatch_size == PPOSettings().minibatch_size


def test_without_drawing_anew_a_step_is_one_of_the_factors_or_to_a_choice_beside(tmp_path: Path) -> None:
    explorer = Explorer(load(tmp_path, "population.resample=0.0"))
    own = {
        "training.learning_rate": 1e-3,
        "training.epochs": 4,
        "training.gamma": 0.9,
        "training.clip_range": 0.1,
    }
    near = [explorer.near(own, np.random.default_rng(seed)) for seed in range(50)]
    assert {round(one["training.learning_rate"], 6) for one in near} == {0.8e-3, 1.25e-3}
    assert {one["training.epochs"] for one in near} == {3, 5}
    assert {one["training.gamma"] for one in near} == {0.9, 0.99}
    assert {one["training.clip_range"] for one in near} == {0.1, 0.2}


@pytest.mark.parametrize(("epochs", "near"), [(1, {1, 2}), (2, {1, 3}), (3, {2, 4}), (8, {6, 8})])
def test_small_whole_numbers_go_both_ways(tmp_path: Path, epochs: int, near: set[int]) -> None:
    explorer = Explorer(load(tmp_path, "population.resample=0.0"))
    drawn = [explorer.near({"training.epochs": epochs}, np.random.default_rng(seed)) for seed in range(50)]
    assert {one["training.epochs"] for one in drawn} == near


def test_a_population_survives_being_written_and_read(config: JobConfig) -> None:
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("distribution.learner.num=2", "a member has one learner"),
        ('population.perturb={"training.gamma"={low=0.9,high=0.99,initial=[0.9]}}', "there are 3 members"),
        (
            'population.perturb={"training.gamma"={low=0.9,high=0.99,initial=[1,1,1]}}',
            "1 is not among",
        ),
        (
            'population.perturb={"training.epochs"={low=1,high=4,initial=[1,1.5,2]}}',
            "1.5 is out of its range",
        ),
        ('population.perturb={"training.gamma"={choices=[0.9],factors=[2.0]}}', "choices are not multiplied"),
        ('population.perturb={"training.gamma"={low=0.9}}', "a range has low and high"),
        ('population.perturb={"model.hidden"={choices=[[1],[2]]}}', "it is part of the plan they share"),
        ("population.fraction=0.6", "population.fraction"),
        ("training.normalize_rewards=true", ""),
    ],
)
def test_what_members_cannot_have_is_refused(tmp_path: Path, setting: str, said: str) -> None:
    more = ['population.perturb={"training.gamma"={low=0.9,high=0.99}}'] if not said else []
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, setting, *more)
    assert (said or "actors scale rewards by returns of this discount") in str(refused.value)
