"""Properties that SAC and TD3 have in common."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from algos.continuous import ROWS, SPACES, build, make_batch
from algos.in_step import in_step
from algos.training import flat_of, parameters
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tianji_algos import registry
from tianji_algos.batch import Batch
from tianji_algos.core import Agent, AllReduce, Spaces, build_model
from tianji_algos.errors import UnsuitableModelError, UnsupportedSpaceError
from tianji_algos.models.actor_q import DeterministicActorQ, GaussianActorQ
from tianji_algos.rules import ActionBounds
from tianji_algos.sac.sac import SACEmbryo
from tianji_algos.settings import NoSettings

BOTH = pytest.mark.parametrize("algorithm", ["sac", "td3"])
BACKENDS = pytest.mark.parametrize("backend", ["torch", "numpy"])
CASES = st.fixed_dictionaries(
    {
        "algorithm": st.sampled_from(["sac", "td3"]),
        "seed": st.integers(0, 2**20),
        "rows": st.integers(1, 20),
        "critics": st.integers(1, 3),
        "widths": st.lists(st.integers(1, 9), min_size=1, max_size=3),
        "activation": st.sampled_from(["tanh", "relu"]),
        "scale": st.floats(0.1, 30.0),
    }
)


@given(CASES)
def test_derivatives_by_hand_are_those_of_the_losses(case: dict[str, Any]) -> None:
    model = {
        "hidden": tuple(case["widths"]),
        "critic_hidden": tuple(case["widths"][::-1]),
        **{name: case[name] for name in ("critics", "activation")},
    }
    found = []
    for backend in ("torch", "numpy"):
        settings = {"policy_delay": 1} if case["algorithm"] == "td3" else {}
        embryo = build(case["algorithm"], model=model, backend=backend, seed=case["seed"], **settings)
        with torch.no_grad():  # Policies that differ, and deviations on both sides of their limits.
            last = list(embryo.model.actor.parameters())[-1]
            last.add_(case["scale"] * torch.randn(last.shape, generator=torch.Generator().manual_seed(1)))
        result = embryo.update(make_batch(case["seed"], case["rows"]))
        found.append((embryo._gradient, result.priorities, embryo.metrics()))
    (expected, errors, numbers), (gradient, own_errors, own_numbers) = found
    size = 1.0 + float(expected.abs().max())
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=2e-5 * size)
    np.testing.assert_allclose(own_errors, errors, rtol=1e-3, atol=1e-4 * size)
    assert own_numbers == pytest.approx(numbers, rel=1e-3, abs=1e-4 * size)


def critics_of(embryo: Any) -> int:
    return sum(one.numel() for one in embryo.model.critics.parameters())


@BOTH
def test_on_auto_the_built_in_network_takes_the_derivatives_by_hand(algorithm: str) -> None:
    embryos = {backend: build(algorithm, backend=backend) for backend in ("auto", "numpy", "torch")}
    for seed in range(3):
        for embryo in embryos.values():
            embryo.update(make_batch(seed))
    np.testing.assert_array_equal(parameters(embryos["auto"]), parameters(embryos["numpy"]))
    assert (parameters(embryos["auto"]) != parameters(embryos["torch"])).any()
    np.testing.assert_allclose(parameters(embryos["auto"]), parameters(embryos["torch"]), atol=1e-5)


@BOTH
@BACKENDS
def test_targets_follow_softly(algorithm: str, backend: str) -> None:
    each = {"policy_delay": 1} if algorithm == "td3" else {}
    embryo = build(algorithm, backend=backend, target_tau=0.25, learning_rate=1e-2, **each)
    start = embryo.state()[0]
    embryo.update(make_batch(0))
    end = embryo.state()[0]
    names = [name for name in end if name.startswith("target")]
    assert len(names) == {"sac": 12, "td3": 18}[algorithm]
    for name in names:
        own = end[name.replace("target_", "model.")]
        torch.testing.assert_close(end[name], 0.75 * start[name] + 0.25 * own)
        assert not torch.equal(end[name], own)


@BOTH
@pytest.mark.parametrize("schedule", ["linear", ((500, 0.5), (1000, 0.0))])
def test_rates_follow_their_settings_and_their_schedule(algorithm: str, schedule: Any) -> None:
    rates = {"learning_rate": 1e-3, "actor_learning_rate": 4e-3}
    embryo = build(algorithm, **rates, learning_rate_schedule=schedule, schedule_steps=1000)
    embryo.schedule(750)
    found = {name: adam.learning_rate for name, adam in embryo._optimizers.items()}
    expected = {"actor": 1e-3, "critics": 2.5e-4} | ({"temperature": 2.5e-4} if algorithm == "sac" else {})
    assert found == pytest.approx(expected)


@BOTH
@BACKENDS
def test_the_policy_heeds_the_weights_of_samples(algorithm: str, backend: str) -> None:
    """A sample of weight 0 has no part in the gradient of the actor."""
    each = {"policy_delay": 1} if algorithm == "td3" else {}
    batch, other = make_batch(), make_batch()
    for one in (batch, other):
        one.weight[4] = 0.0
    other.observation[4] = 5.0
    gradients = []
    for one in (batch, other):
        embryo = build(algorithm, backend=backend, **each)
        embryo.update(one)
        gradients.append(embryo._actor_adam.gradient.clone())
    torch.testing.assert_close(gradients[0], gradients[1])


@BOTH
def test_learners_in_step_have_the_same_bits_though_each_draws_for_itself(algorithm: str) -> None:
    embryos = [build(algorithm) for _ in range(2)]

    def learn(group: AllReduce) -> int:
        embryos[group.index].join(group)
        return sum(embryos[group.index].update(make_batch(10 * k + group.index)).uses for k in range(4))

    used, _ = in_step(2, learn)
    assert used == [8 * ROWS, 8 * ROWS]
    for name, tensor in embryos[0].state()[0].items():
        assert torch.equal(tensor, embryos[1].state()[0][name]), name
    first, second = (embryo.state()[1]["rng"] for embryo in embryos)
    assert first != second


@BOTH
@BACKENDS
def test_weights_count_a_sample_as_often(algorithm: str, backend: str) -> None:
    """Two samples of weight 1 are one of weight 2, where no noise is drawn."""
    quiet = {"target_noise": 0.0, "policy_delay": 1} if algorithm == "td3" else {}
    batch = make_batch(rows=2)
    batch.discount[:] = 0.0  # Nothing that is drawn is in a target.
    which = [0, 0, 1]
    twice = Batch(
        **{
            name: getattr(batch, name)[which]
            for name in ("observation", "reward", "next_observation", "discount")
        },
        fields={"action": batch.fields["action"][which]},
        weight=np.ones(3, np.float32),
    )
    batch.weight[:] = 2.0, 1.0
    gradients = []
    for each, rows in ((batch, 2), (twice, 3)):
        embryo = build(algorithm, backend=backend, **quiet)
        embryo.update(each)
        critics = embryo._gradient[-critics_of(embryo) :]
        gradients.append((embryo._gradient if algorithm == "td3" else critics) * rows)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


class OwnNetwork:
    """Both parts, with one hidden layer each."""

    settings_type = NoSettings

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.critics = OwnCritic()  # Before the actor, which no order forbids.
        self.actor = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, self.outputs))


class OwnCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.layers(torch.cat((observation, action), dim=1))
        return values.T


class OwnGaussian(OwnNetwork, GaussianActorQ):
    outputs = 4


class OwnDeterministic(OwnNetwork, DeterministicActorQ):
    outputs = 2


@pytest.mark.parametrize(("algorithm", "own"), [("sac", OwnGaussian), ("td3", OwnDeterministic)])
def test_a_network_of_ones_own_learns_and_acts(algorithm: str, own: Any) -> None:
    model = build_model(own, SPACES, NoSettings(), 0)
    embryo_type = registry.load("embryo", algorithm)
    embryo = embryo_type(SPACES, model, embryo_type.settings_type(learning_rate=1e-2), 0)
    losses = []
    for _ in range(60):
        embryo.update(make_batch())
        losses.append(embryo.metrics()["critic_loss"])
    assert losses[-1] < 0.5 * losses[0]
    acting = agent(algorithm, model=build_model(own, SPACES, NoSettings(), 1))
    acting.adopt(flat_of(model))
    observation = make_batch().observation
    with torch.no_grad():
        chosen = np.tanh(model.actor(torch.from_numpy(observation)).numpy()[:, :2])
    np.testing.assert_allclose(
        acting.act_greedily(observation), chosen * [2.0, 0.5] + [0.0, 0.5], rtol=1e-5, atol=1e-6
    )


def test_derivatives_by_hand_are_refused_to_other_networks() -> None:
    model = build_model(OwnGaussian, SPACES, NoSettings(), 0)
    with pytest.raises(UnsuitableModelError, match="'mlp_gaussian_q' on a CPU, and this is OwnGaussian on"):
        SACEmbryo(SPACES, model, SACEmbryo.settings_type(backend="numpy"), 0)


class Shared(OwnGaussian):
    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.actor[2] = self.critics.layers[0]


class SharedBeginning(OwnGaussian):
    """Parts that lie together each, and overlap."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        encoder = nn.Linear(5, 8)
        del self.critics, self.actor
        self.actor = nn.Sequential(nn.Linear(5, 4), encoder)
        self.critics = nn.ModuleList((encoder, nn.Linear(8, 2)))


