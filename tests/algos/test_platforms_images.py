"""Networks of stacked images: alike on a host and on any device, and about so in bfloat16.

Where there is no GPU, a CPU does what it would do for a device: frames and arrays are copied to it and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch

from tianji_algos import registry
from tianji_algos.batch import Batch
from tianji_algos.core import Embryo, Model, RolloutEmbryo, Spaces, build_model
from tianji_algos.rollout_observations import Sequences

Array = npt.NDArray[Any]
Fragment = dict[str, Array]

KINDS = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
STACK, SIDE, STEPS, ENVS, ACTIONS = 4, 36, 12, 4, 3
SPACES = Spaces(
    gym.spaces.Box(0, 255, (STACK, SIDE, SIDE), np.uint8), gym.spaces.Discrete(ACTIONS), stack=STACK
)
SMALL: dict[str, Any] = {"encoder": "nature", "channels": (4, 4, 4), "hidden": 16}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "cnn": ("cnn_actor_critic", SMALL),
    "dueling": ("cnn_q", SMALL | {"dueling": True}),
    "lstm": ("recurrent_actor_critic", SMALL | {"core": "lstm", "width": 8}),
    "gru": ("recurrent_actor_critic", SMALL | {"core": "gru", "width": 8}),
}
OF_ROLLOUTS = [(rule, network) for rule in ("ppo", "impala") for network in ("cnn", "lstm", "gru")]
CASES = [*OF_ROLLOUTS, ("dqn", "dueling")]

ROUNDING = {("cpu", "float32"): 1e-5, ("cuda", "float32"): 0.03}
"""Largest difference, as a share of all; GPUs convolve with 10 bits after the point."""
OF_BFLOAT16 = 0.2
"""It has 7 bits after the point, and may find another action best where two are about as good."""


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets everything be copied to a device and back from then on, even if that is the CPU."""

    def switch() -> None:
        for module in ("device", "rollout_observations"):
            monkeypatch.setattr(f"tianji_algos.{module}.on_host", lambda _: False)

    return switch


def model_of(network: str, kind: str, precision: str) -> Model:
    name, settings = MODELS[network]
    chosen = registry.settings_type("model", name)(**settings, precision=precision)
    return build_model(registry.load("model", name), SPACES, chosen, 3).to(kind)


def embryo_of(rule: str, network: str, kind: str, precision: str) -> Embryo:
    of_rollouts: dict[str, Any] = {"rollout_steps": 2 * STEPS * ENVS, "minibatch_size": STEPS * ENVS}
    settings = registry.settings_type("embryo", rule)(**({} if rule == "dqn" else of_rollouts))
    embryo: Embryo = registry.load("embryo", rule)(SPACES, model_of(network, kind, precision), settings, 5)
    return embryo


