from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from algos.tiny_gru import TinyGRU
from pydantic import BaseModel

from tianji_algos import registry
from tianji_algos.core import Model, Spaces, build_model
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.optim import flatten_parameters

VECTORS = Spaces(gym.spaces.Box(-1.0, 1.0, (5,), np.float32), gym.spaces.Discrete(3))
IMAGES = Spaces(gym.spaces.Box(0, 255, (2, 36, 36), np.uint8), gym.spaces.Discrete(3), stack=2)
NETWORKS: dict[str, tuple[str, Spaces, dict[str, Any]]] = {
    "mlp": ("mlp_actor_critic", VECTORS, {"hidden": [8]}),
    "mlp-q": ("mlp_q", VECTORS, {"hidden": [8]}),
    "cnn": ("cnn_actor_critic", IMAGES, {"hidden": 8}),
    "cnn-bfloat16": ("cnn_actor_critic", IMAGES, {"hidden": 8, "precision": "bfloat16"}),
    "cnn-q-bfloat16": ("cnn_q", IMAGES, {"hidden": 8, "precision": "bfloat16"}),
    "lstm": ("recurrent_actor_critic", VECTORS, {"hidden": [8], "width": 6}),
    "gru-bfloat16": (
        "recurrent_actor_critic",
        VECTORS,
        {"hidden": [8], "core": "gru", "precision": "bfloat16"},
    ),
}


@pytest.fixture(params=[*NETWORKS, "own"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Spaces]:
    """Networks that act through torch, as fully connected ones do on a GPU."""
    monkeypatch.setattr("tianji_algos.models.mlp.is_on_host", lambda _: False)
    if request.param == "own":
        return build_model(TinyGRU, VECTORS, MLPActorCriticSettings(hidden=(4,)), seed=1), VECTORS
    name, spaces, given = NETWORKS[request.param]
    settings: BaseModel = registry.settings_type("model", name).model_validate(given)
    return build_model(registry.load("model", name), spaces, settings, seed=1), spaces


def test_what_acts_and_what_is_trained_share_no_parameters(network: tuple[Model, Spaces]) -> None:
    model, spaces = network
    flat = flatten_parameters(model)
    begun = flat.detach().clone()
    spaces.observation.seed(1)
    seen = np.stack([spaces.observation.sample() for _ in range(4)])
    adopting, keeping = model.executor(4), model.executor(4)
    expected = [output.copy() for output in keeping.preview(seen)]
    assert all(output.any() for output in expected)

    adopting.adopt(np.zeros(model.parameter_count, np.float32))
    assert not any(output.any() for output in adopting(seen))
    assert torch.equal(flat, begun)

    with torch.no_grad():
        flat.zero_()
    for output, right in zip(keeping.preview(seen), expected, strict=True):
        np.testing.assert_array_equal(output, right)
