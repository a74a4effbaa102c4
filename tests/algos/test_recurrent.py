from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.gradients import assert_gradients_are_autograds
from algos.training import flat_of
from torch import nn

from tianji_algos import registry
from tianji_algos.core import Spaces, build_model
from tianji_algos.fields import FieldSpec
from tianji_algos.models.recurrent import GatedActorCritic, RecurrentActorCritic
from tianji_algos.optim import flatten_parameters
from tianji_algos.ppo.ppo import PPOAgent
from tianji_algos.ppo.settings import PPOAgentSettings
from tianji_algos.rollout_observations import Sequences
from tianji_algos.settings import NoSettings

Floats = npt.NDArray[np.float32]

VECTORS = Spaces(gym.spaces.Box(-np.inf, np.inf, (5,), np.float32), gym.spaces.Discrete(3))
IMAGES = Spaces(gym.spaces.Box(0, 255, (2, 20, 20), np.uint8), gym.spaces.Discrete(3), stack=2)
STEPS, COLUMNS = 9, 4

NETWORKS: dict[str, tuple[Spaces, dict[str, Any]]] = {
    "lstm": (VECTORS, {"core": "lstm", "hidden": [8]}),
    "gru": (VECTORS, {"core": "gru", "hidden": [8, 6], "activation": "relu"}),
    "lstm-images": (IMAGES, {"encoder": "impala_small", "core": "lstm", "hidden": 16}),
    "gru-large": (IMAGES, {"encoder": "impala_large", "core": "gru", "channels": [4, 4], "hidden": 16}),
}


def build(spaces: Spaces, **settings: Any) -> GatedActorCritic:
    values = {"width": 7, "policy_gain": 1.0, **settings}
    checked = registry.settings_type("model", "recurrent_actor_critic").model_validate(values)
    built = build_model(registry.load("model", "recurrent_actor_critic"), spaces, checked, seed=3)
    assert isinstance(built, GatedActorCritic)
    return built


def observations(spaces: Spaces, *shape: int) -> npt.NDArray[Any]:
    rng = np.random.default_rng(len(shape))
    whole = (*shape, *(spaces.observation.shape or ()))
    if spaces.observation.dtype == np.uint8:
        return rng.integers(0, 256, whole, np.uint8)
    return rng.standard_normal(whole).astype(np.float32)


def sequences(spaces: Spaces, model: RecurrentActorCritic, chance: float = 0.2) -> Sequences:
    rng = np.random.default_rng(5)
    state = rng.standard_normal((COLUMNS, model.state_size)).astype(np.float32)
    first = rng.random((STEPS, COLUMNS)) < chance
    first[0, 1] = chance > 0.0
    return Sequences(observations(spaces, STEPS, COLUMNS), first, state)


def unroll(model: RecurrentActorCritic, given: Sequences) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return model.unroll(*map(torch.from_numpy, (given.observation, given.first, given.state)))


@pytest.fixture(params=list(NETWORKS.values()), ids=list(NETWORKS))
def network(request: pytest.FixtureRequest) -> tuple[Spaces, GatedActorCritic]:
    spaces, settings = request.param
    return spaces, build(spaces, **settings)


Network = tuple[Spaces, GatedActorCritic]


@pytest.mark.parametrize(("core", "gates", "remembered"), [("lstm", 4, 2), ("gru", 3, 1)])
def test_the_layers_are_of_the_sizes_in_the_textbook(core: str, gates: int, remembered: int) -> None:
    model = build(VECTORS, core=core, hidden=[8], width=7)
    cells = gates * (7 * 8 + 7 * 7 + 7 + 7)  # input, recurrent and torch's two biases
    assert model.parameter_count == 5 * 8 + 8 + cells + (3 + 1) * (7 + 1)
    assert model.state_size == 7 * remembered


def test_an_lstm_begins_with_its_forget_gate_open() -> None:
    bias = build(VECTORS, core="lstm").core.cells.get_parameter("bias_ih_l0")
    with torch.no_grad():  # torch's order of gates: input, forget, cell, output
        torch.testing.assert_close(bias, torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat_interleave(7))


