from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.fragments import Array, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tianji_algos.fast_cpu import impala as fast_cpu_impala
from tianji_algos.impala import impala
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.ppo.ppo import estimate_advantages

Doubles = npt.NDArray[np.float64]
RATIOS = st.floats(0, 4, width=32)
PLAIN = IMPALASettings(gamma=0.9, rho_bar=1.0, c_bar=1.0, pg_rho_bar=1.0, vtrace_lambda=1.0)


@st.composite
def acted_otherwise(draw: st.DrawFn) -> dict[str, Array]:
    """Trajectories with how likely their actions are by now."""
    trajectory = draw(trajectories())
    trajectory["ratio"] = draw(arrays(np.float32, trajectory["reward"].shape, elements=RATIOS))
    return trajectory


def compute(vtrace: IMPALASettings, trajectory: dict[str, Array]) -> tuple[Array, Array]:
    """The result in numpy, once it is equal to the result in torch."""
    arrays = {name: array for name, array in trajectory.items() if name != "truncated"}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for name in ("terminated", "mask"):
        tensors[name] = tensors[name].bool()
    found = fast_cpu_impala.v_trace(vtrace, **arrays)
    for ours, theirs in zip(found, impala.v_trace(vtrace, **tensors), strict=True):
        scale = 1e-5 * (1.0 + np.abs(ours).max())
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=scale)
        assert not theirs[~tensors["mask"]].any()
    return found


def by_definition(vtrace: IMPALASettings, trajectory: dict[str, Array]) -> tuple[Doubles, Doubles]:
    """Equation 1 as it stands: for each s a sum over t of gamma^(t-s), a product of c_i, and delta_t V.

    Returns v_s - V(x_s), and rho_s (r_s + gamma v_{s+1} - V(x_s)) of section 4.2.
    """
    value = trajectory["value"].astype(np.float64)
    steps, envs = trajectory["reward"].shape
    target, advantage = value.copy(), np.zeros((steps, envs))
    for n in range(envs):
        ratio, reward = (trajectory[name][:, n].astype(np.float64) for name in ("ratio", "reward"))
        ends = trajectory["terminated"][:, n] | trajectory["truncated"][:, n]
        is_step = trajectory["mask"][:, n]

        def following(t: int, values: Doubles, n: int = n) -> float:
            return 0.0 if trajectory["terminated"][t, n] else float(values[t + 1, n])

        for s in np.flatnonzero(is_step):
            last = next((t for t in range(s, steps) if ends[t]), steps - 1)
            for t in range(s, last + 1):
                rho = min(vtrace.rho_bar, ratio[t])
                delta = rho * (reward[t] + vtrace.gamma * following(t, value) - value[t, n])
                c = [vtrace.vtrace_lambda * min(vtrace.c_bar, ratio[i]) for i in range(s, t)]
                target[s, n] += vtrace.gamma ** (t - s) * prod(c) * delta
        for s in np.flatnonzero(is_step):
            # What follows an episode's last step is no step of it: nothing is learned of its value.
            goal = reward[s] + vtrace.gamma * following(s, value if ends[s] else target)
            advantage[s, n] = min(vtrace.pg_rho_bar, ratio[s]) * (goal - value[s, n])
    return target[:-1] - value[:-1], advantage


@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    acted_otherwise(),
    st.builds(
        IMPALASettings.model_construct,  # Unchecked: c_bar may be above rho_bar.
        gamma=st.sampled_from([0.0, 0.9, 1.0]),
        rho_bar=st.sampled_from([0.5, 1.0, 3.0]),
        c_bar=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        pg_rho_bar=st.sampled_from([0.5, 1.0, 3.0]),
        vtrace_lambda=st.sampled_from([0.0, 0.9, 1.0]),
    ),
)
def test_targets_are_the_sums_of_products_of_their_definition(
    trajectory: dict[str, Array], vtrace: IMPALASettings
) -> None:
    found, expected = compute(vtrace, trajectory), by_definition(vtrace, trajectory)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == np.float32
        scale = 1e-5 * (1.0 + np.abs(theirs).max() + np.abs(expected[0]).max())
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=scale)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(acted_otherwise())
def test_on_policy_and_with_lambda_1_targets_are_n_step_returns(trajectory: dict[str, Array]) -> None:
    trajectory["ratio"][...] = 1.0
    error, advantage = compute(PLAIN, trajectory)
    returns = trajectory["value"].astype(np.float64)
    for t in reversed(range(len(error))):
        of_next = np.where(trajectory["truncated"][t], trajectory["value"][t + 1], returns[t + 1])
        of_next = np.where(trajectory["terminated"][t], 0.0, of_next)
        step = trajectory["reward"][t] + PLAIN.gamma * of_next
        returns[t] = np.where(trajectory["mask"][t], step, trajectory["value"][t])
    expected = returns[:-1] - trajectory["value"][:-1]
    np.testing.assert_allclose(error, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-3)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(acted_otherwise(), st.sampled_from([0.0, 0.8, 1.0]))
