from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.maddpg_team import CONTINUOUS, DISCRETE, MODELS, build, records
from algos.training import flat_of

from tianji_algos.core import Spaces
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.teams.deterministic import TeamDeterministic
from tianji_algos.models.teams.networks import BatchedLayers

ROWS = 9


def alone(layers: BatchedLayers, number: int, rows: torch.Tensor, activation: str) -> torch.Tensor:
    """One of the networks by itself, as torch has it."""
    for layer, (weights, biases) in enumerate(zip(layers.weights, layers.biases, strict=True)):
        if layer > 0:
            rows = torch.tanh(rows) if activation == "tanh" else torch.relu(rows)
        rows = torch.nn.functional.linear(rows, weights[number].T, biases[number, 0])
    return rows


def disturb(model: TeamDeterministic) -> None:
    """Let no parameter be zero, and outputs not be small."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.empty_like(parameter).normal_(generator=generator))


def seen_by_agents(spaces: Spaces) -> tuple[npt.NDArray[Any], torch.Tensor]:
    seen = records(spaces, ROWS)
    return seen, torch.from_numpy(seen["observation"]).transpose(0, 1)


@pytest.mark.parametrize("settings", MODELS)
def test_each_agent_acts_through_a_network_of_its_own_or_by_its_name(settings: dict[str, Any]) -> None:
    model = build(DISCRETE, **settings)
    disturb(model)
    _, observation = seen_by_agents(DISCRETE)
    outputs = model.act(observation)
    for m in range(3):
        rows, number = observation[m], m
        if model.settings.share_parameters:
            rows, number = torch.cat((rows, torch.eye(3)[m].expand(ROWS, 3)), dim=1), 0
        expected = alone(model.actors, number, rows, model.settings.activation)
        torch.testing.assert_close(outputs[m], expected)


@pytest.mark.parametrize("per_agent", [False, True])
@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["no state of its own", "state"])
@pytest.mark.parametrize("settings", MODELS)
def test_critics_see_the_state_and_what_all_agents_do(
    settings: dict[str, Any], spaces: Spaces, per_agent: bool
) -> None:
    model = build(spaces, **settings)
    disturb(model)
    state = torch.from_numpy(model.team.state_of(records(spaces, ROWS)))
    assert state.shape[1] == (5 if spaces is CONTINUOUS else 9)
    shape = (3, ROWS, 12) if per_agent else (ROWS, 12)
    actions = torch.empty(shape).normal_(generator=torch.Generator().manual_seed(2))
    values = model.value(state, actions)
    assert values.shape == (1 if model.has_team_critic and not per_agent else 3, ROWS)
    for m in range(len(values)):
        rows = torch.cat((state, actions[m] if per_agent else actions), dim=1)
        if model.settings.share_parameters and not model.has_team_critic:
            rows = torch.cat((rows, torch.eye(3)[m].expand(ROWS, 3)), dim=1)
        number = m if len(model.critics.weights[0]) > 1 else 0
        expected = alone(model.critics, number, rows, model.settings.activation)[:, 0]
        torch.testing.assert_close(values[m], expected)


def test_critics_are_as_many_as_there_are_different_values() -> None:
    assert [build(DISCRETE, **settings).critics.networks for settings in MODELS] == [3, 1, 1, 1]
    assert [build(DISCRETE, **settings).actors.networks for settings in MODELS] == [3, 1, 3, 1]


@pytest.mark.parametrize("settings", MODELS)
def test_frozen_critics_get_no_gradient_and_their_actions_do(settings: dict[str, Any]) -> None:
    model = build(DISCRETE, **settings)
    disturb(model)
    actions = torch.randn(3, ROWS, 12, generator=torch.Generator().manual_seed(2)).requires_grad_()
    model.value(torch.ones(ROWS, 9), actions, frozen=True).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert actions.grad is not None
    assert actions.grad.abs().sum() > 0


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("settings", MODELS)
def test_numpy_acts_as_torch_does(settings: dict[str, Any], spaces: Spaces) -> None:
    model, adopting = build(spaces, **settings), build(spaces, seed=1, **settings)
    disturb(model)
    seen, observation = seen_by_agents(spaces)
    executor = adopting.executor(4)
    executor.adopt(flat_of(model))
    for rows in (ROWS, 4, ROWS):
        (outputs,) = executor(seen[:rows])
        expected = model.act(observation[:, :rows]).detach().transpose(0, 1).numpy()
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_an_executor_begins_with_the_models_parameters_and_keeps_them() -> None:
    model = build(DISCRETE)
    seen, observation = seen_by_agents(DISCRETE)
    executor = model.executor(ROWS)
    expected = model.act(observation).detach().transpose(0, 1).numpy()
    disturb(model)
    np.testing.assert_allclose(executor(seen)[0], expected, rtol=1e-4, atol=1e-6)


def test_the_actors_come_first_in_the_flat_array_and_acting_reads_no_more() -> None:
    model = build(DISCRETE)
    seen, observation = seen_by_agents(DISCRETE)
    flat = flat_of(model)
    assert 0 < model.actor_parameter_count < len(flat)
    flat[model.actor_parameter_count :] = np.nan
    executor = build(DISCRETE, seed=1).executor(ROWS)
    executor.adopt(flat)
    expected = model.act(observation).detach().transpose(0, 1).numpy()
    np.testing.assert_allclose(executor(seen)[0], expected, rtol=1e-4, atol=1e-6)


def test_first_policies_are_nearly_uniform() -> None:
    _, observation = seen_by_agents(DISCRETE)
    for settings in MODELS:
        assert build(DISCRETE, **settings).act(observation).abs().max() < 0.1


def test_an_environment_without_a_team_is_refused(cartpole_spaces: Spaces) -> None:
    with pytest.raises(UnsupportedSpaceError, match="what a single agent sees"):
        build(cartpole_spaces)
