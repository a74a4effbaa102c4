"""The same update, and the same actions, wherever they are computed: numpy's are compared with torch's.

Where there is no GPU, torch acts on the CPU as it would on one; its updates on a CPU are in test_backends.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from algos.fragments import Fragment, random_rollout

from tianji_algos import registry
from tianji_algos.batch import Batch
from tianji_algos.core import Agent, Embryo, Spaces, build_model
from tianji_algos.device import Snapshot

KINDS = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
MODELS = {"ppo": "mlp_actor_critic", "impala": "mlp_actor_critic", "dqn": "mlp_q"}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_steps": 128, "minibatch_size": 32, "epochs": 2},
    "impala": {"rollout_steps": 128, "minibatch_size": 32},
    "dqn": {"target_every": 2},
}
ROWS = 16


@pytest.fixture
def through_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets fully connected networks act through torch from then on, as they do on a GPU."""

    def switch() -> None:
        monkeypatch.setattr("tianji_algos.models.mlp.is_on_host", lambda _: False)

    return switch


def embryo_of(rule: str, spaces: Spaces, kind: str) -> Embryo:
    model_settings = registry.settings_type("model", MODELS[rule])(hidden=(16,))
    model = build_model(registry.load("model", MODELS[rule]), spaces, model_settings, 3).to(kind)
    settings = registry.settings_type("embryo", rule)(**SETTINGS[rule])
    embryo: Embryo = registry.load("embryo", rule)(spaces, model, settings, 5)
    return embryo


def random_batch(rng: np.random.Generator) -> Batch:
    return Batch(
        observation=rng.standard_normal((ROWS, 4)).astype(np.float32),
        fields={"action": rng.integers(2, size=ROWS).astype(np.uint8)},
        reward=rng.standard_normal(ROWS).astype(np.float32),
        next_observation=rng.standard_normal((ROWS, 4)).astype(np.float32),
        discount=rng.choice([0.0, 0.9], ROWS).astype(np.float32),
        weight=rng.random(ROWS).astype(np.float32),
    )


def learned(embryo: Embryo, rule: str, fragments: list[Fragment]) -> torch.Tensor:
    """Parameters after a few updates."""
    rng = np.random.default_rng(2)
    batches: Any = (
        [random_batch(rng) for _ in range(6)] if rule == "dqn" else embryo.minibatches(fragments)  # type: ignore[attr-defined]
    )
    for batch in batches:
        embryo.update(batch)
    return embryo.model.flat_parameters().cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("rule", MODELS)
def test_updates_are_the_same_in_numpy_and_on_a_gpu(rule: str, cartpole_spaces: Spaces) -> None:
    fragments = random_rollout(cartpole_spaces, seed=1, steps=16)
    in_numpy = embryo_of(rule, cartpole_spaces, "cpu")
    begun = in_numpy.model.flat_parameters()
    expected = learned(in_numpy, rule, fragments)
    found = learned(embryo_of(rule, cartpole_spaces, "cuda"), rule, fragments)
    assert not torch.allclose(begun, expected, atol=1e-3)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", MODELS)
def test_a_policy_acts_the_same_in_numpy_and_in_torch_on_any_device(
    rule: str, kind: str, cartpole_spaces: Spaces, through_torch: Callable[[], None]
) -> None:
    def agent_on(kind: str) -> Agent:
        model = embryo_of(rule, cartpole_spaces, kind).model
        agent: Agent = registry.load("agent", rule)(
            cartpole_spaces, model, registry.settings_type("agent", rule)(), ROWS, 4
        )
        agent.adopt(parameters)
        return agent

    model = embryo_of(rule, cartpole_spaces, "cpu").model
    parameters = np.random.default_rng(6).standard_normal(model.parameter_count).astype(np.float32)
    observation = np.random.default_rng(7).standard_normal((ROWS, 4)).astype(np.float32)
    expected = agent_on("cpu").act_greedily(observation).copy()
    through_torch()
    assert np.array_equal(agent_on(kind).act_greedily(observation), expected)
    assert len(set(expected.tolist())) == 2


@pytest.mark.gpu
def test_a_snapshot_is_whole_while_updates_go_on(cartpole_spaces: Spaces) -> None:
    embryo = embryo_of("dqn", cartpole_spaces, "cuda")
    snapshot = Snapshot(embryo.model, 8)
    batches = [random_batch(np.random.default_rng(seed)) for seed in range(8)]
    for _ in range(20):
        expected = embryo.model.flat_parameters().cpu().numpy()
        snapshot.take()
        for batch in batches:
            embryo.update(batch)
        snapshot.wait()
        assert np.array_equal(np.frombuffer(snapshot.memory[8:], np.float32), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", MODELS)
def test_what_is_saved_is_in_the_hosts_memory_and_goes_back_to_the_device(
    rule: str, kind: str, cartpole_spaces: Spaces
) -> None:
    embryo, other = (embryo_of(rule, cartpole_spaces, kind) for _ in range(2))
    with torch.no_grad():
        for parameter in embryo.model.parameters():
            parameter.add_(1.0)
    tensors, rest = embryo.state()
    assert {tensor.device.type for tensor in tensors.values()} == {"cpu"}
    other.load_state(tensors, rest)
    assert torch.equal(other.model.flat_parameters(), embryo.model.flat_parameters())
    assert other.model.flat_parameters().device.type == kind