def test_on_policy_the_values_move_by_generalised_advantages(
    trajectory: dict[str, Array], decay: float
) -> None:
    trajectory["ratio"][...] = 1.0
    error, _ = compute(PLAIN.model_copy(update={"vtrace_lambda": decay}), trajectory)
    given = {name: trajectory[name] for name in ("reward", "value", "terminated", "mask")}
    expected = estimate_advantages(**given, gamma=PLAIN.gamma, gae_lambda=decay)
    np.testing.assert_allclose(error, expected, rtol=1e-4, atol=1e-3)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(acted_otherwise())
def test_reset_steps_count_nowhere_and_have_no_targets(trajectory: dict[str, Array]) -> None:
    before = compute(PLAIN, trajectory)
    resets = ~trajectory["mask"]
    for name, nonsense in (("ratio", 1e6), ("reward", -1e6)):
        trajectory[name][resets] = nonsense
    for clean, disturbed in zip(before, compute(PLAIN, trajectory), strict=True):
        np.testing.assert_array_equal(clean, disturbed)
        assert not disturbed[resets].any()


def one_episode(ratio: list[float], *, terminates: bool, followed_by: float = 7.0) -> dict[str, Array]:
    """An episode that ends with its second step, the reset, and a step of the next; all rewards are 1."""
    return {
        "ratio": np.array(ratio, np.float32)[:, None],
        "reward": np.ones((4, 1), np.float32),
        "value": np.array([[2.0], [3.0], [followed_by], [0.0], [100.0]], np.float32),
        "terminated": np.array([[0], [terminates], [0], [0]], np.uint8),
        "mask": np.array([[1], [1], [0], [1]], np.uint8),
    }


@pytest.mark.parametrize(("terminates", "following"), [(True, 0.0), (False, 7.0)])
def test_truncation_bootstraps_from_the_last_observation_and_termination_does_not(
    terminates: bool, following: float
) -> None:
    error, _ = compute(PLAIN, one_episode([1.0, 1.0, 1.0, 1.0], terminates=terminates))
    of_second = 1.0 + 0.9 * following
    np.testing.assert_allclose(
        error[:, 0], [1.0 + 0.9 * of_second - 2.0, of_second - 3.0, 0.0, 1.0 + 90.0], rtol=1e-5
    )


def test_an_action_that_is_no_more_taken_has_no_say_and_hides_what_followed_it() -> None:
    error, advantage = compute(PLAIN, one_episode([0.0, 1.0, 1.0, 1.0], terminates=True))
    assert (error[0, 0], advantage[0, 0]) == (0.0, 0.0)
    assert error[1, 0] == -2.0
    error, _ = compute(PLAIN, one_episode([1.0, 0.0, 1.0, 1.0], terminates=True))
    np.testing.assert_allclose(error[:2, 0], [1.0 + 0.9 * 3.0 - 2.0, 0.0], rtol=1e-5)


@pytest.mark.parametrize("level", ["rho_bar", "c_bar", "pg_rho_bar"])
def test_each_level_truncates_what_it_is_for(level: str) -> None:
    likely = one_episode([2.0, 2.0, 1.0, 1.0], terminates=True)
    levels = {"rho_bar": 3.0, "c_bar": 3.0, "pg_rho_bar": 3.0} | {level: 1.0}
    error, advantage = compute(IMPALASettings.model_construct(gamma=1.0, vtrace_lambda=1.0, **levels), likely)
    rho, c, of_policy = (min(levels[name], 2.0) for name in ("rho_bar", "c_bar", "pg_rho_bar"))
    second = rho * (1.0 - 3.0)
    first = rho * (1.0 + 3.0 - 2.0) + c * second
    np.testing.assert_allclose(error[:2, 0], [first, second], rtol=1e-5)
    np.testing.assert_allclose(
        advantage[:2, 0], [of_policy * (1.0 + 3.0 + second - 2.0), of_policy * -2.0], rtol=1e-5
    )
