from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from algos.continuous import build, make_batch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from tianji_algos.sac.sac import SACEmbryo, squashed_draw


def sac(**settings: object) -> SACEmbryo:
    embryo = build("sac", **settings)
    assert isinstance(embryo, SACEmbryo)
    return embryo


def test_log_probabilities_are_those_of_a_squashed_normal_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, noise = (torch.randn(200, n, generator=generator, dtype=torch.float64) for n in (6, 3))
    outputs *= 0.5
    mean, log_std = outputs.chunk(2, dim=1)
    tanh = TanhTransform(cache_size=1)  # It remembers what its inverse is asked for.
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), tanh)
    action, log_prob = squashed_draw(outputs, noise)
    expected = tanh(mean + log_std.exp() * noise)
    torch.testing.assert_close(action, expected)
    torch.testing.assert_close(log_prob, squashed.log_prob(expected).sum(dim=1))


def test_actions_at_their_bounds_have_finite_log_probabilities() -> None:
    outputs = torch.tensor([[40.0, 0.0], [-40.0, 9.0], [0.0, -90.0]])
    action, log_prob = squashed_draw(outputs, torch.ones(3, 1))
    assert action[:2, 0].tolist() == [1.0, -1.0]
    assert log_prob.isfinite().all()


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_the_target_is_the_least_value_and_what_the_entropy_is_worth(backend: str) -> None:
    embryo = sac(backend=backend, initial_temperature=0.3, reward_scale=2.0, seed=5)
    batch = make_batch()
    with torch.no_grad():
        seen, after = torch.from_numpy(batch.observation), torch.from_numpy(batch.next_observation)
        noise = torch.from_numpy(np.random.default_rng(5).standard_normal((12, 2), dtype=np.float32))
        action, log_prob = squashed_draw(embryo.model.actor(after), noise)
        worth = embryo.model.critics(after, action).min(dim=0).values - 0.3 * log_prob
        target = 2.0 * batch.reward + batch.discount * worth.numpy()
        values = embryo.model.critics(seen, torch.from_numpy(batch.fields["action"])).numpy()
    errors = embryo.update(batch).priorities
    np.testing.assert_allclose(errors, np.abs(values - target).mean(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("aim", "goes"), [(-20.0, -1), (20.0, 1)])
def test_the_temperature_follows_the_target_entropy(aim: float, goes: int) -> None:
    embryo = sac(target_entropy=aim, initial_temperature=0.5, learning_rate=1e-2)
    for seed in range(5):
        embryo.update(make_batch(seed))
    change = math.exp(embryo.model.log_temperature.item()) - 0.5
    assert math.copysign(1, change) == goes


def test_a_temperature_that_is_set_stays_though_one_was_learned_before() -> None:
    learned = sac(learning_rate=1e-2)
    for seed in range(5):
        learned.update(make_batch(seed))
    embryo = sac(temperature=0.2, learning_rate=1e-2)
    embryo.load_state(*learned.state())
    for seed in range(5):
        embryo.update(make_batch(seed))
    assert embryo.metrics()["temperature"] == pytest.approx(0.2)
    assert math.exp(embryo.model.log_temperature.item()) == pytest.approx(0.2)


def test_a_policy_learns_the_action_that_its_critics_value() -> None:
    """With reward -(a - 0.5)^2 and nothing to come, the mean of the policy becomes 0.5."""
    embryo = sac(learning_rate=1e-2, target_entropy=-4.0)
    for seed in range(400):
        batch = make_batch(seed, rows=64)
        batch.discount[:] = 0.0
        batch.weight[:] = 1.0
        batch.reward[:] = -np.square(batch.fields["action"] - 0.5).sum(axis=1)
        embryo.update(batch)
    with torch.no_grad():
        mean = embryo.model.actor(torch.from_numpy(make_batch().observation)).chunk(2, dim=1)[0].tanh()
    np.testing.assert_allclose(mean, 0.5, atol=0.12)
