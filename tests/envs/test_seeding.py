"""One seed repeats everything; neither environments nor seeds share a random stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_envs.core import derive_seed
from tianji_envs.gym import GymFactory

Roll = Callable[..., Any]
IDS = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3"]


@pytest.mark.parametrize("env_id", IDS)
def test_the_same_seed_repeats_the_trajectories_past_autoresets(env_id: str, roll: Roll) -> None:
    first = roll(GymFactory().make(env_id, 3, max_episode_steps=40), 130, seed=11)
    again = roll(GymFactory().make(env_id, 3, max_episode_steps=40), 130, seed=11)
    assert (first.terminated | first.truncated).any()
    np.testing.assert_array_equal(first.observation, again.observation)
    np.testing.assert_array_equal(first.reward, again.reward)


@pytest.mark.parametrize("env_id", IDS)
def test_a_second_reset_repeats_the_first(env_id: str, roll: Roll) -> None:
    vector = GymFactory().make(env_id, 2)
    np.testing.assert_array_equal(roll(vector, 30).observation, roll(vector, 30).observation)


@pytest.mark.parametrize("env_id", IDS)
def test_neighbouring_seeds_share_no_environment(env_id: str, roll: Roll) -> None:
    firsts = [roll(GymFactory().make(env_id, 8), 0, seed=seed).observation[0] for seed in (1, 2, 3)]
    assert len(np.unique(np.concatenate(firsts), axis=0)) == 24


@given(st.integers(0, 2**63), st.integers(0, 10_000))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_derived_seed_fits_a_c_int_and_is_repeatable(seed: int, index: int) -> None:
    derived = derive_seed(seed, index)
    assert 0 <= derived < 2**31
    assert derived == derive_seed(seed, index)


def test_the_seeds_of_many_actors_do_not_meet() -> None:
    derived = {derive_seed(seed, index) for seed in range(16) for index in range(64)}
    assert len(derived) == 16 * 64
