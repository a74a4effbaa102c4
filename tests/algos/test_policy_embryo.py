"""Claims of both PPO's and IMPALA's update rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from algos.fragments import Fragment, random_rollout
from algos.training import parameters, train

from tianji_algos.core import Spaces, build_model
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


def test_a_users_torch_model_trains_like_the_built_in_one(build: Build, fragments: list[Fragment]) -> None:
    ours, theirs = build(), build(model_type=TorchActorCritic)
    np.testing.assert_array_equal(parameters(ours), parameters(theirs))
    for embryo in (ours, theirs):
        train(embryo, fragments)
    np.testing.assert_allclose(parameters(ours), parameters(theirs), rtol=1e-3, atol=1e-4)
