from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tianji_algos.dqn.dqn import DQNLoss, bootstrap, pick

Floats = npt.NDArray[np.float32]
B, A = 24, 3


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ACTION = np.random.default_rng(1).integers(A, size=B).astype(np.uint8)
WEIGHT = np.abs(random(B, seed=2))
TARGET = random(B, seed=3) * 2.0


@pytest.mark.parametrize("delta", [None, 1.0, 0.25])
@pytest.mark.parametrize("feature_major", [False, True])
def test_the_gradient_is_autograds(delta: float | None, feature_major: bool) -> None:
    q = random(A, B).T if feature_major else random(B, A)
    loss = DQNLoss(delta)
    for _ in range(2):  # the second time over used memory
        d_q, (mean_loss, mean_q, td_error) = loss.gradient(q, ACTION, TARGET, WEIGHT)
        variable = torch.tensor(q, requires_grad=True)
        taken = variable.gather(1, torch.from_numpy(ACTION.astype(np.int64))[:, None])[:, 0]
        target = torch.from_numpy(TARGET)
        if delta is None:
            each = 0.5 * torch.nn.functional.mse_loss(taken, target, reduction="none")
        else:
            each = torch.nn.functional.huber_loss(taken, target, reduction="none", delta=delta)
        expected = (torch.from_numpy(WEIGHT) * each).mean()
        expected.backward()
        assert variable.grad is not None
        np.testing.assert_allclose(d_q, variable.grad, rtol=1e-4, atol=1e-6)
        assert mean_loss == pytest.approx(expected.item(), rel=1e-4)
        assert mean_q == pytest.approx(taken.mean().item(), rel=1e-4, abs=1e-5)
        np.testing.assert_allclose(loss.errors, (taken - target).abs().detach(), rtol=1e-4, atol=1e-5)
        assert td_error == pytest.approx(loss.errors.mean(), rel=1e-4)


def test_a_sample_without_weight_teaches_nothing() -> None:
    d_q, _ = DQNLoss(1.0).gradient(random(B, A), ACTION, TARGET, np.zeros(B, np.float32))
    assert not d_q.any()


def test_plain_targets_take_the_maximum_and_double_ones_the_choosers_action() -> None:
    next_q, chooser = random(B, A), random(B, A, seed=9)
    plain = [max(row) for row in next_q.tolist()]
    double = [next_q[i, int(np.argmax(chooser[i]))] for i in range(B)]
    np.testing.assert_array_equal(bootstrap(next_q, next_q), np.array(plain, np.float32))
    np.testing.assert_array_equal(bootstrap(next_q, chooser), np.array(double, np.float32))
    assert (bootstrap(next_q, chooser) < bootstrap(next_q, next_q)).any()


@pytest.mark.parametrize("actions", [3, 300])
def test_each_row_is_asked_for_its_own_action(actions: int) -> None:
    action = np.random.default_rng(0).integers(actions, size=500).astype(np.min_scalar_type(actions - 1))
    for q in (random(500, actions), random(actions, 500).T):
        taken, where = pick(q, action)
        np.testing.assert_array_equal(taken, [q[i, action[i]] for i in range(500)])
        np.testing.assert_array_equal(q.T.reshape(-1)[where], taken)
