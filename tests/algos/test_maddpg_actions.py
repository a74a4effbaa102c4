from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from algos.maddpg_team import CONTINUOUS, DISCRETE, SIZES, actions, records

from tianji_algos.core import Spaces
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.maddpg.maddpg import TeamActions, team_actions

CPU = torch.device("cpu")
ROWS = 50


def rules(spaces: Spaces, temperature: float = 1.0, seed: int = 0) -> TeamActions:
    return team_actions(spaces, temperature, np.random.default_rng(seed), CPU)


def logits(*shape: int) -> torch.Tensor:
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(0))


def test_recorded_actions_are_one_hot_to_critics() -> None:
    done = rules(DISCRETE).done(torch.tensor([[1, 3, 2], [0, 0, 1]], dtype=torch.uint8))
    assert done.shape == (3, 2, 4)
    assert done.argmax(dim=2).T.tolist() == [[1, 3, 2], [0, 0, 1]]
    assert done.sum() == 6.0


def test_drawn_actions_are_one_hot_and_available() -> None:
    available = torch.from_numpy(records(DISCRETE, ROWS, alive=0.7)["available"]).transpose(0, 1)
    for temperature in (0.1, 1.0, 10.0):
        chosen = rules(DISCRETE, temperature).chosen(logits(3, ROWS, 4), available)
        assert set(chosen.unique().tolist()) == {0.0, 1.0}
        assert (chosen.sum(dim=2) == 1.0).all()
        assert (chosen[~available] == 0.0).all()


def test_actions_are_drawn_as_often_as_the_policy_says() -> None:
    policy = torch.tensor([1.0, 0.0, -1.0, 3.0])
    available = torch.tensor([True, True, True, False])
    chosen = rules(DISCRETE).chosen(policy.expand(1, 20_000, 4), available.expand(1, 20_000, 4))
    expected = torch.softmax(policy[:3], dim=0)
    np.testing.assert_allclose(chosen.mean(dim=(0, 1))[:3], expected, atol=0.015)


def test_the_gradient_of_a_drawn_action_is_that_of_its_softmax() -> None:
    available = torch.from_numpy(records(DISCRETE, ROWS)["available"]).transpose(0, 1)
    worth, temperature = logits(3, ROWS, 4), 0.7
    outputs = torch.zeros(3, ROWS, 4).requires_grad_()
    chosen = rules(DISCRETE, temperature).chosen(outputs, available)
    (found,) = torch.autograd.grad((chosen * worth).sum(), outputs)
    noise = np.random.default_rng(0).standard_exponential((3, ROWS, 4), dtype=np.float32)
    soft = torch.zeros(3, ROWS, 4).requires_grad_()
    scores = (soft - torch.from_numpy(np.log(noise))) / temperature
    (expected,) = torch.autograd.grad(
        (torch.softmax(scores.masked_fill(~available, -torch.inf), dim=2) * worth).sum(), soft
    )
    torch.testing.assert_close(found, expected)
    assert (found[~available] == 0.0).all()
    assert found.abs().sum() > 0.0


def test_a_lower_temperature_lets_fewer_actions_have_a_part_in_a_gradient() -> None:
    sizes = []
    for temperature in (0.1, 1.0):
        outputs = logits(3, ROWS, 4).requires_grad_()
        chosen = rules(DISCRETE, temperature).chosen(outputs, None)
        (gradient,) = torch.autograd.grad((chosen * logits(3, ROWS, 4)).sum(), outputs)
        sizes.append(float((gradient.abs() > 1e-3).float().mean()))
    assert sizes[0] < 0.5 < sizes[1]


def test_the_entropy_is_of_the_available_actions() -> None:
    available = torch.ones(1, 2, 4, dtype=torch.bool)
    available[0, 1, 1:] = False
    entropy = rules(DISCRETE).entropy(torch.zeros(1, 2, 4), available)
    np.testing.assert_allclose(entropy, [[np.log(4.0), 0.0]], rtol=1e-6)


def test_continuous_actions_reach_critics_between_minus_one_and_one() -> None:
    space = CONTINUOUS.action
    assert isinstance(space, gym.spaces.Box)
    bounds = torch.from_numpy(np.stack([space.low, space.high]))
    low, high = rules(CONTINUOUS).done(bounds).unbind(1)
    exists = torch.from_numpy(np.arange(4) < np.array(SIZES)[:, None])
    torch.testing.assert_close(high, exists.float())
    torch.testing.assert_close(low, -exists.float())


def test_continuous_policies_are_tanh_and_leave_missing_numbers_out() -> None:
    outputs = logits(3, ROWS, 4)
    chosen = rules(CONTINUOUS).chosen(outputs, None)
    for m, size in enumerate(SIZES):
        torch.testing.assert_close(chosen[m, :, :size], outputs[m, :, :size].tanh())
        assert (chosen[m, :, size:] == 0.0).all()


def test_what_was_recorded_of_a_policy_is_what_the_policy_does() -> None:
    recorded = actions(CONTINUOUS, records(CONTINUOUS, ROWS))
    done = rules(CONTINUOUS).done(torch.from_numpy(recorded))
    assert done.abs().max() <= 1.0 + 1e-6
    torch.testing.assert_close(rules(CONTINUOUS).chosen(torch.atanh(done * 0.999), None), done * 0.999)


def test_actions_without_bounds_are_refused() -> None:
    unbounded = gym.spaces.Box(-np.inf, np.inf, (3, 4), np.float32)
    with pytest.raises(UnsupportedSpaceError, match="finite low and high would be right"):
        rules(Spaces(CONTINUOUS.observation, unbounded))
