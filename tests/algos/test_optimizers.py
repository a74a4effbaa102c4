from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tianji_algos.errors import DivergedError
from tianji_algos.optim import Adam, Optimizer, RMSProp, build_optimizer
from tianji_algos.ppo.settings import PPOSettings

SCALES = (0.1, 10.0, 1.0)
"""Scales of three gradients of 100 numbers: the second is clipped at a norm of 5."""


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(100, generator=torch.Generator().manual_seed(0)))


def gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(100, generator=generator) * scale for scale in SCALES]


def build(name: str, **settings: Any) -> tuple[torch.nn.Parameter, Optimizer]:
    flat = parameter()
    return flat, build_optimizer(flat, PPOSettings(**({"optimizer": name} | settings)))


def test_adam_steps_as_torchs_does_and_clips_the_gradient() -> None:
    flat, twin = parameter(), parameter()
    ours = Adam(flat, learning_rate=1e-2, eps=1e-5, max_grad_norm=5.0)
    theirs = torch.optim.Adam([twin], lr=1e-2, eps=1e-5)
    for gradient in gradients():
        ours.gradient.copy_(gradient)
        twin.grad = gradient.clone()
        norm = ours.step()
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_([twin], 5.0)))
        theirs.step()
    torch.testing.assert_close(flat, twin)


def test_rmsprop_divides_by_the_root_of_mean_square_plus_eps_and_clips_the_gradient() -> None:
    flat = parameter()
    expected = flat.detach().numpy().astype(np.float64)
    mean_square = np.ones(100)
    optimizer = RMSProp(flat, learning_rate=1e-2, decay=0.9, eps=0.1, max_grad_norm=5.0)
    for gradient in gradients():
        optimizer.gradient.copy_(gradient)
        norm = np.linalg.norm(gradient.numpy())
        assert optimizer.step() == pytest.approx(norm)
        clipped = gradient.numpy() * min(1.0, 5.0 / norm)
        mean_square = 0.9 * mean_square + 0.1 * clipped**2
        expected -= 1e-2 * clipped / np.sqrt(mean_square + 0.1)
    np.testing.assert_allclose(flat.detach(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(optimizer.tensors()["rmsprop.square"], mean_square, rtol=1e-5)
    assert optimizer.steps == 3


def test_settings_say_which_optimizer_and_how() -> None:
    _, adam = build("adam", learning_rate=0.5)
    assert (type(adam), adam.learning_rate) == (Adam, 0.5)
    steps = {}
    for values in ({}, {"rmsprop_decay": 0.5}, {"rmsprop_eps": 0.3}, {"max_grad_norm": 0.1}):
        flat, optimizer = build("rmsprop", **values)
        assert type(optimizer) is RMSProp
        optimizer.gradient.copy_(gradients()[0])
        optimizer.step()
        steps[str(values)] = float(flat.detach().sum())
    assert len(set(steps.values())) == len(steps), "each setting counts"


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_a_gradient_that_is_not_finite_is_an_error_and_leaves_everything_as_it_was(name: str) -> None:
    flat, optimizer = build(name)
    before = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
    optimizer.gradient.fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite after 0 updates"):
        optimizer.step()
    assert torch.equal(flat, parameter())
    assert optimizer.steps == 0
    assert all(torch.equal(tensor, before[key]) for key, tensor in optimizer.tensors().items())


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_steps_that_read_nothing_are_the_same_steps(name: str) -> None:
    (flat, optimizer), (other, unread) = build(name, max_grad_norm=0.5), build(name, max_grad_norm=0.5)
    for gradient in (*gradients(), 1e-3 * gradients()[0]):
        optimizer.gradient.copy_(gradient)
        unread.gradient.copy_(gradient)
        assert float(unread.step_unread()) == pytest.approx(optimizer.step())
        torch.testing.assert_close(other.detach(), flat.detach())
    unread.check()
    assert unread.steps == optimizer.steps


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_a_gradient_that_nobody_read_and_is_not_finite_teaches_nothing_until_it_is_found(name: str) -> None:
    flat, optimizer = build(name, learning_rate=0.1)
    for _ in range(3):
        optimizer.gradient.copy_(gradients()[0])
        optimizer.step_unread()
    optimizer.check()
    for last in (1.0, float("inf"), 1.0):
        optimizer.gradient.copy_(gradients()[0])
        optimizer.gradient[0] = last
        optimizer.step_unread()
        assert not optimizer.gradient.any() or last == 1.0
    assert not optimizer.gradient.any(), "what follows counts as 0, too"
    assert flat.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in optimizer.tensors().values())
    for _ in range(2):
        with pytest.raises(DivergedError, match="not finite after 4 updates"):
            optimizer.check()
