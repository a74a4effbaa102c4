"""Claims of both PPO's and IMPALA's update rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from algos.fragments import Fragment, random_rollout
from algos.training import parameters, train

from tianji_algos.core import Spaces, build_model
from tianji_algos.errors import DivergedError
from tianji_algos.impala.impala import IMPALAEmbryo
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.on_policy import PolicyEmbryo
from tianji_algos.ppo.ppo import PPOEmbryo
from tianji_algos.ppo.settings import PPOSettings

SMALL: dict[str, Any] = {
    "rollout_steps": 64,
    "minibatch_size": 16,
    "epochs": 3,
    "optimizer": "adam",
    "learning_rate": 1e-2,
}

Build = Callable[..., PolicyEmbryo]
BACKENDS = pytest.mark.parametrize("backend", ["numpy", "torch"])


class TorchActorCritic(ActorCritic):
    """A model of a user's own: forward() and nothing else."""

    settings_type = MLPActorCriticSettings

    def __init__(self, spaces: Spaces, settings: MLPActorCriticSettings) -> None:
        super().__init__()
        self.inner = MLPActorCritic(spaces, settings)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(observation)


@pytest.fixture(params=[(PPOEmbryo, PPOSettings), (IMPALAEmbryo, IMPALASettings)], ids=["ppo", "impala"])
def build(request: pytest.FixtureRequest, spaces: Spaces) -> Build:
    embryo_type, settings_type = request.param

    def built(seed: int = 0, model_type: type[ActorCritic] = MLPActorCritic, **settings: Any) -> PolicyEmbryo:
        model = build_model(model_type, spaces, MLPActorCriticSettings(hidden=(8,)), seed)
        return embryo_type(spaces, model, settings_type(**(SMALL | settings)), seed)

    return built


@pytest.fixture
def fragments(spaces: Spaces) -> list[Fragment]:
    return random_rollout(spaces, seed=5)


@BACKENDS
def test_fragments_may_be_released_once_the_first_minibatch_is_there(
    build: Build, fragments: list[Fragment], backend: str
) -> None:
    kept, released = build(backend=backend), build(backend=backend)
    train(kept, [{name: field.copy() for name, field in f.items()} for f in fragments])
    for k, minibatch in enumerate(released.minibatches(fragments)):
        if k == 0:
            for field in (field for f in fragments for field in f.values()):
                field[...] = 77
        released.update(minibatch)
    np.testing.assert_array_equal(parameters(kept), parameters(released))


@BACKENDS
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_the_same_seed_gives_the_same_parameters_bit_for_bit(
    build: Build, fragments: list[Fragment], optimizer: str, backend: str
) -> None:
    first, second, other = (build(optimizer=optimizer, backend=backend) for _ in range(3))
    other._rng = np.random.default_rng(1)
    for embryo in (first, second, other):
        train(embryo, fragments)
        train(embryo, fragments)
    np.testing.assert_array_equal(parameters(first), parameters(second))
    assert (parameters(first) != parameters(other)).any()


def test_a_users_torch_model_trains_like_the_built_in_one(build: Build, fragments: list[Fragment]) -> None:
    ours, theirs = build(), build(model_type=TorchActorCritic)
    np.testing.assert_array_equal(parameters(ours), parameters(theirs))
    for embryo in (ours, theirs):
        train(embryo, fragments)
    np.testing.assert_allclose(parameters(ours), parameters(theirs), rtol=1e-3, atol=1e-4)


@BACKENDS
@pytest.mark.parametrize(("optimizer", "points"), [("adam", False), ("rmsprop", False), ("adam", True)])
def test_a_state_that_went_through_files_continues_bit_for_bit(
    build: Build, fragments: list[Fragment], optimizer: str, points: bool, backend: str
) -> None:
    schedule: Any = ((0, 0.1), (200, 1.0)) if points else "linear"
    settings: dict[str, Any] = {"learning_rate_schedule": schedule, "schedule_steps": 1000}
    settings |= {"optimizer": optimizer, "backend": backend}
    straight = build(**settings)
    straight.schedule(100)
    train(straight, fragments)
    tensors, rest = straight.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed = build(seed=7, **settings)
    resumed.load_state(tensors, json.loads(json.dumps(rest)))
    resumed.schedule(100)
    for embryo in (straight, resumed):
        train(embryo, fragments)
    np.testing.assert_array_equal(parameters(straight), parameters(resumed))


def test_a_state_does_not_change_while_training_goes_on(build: Build, fragments: list[Fragment]) -> None:
    embryo = build()
    tensors, _ = embryo.state()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    train(embryo, fragments)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, before[name]), name


def test_a_loss_that_diverged_is_an_error_and_changes_no_parameter(
    build: Build, fragments: list[Fragment]
) -> None:
    embryo = build()
    before = parameters(embryo)
    fragments[0]["reward"][...] = fragments[1]["reward"][...] = np.inf
    complaint = "not finite after 0 updates: the loss has diverged; a smaller"
    with np.errstate(invalid="ignore"), pytest.raises(DivergedError, match=complaint):
        train(embryo, fragments)
    np.testing.assert_array_equal(parameters(embryo), before)


def test_metrics_are_means_since_the_last_call(build: Build, fragments: list[Fragment]) -> None:
    embryo = build()
    assert embryo.metrics() == {}
    train(embryo, fragments)
    metrics = embryo.metrics()
    own = {"rho"} if isinstance(embryo, IMPALAEmbryo) else {"clip_range", "explained_variance"}
    assert metrics.keys() == own | {
        *("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"),
        *("gradient_norm", "learning_rate"),
    }
    assert all(np.isfinite(value) for value in metrics.values())
    assert 0.0 < metrics.get("rho", 1.0) <= 1.0
    assert metrics["gradient_norm"] > 0.0
    assert embryo.metrics() == {}
