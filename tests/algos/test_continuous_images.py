"""SAC and TD3 on images: one encoder, trained by the critics' loss alone, and its copy behind the targets."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from algos.test_observations import Records

from tianji_algos import registry
from tianji_algos.batch import Batch
from tianji_algos.continuous import ActorQEmbryo
from tianji_algos.core import Spaces, build_model
from tianji_algos.device import as_numbers
from tianji_algos.models.actor_q import CNNActorQ

IMAGE = gym.spaces.Box(0, 255, (20, 20, 3), np.uint8)
ARM = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTION = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
SMALL = {"channels": (4,), "kernels": (4,), "strides": (4,), "hidden": (8,)}
BOTH = pytest.mark.parametrize(
    ("algorithm", "model"), [("sac", "cnn_gaussian_q"), ("td3", "cnn_deterministic_q")]
)
ROWS = 6


def build(algorithm: str, model: str, observation: gym.Space[Any] = IMAGE, **settings: Any) -> ActorQEmbryo:
    spaces = Spaces(observation, ACTION)
    model_type = registry.load("model", model)
    network = build_model(model_type, spaces, model_type.settings_type(**SMALL), 0)
    embryo_type = registry.load("embryo", algorithm)
    embryo: ActorQEmbryo = embryo_type(spaces, network, embryo_type.settings_type(**settings), 0)
    return embryo


def batch(seed: int = 0, space: gym.Space[Any] = IMAGE) -> Batch:
    rng = np.random.default_rng(seed)
    if isinstance(space, Records):
        seen = [as_numbers(space.draw(ROWS, seed + one)) for one in range(2)]
    else:
        seen = list(rng.integers(0, 256, (2, ROWS, 20, 20, 3), np.uint8))
    return Batch(
        observation=seen[0],
        fields={"action": rng.uniform(-1.0, 1.0, (ROWS, 2)).astype(np.float32)},
        reward=rng.standard_normal(ROWS, dtype=np.float32),
        next_observation=seen[1],
        discount=np.full(ROWS, 0.99, np.float32),
        weight=np.ones(ROWS, np.float32),
    )


@BOTH
def test_the_encoder_learns_from_the_critics_loss_and_not_from_the_actors(algorithm: str, model: str) -> None:
    embryo = build(algorithm, model, policy_delay=1) if algorithm == "td3" else build(algorithm, model)
    network: Any = embryo.model
    assert isinstance(network, CNNActorQ)
    encoder = list(network.critics.encoder.parameters())
    seen = embryo._seen(batch())
    found: Any = embryo.policy_loss(seen)  # type: ignore[attr-defined]
    loss = found[0] if algorithm == "sac" else found
    of_actor = torch.autograd.grad(loss, list(network.actor.parameters()), retain_graph=True)
    assert all(gradient.abs().sum() > 0 for gradient in of_actor[-2:])
    outputs = network.actor(seen.observation).sum()
    assert all(one is None for one in torch.autograd.grad(outputs, encoder, allow_unused=True))
    critics_loss: Any = embryo.critic_loss(seen)[0]  # type: ignore[attr-defined]
    assert all(one.abs().sum() > 0 for one in torch.autograd.grad(critics_loss, encoder))
    assert not {id(one) for one in encoder} & {id(one) for one in network.actor.parameters()}


@BOTH
def test_targets_see_through_an_encoder_of_their_own_that_follows_slowly(algorithm: str, model: str) -> None:
    embryo = build(algorithm, model, **({"policy_delay": 1} if algorithm == "td3" else {}))
    online: Any = embryo.model
    target: Any = embryo._target_critics.model
    assert target.encoder is not online.critics.encoder
    before = [one.clone() for one in target.encoder.parameters()]
    start = [one.detach().clone() for one in online.critics.encoder.parameters()]
    embryo.update(batch())
    for own, old, then, now in zip(
        target.encoder.parameters(), before, start, online.critics.encoder.parameters(), strict=True
    ):
        assert not torch.equal(now, then)
        torch.testing.assert_close(own, old + 0.005 * (now - old), rtol=1e-4, atol=1e-6)
    if algorithm == "td3":
        actor: Any = embryo._target_actor.model  # type: ignore[attr-defined]
        assert actor.encoder.encoder is target.encoder
    assert online.actor.encoder.encoder is online.critics.encoder


@BOTH
def test_an_executor_acts_with_the_encoder_that_it_adopted(algorithm: str, model: str) -> None:
    embryo = build(algorithm, model)
    execute = embryo.model.executor(ROWS)
    seen = batch().observation
    flat = np.empty(embryo.model.parameter_count, np.float32)
    for seed in range(3):
        embryo.update(batch(seed))
        embryo.model.write_parameters(flat)
        execute.adopt(flat)
        with torch.no_grad():
            wanted = embryo.model(torch.from_numpy(seen))
        np.testing.assert_allclose(execute(seen)[0], wanted, rtol=1e-4, atol=1e-5)


@BOTH
def test_images_beside_numbers_are_learnt_from_together_and_continued(algorithm: str, model: str) -> None:
    space = Records({"arm": ARM, "camera": IMAGE})
    embryo, other = (build(algorithm, model, space) for _ in range(2))
    embryo.update(batch(0, space))
    tensors, rest = embryo.state()
    assert any(name.startswith("target_critics.encoder.") for name in tensors)
    other.load_state(tensors, rest)
    for one in (embryo, other):
        one.update(batch(1, space))
    for name, tensor in embryo.state()[0].items():
        assert torch.equal(tensor, other.state()[0][name]), name