def test_going_through_all_steps_at_once_is_going_step_by_step_and_forgetting(network: Network) -> None:
    spaces, model = network
    given = sequences(spaces, model)
    assert given.first[1:].any()
    execute = model.executor(COLUMNS)
    execute.forget(np.ones(COLUMNS, np.bool_))
    fields = {"state": np.empty((1, COLUMNS, model.state_size), np.float32)}
    execute.record(fields)
    assert not fields["state"].any()
    given = Sequences(given.observation, given.first, fields["state"][0].copy())
    with torch.no_grad():
        policy, value, state = unroll(model, given)
    for t in range(STEPS):
        execute.forget(given.first[t])
        acted, judged = execute(given.observation[t])
        rows = slice(t * COLUMNS, (t + 1) * COLUMNS)
        np.testing.assert_allclose(acted, policy[rows], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(judged, value[rows], rtol=1e-3, atol=1e-5)
    execute.record(fields)
    np.testing.assert_allclose(fields["state"][0], state, rtol=1e-3, atol=1e-5)
    assert np.abs(fields["state"]).min() > 0.0


def plain_unroll(model: GatedActorCritic, given: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """One step after the other in torch's cells, the state multiplied by 0 where an episode begins."""
    width, lstm = model.settings.width, model.settings.core == "lstm"
    cell: nn.Module = (nn.LSTMCell if lstm else nn.GRUCell)(model.encoder.features, width)
    parameters: dict[str, torch.Tensor] = {
        name: model.core.cells.get_parameter(f"{name}_l0")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    state = torch.from_numpy(given.state)
    outputs: list[torch.Tensor] = []
    for seen, first in zip(torch.from_numpy(given.observation), torch.from_numpy(given.first), strict=True):
        state = state * (~first).float()[:, None]
        features = model.encoder(seen)
        before = (state[:, :width], state[:, width:]) if lstm else state
        after = torch.func.functional_call(cell, parameters, (features, before))
        state = torch.cat(after, dim=1) if lstm else after
        outputs.append(state[:, :width])
    policy, value = model.head(torch.cat(outputs))
    return policy, value


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.9])
def test_gradients_through_time_are_those_of_plain_cells(network: Network, chance: float) -> None:
    spaces, model = network
    given = sequences(spaces, model, chance)
    own = Sequences(given.observation.copy(), given.first.copy(), given.state.copy())
    for array in (given.observation, given.first, given.state):
        array.flags.writeable = False  # as a transport lends it
    rng = np.random.default_rng(0)
    d_policy = rng.standard_normal((STEPS * COLUMNS, 3)).astype(np.float32)
    d_value = rng.standard_normal(STEPS * COLUMNS).astype(np.float32)

    def plain() -> tuple[torch.Tensor, torch.Tensor]:
        return plain_unroll(model, own)

    assert_gradients_are_autograds(model, given, plain, (d_policy, d_value), rtol=1e-3, atol=1e-5)


def test_observations_may_be_a_tensor(network: Network) -> None:
    spaces, model = network
    flat = flatten_parameters(model)
    assert flat.grad is not None
    given = sequences(spaces, model)
    found: list[torch.Tensor] = []
    for observation in (given.observation, torch.from_numpy(given.observation)):
        one = Sequences(observation, given.first, given.state)
        model.backprop()(one, lambda policy, value: (np.ones_like(policy), np.ones_like(value)))
        found.append(flat.grad.clone())
    torch.testing.assert_close(*found, rtol=0.0, atol=0.0)


def test_a_preview_does_not_move_on(network: Network) -> None:
    spaces, model = network
    execute = model.executor(COLUMNS)
    seen = observations(spaces, 3, COLUMNS)
    execute(seen[0])
    previews = [[output.copy() for output in execute.preview(seen[1])] for _ in range(2)]
    called = [output.copy() for output in execute(seen[1])]
    again = [output.copy() for output in execute(seen[1])]
    for first, second, third in zip(*previews, called, strict=True):
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, third)
    assert not np.array_equal(called[0], again[0])


def test_from_a_recorded_state_the_steps_after_it_come_out_the_same(network: Network) -> None:
    spaces, model = network
    execute = model.executor(COLUMNS)
    seen = observations(spaces, STEPS, COLUMNS)
    for t in range(4):
        execute(seen[t])
    fields = {"state": np.empty((1, COLUMNS, model.state_size), np.float32)}
    execute.record(fields)
    acted = np.concatenate([execute(seen[t])[0].copy() for t in range(4, STEPS)])
    first = np.zeros((STEPS - 4, COLUMNS), np.bool_)
    with torch.no_grad():
        policy, _, _ = unroll(model, Sequences(seen[4:], first, fields["state"][0]))
    np.testing.assert_allclose(acted, policy, rtol=1e-3, atol=1e-5)


def test_forgetting_is_for_the_environments_that_are_named(network: Network) -> None:
    spaces, model = network
    execute, fresh = model.executor(COLUMNS), model.executor(COLUMNS)
    seen = observations(spaces, 2, COLUMNS)
    execute(seen[0])
    kept = execute.preview(seen[1])[0].copy()
    execute.forget(np.array([True, False, True, False]))
    found, new = execute(seen[1])[0], fresh(seen[1])[0]
    np.testing.assert_allclose(found[[0, 2]], new[[0, 2]], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[[1, 3]], kept[[1, 3]], rtol=1e-4, atol=1e-6)
    assert np.abs(kept - new).max() > 1e-3