@pytest.mark.parametrize("own", [Shared, SharedBeginning])
def test_an_actor_that_shares_layers_with_its_critics_is_refused(own: Any) -> None:
    model = build_model(own, SPACES, NoSettings(), 0)
    with pytest.raises(UnsuitableModelError, match="no actor and critics apart"):
        SACEmbryo(SPACES, model, SACEmbryo.settings_type(), 0)


def test_the_networks_of_one_are_refused_to_the_other() -> None:
    with pytest.raises(UnsuitableModelError, match=r"MLPDeterministicQ is no GaussianActorQ, which SAC"):
        SACEmbryo(SPACES, build("td3").model, SACEmbryo.settings_type(), 0)


def agent(
    algorithm: str, spaces: Spaces = SPACES, num_envs: int = ROWS, model: Any = None, **settings: Any
) -> Agent:
    agent_type = registry.load("agent", algorithm)
    network = build(algorithm, spaces).model if model is None else model
    made: Agent = agent_type(spaces, network, agent_type.settings_type(**settings), num_envs, 3)
    return made


def fields_of(num_envs: int = ROWS, size: int = 2) -> dict[str, Any]:
    return {"action": np.empty((num_envs, size), np.float32)}


@BOTH
def test_actions_are_recorded_from_minus_one_to_one_and_scaled_for_the_environment(algorithm: str) -> None:
    acting, into = agent(algorithm, uniform_warmup=False), fields_of()
    assert [spec.shape for spec in acting.fields(SPACES, None)] == [(2,)]
    for seed in range(20):
        scaled = acting.act(make_batch(seed).observation, into)
        assert (np.abs(into["action"]) <= 1.0).all()
        np.testing.assert_allclose(scaled, into["action"] * [2.0, 0.5] + [0.0, 0.5], rtol=1e-6, atol=1e-6)
        assert all(SPACES.action.contains(action) for action in scaled)