def frame(episode: int, step: int) -> Array:
    """Show an episode's number and a step's: no two frames are alike, and none is black."""
    picture = np.full((SIDE, SIDE), 100 + 20 * episode, np.uint8)
    picture[: SIDE // 2] += np.uint8(5 * step + 1)
    return picture


def play(rng: np.random.Generator, state_size: int) -> tuple[Fragment, Array]:
    """Make a fragment, and what the policy saw before each step: ``[T, N, S, H, W]``."""
    observation = np.zeros((STACK + STEPS, ENVS, SIDE, SIDE), np.uint8)
    mask = np.ones((STEPS, ENVS), np.uint8)
    saw = np.zeros((STEPS, ENVS, STACK, SIDE, SIDE), np.uint8)
    for n in range(ENVS):
        episode, step = 0, int(rng.integers(6))
        for row in range(STACK - 1):  # History, as far as the episode goes back.
            if (before := step - STACK + 1 + row) >= 0:
                observation[row, n] = frame(episode, before)
        for t in range(STEPS + 1):
            observation[STACK - 1 + t, n] = frame(episode, step)
            if t == STEPS:
                break
            for plane in range(STACK):
                if (shown := step - STACK + 1 + plane) >= 0:
                    saw[t, n, plane] = frame(episode, shown)
            ends = rng.random() < 0.3
            mask[t, n] = not ends
            episode, step = (episode + 1, 0) if ends else (episode, step + 1)
    fragment = {
        "observation": observation,
        "reward": rng.standard_normal(mask.shape).astype(np.float32) * mask,
        "terminated": np.concatenate([mask[1:] == 0, mask[:1] * 0]).astype(np.uint8),
        "truncated": np.zeros_like(mask),
        "mask": mask,
        "action": rng.integers(ACTIONS, size=mask.shape),
        "log_prob": rng.normal(-1.1, 0.1, mask.shape).astype(np.float32),
        "value": rng.standard_normal((STEPS + 1, ENVS)).astype(np.float32),
        "state": rng.normal(0, 0.5, (1, ENVS, state_size)).astype(np.float32),
    }
    return fragment, saw


def two_fragments(model: Model) -> tuple[list[Fragment], Array]:
    rng = np.random.default_rng(4)
    (one, saw), (other, saw_then) = (play(rng, getattr(model, "state_size", 0)) for _ in range(2))
    return [one, other], np.stack([saw, saw_then])


def images(rng: np.random.Generator, *leading: int) -> Array:
    return rng.integers(0, 256, (*leading, STACK, SIDE, SIDE), dtype=np.uint8)


def first_batch(embryo: Embryo) -> Any:
    if isinstance(embryo, RolloutEmbryo):
        return next(embryo.minibatches(two_fragments(embryo.model)[0]))
    rng = np.random.default_rng(8)
    return Batch(
        observation=images(rng, 16),
        fields={"action": rng.integers(ACTIONS, size=16)},
        reward=rng.standard_normal(16).astype(np.float32),
        next_observation=images(rng, 16),
        discount=np.full(16, 0.9, np.float32),
        weight=np.ones(16, np.float32),
    )


def gradient_of_an_update(embryo: Embryo) -> torch.Tensor:
    embryo.update(first_batch(embryo))
    gradients = [parameter.grad for parameter in embryo.model.parameters()]
    assert None not in gradients
    return torch.cat([gradient.reshape(-1).cpu() for gradient in gradients if gradient is not None])


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", ["host", *KINDS])
@pytest.mark.parametrize(("rule", "network"), OF_ROLLOUTS)
def test_minibatches_hold_what_the_policy_saw(
    rule: str, network: str, kind: str, as_on_a_device: Callable[[], None]
) -> None:
    if kind != "host":
        as_on_a_device()
    embryo = embryo_of(rule, network, "cpu" if kind == "host" else kind, "float32")
    assert isinstance(embryo, RolloutEmbryo)
    fragments, saw = two_fragments(embryo.model)
    saw = saw.reshape(-1, *saw.shape[3:])
    numbers = np.arange(2 * STEPS * ENVS, dtype=np.float32).reshape(2, STEPS, ENVS)
    for fragment, numbered in zip(fragments, numbers, strict=True):
        fragment["log_prob"] = numbered
    found: list[int] = []
    wanted = [int(number) for number, mask in zip(numbers.flat, _masks(fragments), strict=True) if mask]
    for minibatch in embryo.minibatches(fragments):
        held = minibatch.observation
        rows = on_host(held.observation if isinstance(held, Sequences) else held)
        rows = rows.reshape(-1, STACK, SIDE, SIDE)
        chosen = minibatch.experience if rule == "impala" else minibatch.outputs
        of_minibatch = on_host(minibatch.log_prob).astype(int)
        assert np.array_equal(rows if chosen is None else rows[on_host(chosen)], saw[of_minibatch])
        found += of_minibatch.tolist()
    assert sorted(set(found)) == wanted


def on_host(values: Any) -> Array:
    return torch.as_tensor(values).cpu().numpy()


def _masks(fragments: list[Fragment]) -> list[int]:
    return [int(mask) for fragment in fragments for mask in fragment["mask"].flat]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rule", "network"), CASES)
def test_gradients_are_the_same_on_a_host_and_on_any_device(
    rule: str, network: str, precision: str, kind: str, as_on_a_device: Callable[[], None]
) -> None:
    expected = gradient_of_an_update(embryo_of(rule, network, "cpu", "float32"))
    as_on_a_device()
    found = gradient_of_an_update(embryo_of(rule, network, kind, precision))
    assert difference(found, expected) < ROUNDING.get((kind, precision), OF_BFLOAT16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("network", MODELS)
def test_networks_act_the_same_on_a_host_and_on_any_device(
    network: str, precision: str, kind: str, as_on_a_device: Callable[[], None]
) -> None:
    def outputs(kind: str, precision: str) -> torch.Tensor:
        executor = model_of(network, kind, precision).executor(ENVS)
        rng = np.random.default_rng(9)
        executor.adopt(parameters)
        given = []
        for step in range(4):
            given += [torch.tensor(output).reshape(-1) for output in executor(images(rng, ENVS))]
            executor.forget(np.arange(ENVS) == step)
        return torch.cat(given)

    model = model_of(network, "cpu", "float32")
    parameters = np.zeros(model.parameter_count, np.float32)
    model.write_parameters(parameters)
    expected = outputs("cpu", "float32")
    as_on_a_device()
    assert difference(outputs(kind, precision), expected) < ROUNDING.get((kind, precision), OF_BFLOAT16)