def test_adopting_parameters_keeps_what_is_remembered() -> None:
    model = build(VECTORS, core="lstm")
    execute = model.executor(COLUMNS)
    seen = observations(VECTORS, 2, COLUMNS)
    execute(seen[0])
    expected = execute.preview(seen[1])[0].copy()
    execute.adopt(flat_of(model))
    np.testing.assert_array_equal(execute.preview(seen[1])[0], expected)
    execute.adopt(flat_of(build(VECTORS, core="lstm", policy_gain=2.0)))
    np.testing.assert_allclose(execute(seen[1])[0], 2.0 * expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["lstm", "lstm-images"])
def test_bfloat16_is_close_to_float32(name: str) -> None:
    spaces, settings = NETWORKS[name]
    exact, rounded = build(spaces, **settings), build(spaces, precision="bfloat16", **settings)
    given = sequences(spaces, exact)
    with torch.no_grad():
        policy, value, state = unroll(rounded, given)
        expected, _, _ = unroll(exact, given)
    assert policy.dtype == value.dtype == state.dtype == torch.float32
    assert not torch.equal(policy, expected)
    torch.testing.assert_close(policy, expected, rtol=0.05, atol=0.03)
    acted = rounded.executor(COLUMNS)(given.observation[0])[0]
    with torch.no_grad():
        right, _ = rounded(torch.from_numpy(given.observation[0]))
    np.testing.assert_allclose(acted, right, rtol=0.05, atol=0.03)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_the_field_of_the_state_is_declared_without_building_the_network(core: str) -> None:
    model = build(VECTORS, core=core)
    fields = GatedActorCritic.recorded(VECTORS, model.settings)
    assert fields == (FieldSpec("state", np.dtype(np.float32), (model.state_size,), once=True),)
    assert fields[0].rows(128) == 1


def test_an_agent_records_what_its_network_remembers_when_a_fragment_begins() -> None:
    model = build(VECTORS, core="gru")
    agent = PPOAgent(VECTORS, model, PPOAgentSettings(), COLUMNS, seed=0)
    fields: dict[str, npt.NDArray[Any]] = {
        "state": np.full((1, COLUMNS, model.state_size), np.nan, np.float32),
        "action": np.empty((2, COLUMNS), np.int64),
        "log_prob": np.empty((2, COLUMNS), np.float32),
        "value": np.empty((3, COLUMNS), np.float32),
    }
    agent.begin(fields)
    assert not fields["state"].any()
    agent.act(observations(VECTORS, COLUMNS), {name: field[0] for name, field in fields.items()})
    agent.begin_episodes(np.array([False, True, False, False]))
    agent.begin(fields)
    assert np.abs(fields["state"][0, [0, 2, 3]]).min() > 0.0
    assert not fields["state"][0, 1].any()


class Sum(RecurrentActorCritic):
    """A network of a user's own: it remembers the sum of what it saw, and unroll() is all it has."""

    settings_type = NoSettings
    state_size = 5

    def __init__(self, spaces: Spaces, settings: NoSettings) -> None:  # noqa: ARG002 - the contract
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def unroll(
        self, observation: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        sums = []
        for seen, begins in zip(observation, first, strict=True):
            state = state.masked_fill(begins[:, None], 0.0) + seen
            sums.append(state)
        every = torch.cat(sums) * self.scale
        return every[:, :3], every[:, 3], state


def test_a_network_that_is_unroll_alone_acts_and_trains_through_torch() -> None:
    model = build_model(Sum, VECTORS, NoSettings(), seed=0)
    assert isinstance(model, Sum)
    execute = model.executor(COLUMNS)
    seen = observations(VECTORS, 2, COLUMNS)
    execute(seen[0])
    np.testing.assert_allclose(execute(seen[1])[0], (seen[0] + seen[1])[:, :3], rtol=1e-5)
    first, state = np.zeros((2, COLUMNS), np.bool_), np.zeros((COLUMNS, 5), np.float32)
    flat = flatten_parameters(model)
    model.backprop()(
        Sequences(seen, first, state), lambda policy, value: (np.zeros_like(policy), np.ones_like(value))
    )
    assert flat.grad is not None
    np.testing.assert_allclose(flat.grad[0], (2 * seen[0] + seen[1])[:, 3].sum(), rtol=1e-4)