@BOTH
def test_an_action_has_the_environments_shape(algorithm: str) -> None:
    spaces = Spaces(SPACES.observation, gym.spaces.Box(-1.0, 1.0, (2, 3), np.float32))
    acting = agent(algorithm, spaces)
    assert acting.act(make_batch().observation, fields_of(size=6)).shape == (ROWS, 2, 3)
    assert acting.act_greedily(make_batch().observation).shape == (ROWS, 2, 3)


@BOTH
def test_actions_are_uniform_until_a_trained_policy_has_come(algorithm: str) -> None:
    acting, into = agent(algorithm, num_envs=2000), fields_of(2000)
    observation = make_batch(rows=2000).observation
    acting.schedule(0)
    acting.act(observation, into)
    shares = np.histogram(into["action"], bins=4, range=(-1.0, 1.0))[0] / 4000
    np.testing.assert_allclose(shares, 0.25, atol=0.03)
    acting.schedule(1)
    acting.act(observation, into)
    spread = {"sac": np.tanh(np.random.default_rng(0).standard_normal(4000)).std(), "td3": 0.1}[algorithm]
    assert into["action"].std() == pytest.approx(spread, rel=0.1)


@BOTH
def test_actions_of_the_warmup_may_be_held(algorithm: str) -> None:
    acting, into = agent(algorithm, warmup_hold=3), fields_of()
    chosen = []
    for seed in range(9):
        acting.act(make_batch(seed).observation, into)
        chosen.append(into["action"].copy())
    for step in range(1, 9):
        assert (chosen[step] == chosen[step - 1]).all() == (step % 3 != 0)


@BOTH
@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym.spaces.Discrete(3), "acts in Box spaces of floats"),
        (gym.spaces.Box(0, 5, (2,), np.int64), "acts in Box spaces of floats"),
        (gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), "finite low and high would be right"),
    ],
)
def test_other_actions_are_refused(algorithm: str, space: gym.Space[Any], message: str) -> None:
    with pytest.raises(UnsupportedSpaceError, match=message):
        build(algorithm, Spaces(SPACES.observation, space))
    with pytest.raises(UnsupportedSpaceError, match=message):
        registry.load("agent", algorithm).fields(Spaces(SPACES.observation, space), None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_at_their_bounds_are_within_them(dtype: Any) -> None:
    space = gym.spaces.Box(np.array([-0.1, 0.3], dtype), np.array([0.1, 0.7], dtype), dtype=dtype)
    bounds = ActionBounds(space)
    for end in (-1.0, 1.0):
        assert space.contains(bounds.scale(np.full((1, 2), end, np.float32))[0])


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_of_the_spaces_own_type(algorithm: str, dtype: Any) -> None:
    space = gym.spaces.Box(10.0, 30.0, (2,), dtype)
    agent = registry.load("agent", algorithm)
    spaces = Spaces(SPACES.observation, space)
    model = build(algorithm, spaces=spaces).model
    acting = agent(spaces, model, agent.settings_type(), 3, 0)
    seen = np.zeros((3, *SPACES.observation.shape), np.float32)
    explored = acting.act(seen, {"action": np.empty((3, 2), np.float32)})
    for action in (*explored.copy(), *acting.act_greedily(seen)):
        assert space.contains(action), "contains() minds the type"
