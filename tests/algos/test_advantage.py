from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from algos.fragments import Fragment, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_algos.ppo.ppo import estimate_advantages


def without_rewards_of_resets(trajectory: Fragment) -> Fragment:
    return trajectory | {"reward": trajectory["reward"] * trajectory["mask"]}


def sum_of_discounted_errors(rollout: Fragment, gamma: float, gae_lambda: float) -> npt.NDArray[np.float64]:
    """Equation 16 by its definition: one sum per step, ended by the episode's end or the fragment's."""
    steps, envs = rollout["reward"].shape
    value = rollout["value"].astype(np.float64)
    advantage = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            if not rollout["mask"][t, n]:
                continue
            weight = 1.0
            for later in range(t, steps):
                following = 0.0 if rollout["terminated"][later, n] else value[later + 1, n]
                delta = rollout["reward"][later, n] + gamma * following - value[later, n]
                advantage[t, n] += weight * delta
                weight *= gamma * gae_lambda
                if rollout["terminated"][later, n] or rollout["truncated"][later, n]:
                    break
    return advantage


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    trajectories().map(without_rewards_of_resets),
    st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    st.sampled_from([0.0, 0.8, 1.0]),
)
def test_advantages_are_the_discounted_sums_of_their_definition(
    rollout: Fragment, gamma: float, gae_lambda: float
) -> None:
    given = {name: rollout[name] for name in ("reward", "value", "terminated", "mask")}
    advantage = estimate_advantages(**given, gamma=gamma, gae_lambda=gae_lambda)
    assert advantage.dtype == np.float32
    np.testing.assert_allclose(
        advantage, sum_of_discounted_errors(rollout, gamma, gae_lambda), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("terminates", "following"), [(True, 0.0), (False, 7.0)])
def test_truncation_bootstraps_from_the_last_observation_and_termination_does_not(
    terminates: bool, following: float
) -> None:
    advantage = estimate_advantages(
        reward=np.array([[1.0], [0.0]], np.float32),
        value=np.array([[2.0], [7.0], [100.0]], np.float32),
        terminated=np.array([[terminates], [False]]),
        mask=np.array([[1], [0]], np.uint8),
        gamma=0.5,
        gae_lambda=1.0,
    )
    np.testing.assert_allclose(advantage, [[1.0 + 0.5 * following - 2.0], [0.0]])
