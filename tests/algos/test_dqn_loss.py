"""DQN's loss in torch, and what was derived by hand from it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.dqn_batches import build, make_batch
from hypothesis import given
from hypothesis import strategies as st

from tianji_algos.core import Spaces
from tianji_algos.dqn import dqn
from tianji_algos.dqn.dqn import pick, td_loss
from tianji_algos.fast_cpu import dqn as fast_cpu_dqn
from tianji_algos.fast_cpu.dqn import TDLossByHand

Floats = npt.NDArray[np.float32]
B, A = 24, 3


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ACTION = np.random.default_rng(1).integers(A, size=B).astype(np.uint8)
WEIGHT = np.abs(random(B, seed=2))
TARGET = random(B, seed=3) * 2.0

CASES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**20),
        "rows": st.integers(1, 40),
        "actions": st.integers(1, 5),
        "delta": st.sampled_from([None, 1.0, 0.25]),
        "double": st.booleans(),
        "scale": st.floats(0.1, 5.0),
        "feature_major": st.booleans(),
        "network": st.sampled_from([{}, {"dueling": True}, {"dueling": True, "stream_hidden": (6,)}]),
    }
)


@given(CASES)
def test_the_derivative_by_hand_is_that_of_the_loss(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    rows, actions, delta = case["rows"], case["actions"], case["delta"]
    q, target = (case["scale"] * rng.standard_normal(shape, np.float32) for shape in ((rows, actions), rows))
    q = np.asfortranarray(q) if case["feature_major"] else q
    action = rng.integers(actions, size=rows).astype(np.min_scalar_type(actions - 1))
    weight = rng.random(rows, np.float32)
    by_hand = TDLossByHand(delta)
    by_hand.gradient(random(rows, actions), action, target, weight)  # What follows is over used memory.
    d_q, diagnostics = by_hand.gradient(q, action, target, weight)
    variable = torch.tensor(q, requires_grad=True)
    loss, expected, errors = td_loss(
        variable, torch.from_numpy(action), torch.from_numpy(target), torch.from_numpy(weight), delta
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert variable.grad is not None
    np.testing.assert_allclose(d_q, variable.grad, rtol=1e-4, atol=1e-6)
    assert diagnostics == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(by_hand.errors, errors, rtol=1e-4, atol=1e-5)


@given(CASES)
def test_an_update_is_the_same_by_hand_and_in_torch(case: dict[str, Any]) -> None:
    spaces = Spaces(gym.spaces.Box(-1.0, 1.0, (4,), np.float32), gym.spaces.Discrete(2))
    chosen: dict[str, Any] = {"double": case["double"], "reward_scale": case["scale"]}
    chosen |= {"loss": "mse"} if case["delta"] is None else {"huber_delta": case["delta"]}
    found = []
    for backend in ("torch", "numpy"):
        embryo = build(spaces, network=case["network"], backend=backend, **chosen)
        with torch.no_grad():  # The target network differs, and the online one would choose otherwise.
            for parameter in embryo._target.model.parameters():
                parameter.neg_()
        result = embryo.update(make_batch(case["seed"], case["rows"]))
        found.append((embryo._optimizer.gradient, result.priorities, embryo.metrics()))
    (expected, errors, numbers), (gradient, own_errors, own_numbers) = found
    size = 1.0 + float(expected.abs().max())
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=2e-5 * size)
    np.testing.assert_allclose(own_errors, errors, rtol=1e-3, atol=1e-4 * size)
    assert own_numbers == pytest.approx(numbers, rel=1e-3, abs=1e-4 * size)


def test_a_sample_without_weight_teaches_nothing() -> None:
    d_q, _ = TDLossByHand(1.0).gradient(random(B, A), ACTION, TARGET, np.zeros(B, np.float32))
    assert not d_q.any()


def test_plain_targets_take_the_maximum_and_double_ones_the_choosers_action() -> None:
    next_q, chooser = random(B, A), random(B, A, seed=9)
    plain = [max(row) for row in next_q.tolist()]
    double = [next_q[i, int(np.argmax(chooser[i]))] for i in range(B)]
    assert plain != double
    for module, from_array in ((fast_cpu_dqn, np.asarray), (dqn, torch.from_numpy)):
        values, choices = from_array(next_q), from_array(chooser)  # type: ignore[operator]
        assert module.bootstrap(values, values).tolist() == plain
        assert module.bootstrap(values, choices).tolist() == double


@pytest.mark.parametrize("actions", [3, 300])
def test_each_row_is_asked_for_its_own_action(actions: int) -> None:
    action = np.random.default_rng(0).integers(actions, size=500).astype(np.min_scalar_type(actions - 1))
    for q in (random(500, actions), random(actions, 500).T):
        taken, where = pick(q, action)
        np.testing.assert_array_equal(taken, [q[i, action[i]] for i in range(500)])
        np.testing.assert_array_equal(q.T.reshape(-1)[where], taken)
