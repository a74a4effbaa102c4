from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.gradients import assert_gradients_are_autograds
from algos.teams import bury, random_records, team_spaces

from tianji_algos.core import Spaces, build_model
from tianji_algos.device import as_numbers
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.settings import TeamActorCriticSettings
from tianji_algos.models.teams.actor_critic import TeamActorCritic
from tianji_algos.models.torch_backend import TorchBackprop, TorchExecutor
from tianji_algos.team import IMPOSSIBLE, Records

Floats = npt.NDArray[np.float32]

SPACES = {
    "discrete": team_spaces(),
    "with a state": team_spaces((3, 2), state=7),
    "continuous": team_spaces((2, 1, 2), continuous=True),
}


@pytest.fixture(params=SPACES.values(), ids=SPACES)
def spaces(request: pytest.FixtureRequest) -> Spaces:
    assert isinstance(request.param, Spaces)
    return request.param


@pytest.fixture(params=[True, False], ids=["shared", "separate"])
def shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[True, False], ids=["specific", "central"])
def model(request: pytest.FixtureRequest, spaces: Spaces, shared: bool) -> TeamActorCritic:
    return build(spaces, share_parameters=shared, agent_specific_value=request.param)


def build(spaces: Spaces, seed: int = 3, **settings: Any) -> TeamActorCritic:
    small: dict[str, Any] = {"hidden": (16, 8), "policy_gain": 1.0, "initial_log_std": -0.3}
    model = build_model(TeamActorCritic, spaces, TeamActorCriticSettings(**(small | settings)), seed)
    assert isinstance(model, TeamActorCritic)
    return model


def seen_by(spaces: Spaces, rows: int) -> Records:
    rng = np.random.default_rng(rows)
    seen = random_records(rng, (rows,), spaces)
    bury(seen, rng.random(seen["alive"].shape) < 0.2)
    return seen


def test_the_numpy_executor_computes_what_torch_does(model: TeamActorCritic, spaces: Spaces) -> None:
    execute = model.executor(batch_size=7)
    for rows in (7, 3, 9, 7):
        policy, value = execute(seen_by(spaces, rows))
        assert len(policy) == len(value) == rows * model.team.agents
        expected_policy, expected_value = TorchExecutor(model)(seen_by(spaces, rows))
        np.testing.assert_allclose(policy, expected_policy, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(value, expected_value, rtol=1e-4, atol=1e-5)


def test_an_executor_acts_with_what_it_adopted_and_not_with_the_model(
    model: TeamActorCritic, spaces: Spaces
) -> None:
    seen, execute = seen_by(spaces, 5), model.executor(batch_size=5)
    before = [output.copy() for output in execute(seen)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    for output, expected in zip(execute(seen), before, strict=True):
        np.testing.assert_array_equal(output, expected)
    flat = np.empty(model.parameter_count, np.float32)
    model.write_parameters(flat)
    execute.adopt(flat)
    for output, expected in zip(execute(seen), TorchExecutor(model)(seen), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_gradients_by_hand_are_autograds(model: TeamActorCritic, spaces: Spaces) -> None:
    rows = 40
    seen, rng = seen_by(spaces, rows), np.random.default_rng(1)
    policy, value = TorchExecutor(model)(seen)
    derivatives = tuple(rng.standard_normal(output.shape).astype(np.float32) for output in (policy, value))
    if model.team.discrete:
        derivatives[0][policy == IMPOSSIBLE] = 0.0  # as the softmax gives it
    records = torch.from_numpy(as_numbers(seen))
    d_policy, d_value = derivatives
    assert_gradients_are_autograds(
        model, seen, lambda: model(records), (d_policy, d_value), rtol=1e-4, atol=1e-5
    )


def test_what_is_not_available_is_impossible_and_the_rest_is_as_if_all_were(shared: bool) -> None:
    spaces = SPACES["discrete"]
    execute, seen = build(spaces, share_parameters=shared).executor(6), seen_by(spaces, 6)
    policy = execute(seen)[0].copy()
    available = seen["available"].reshape(-1, 4)
    seen["available"] = True
    everything = execute(seen)[0]
    assert (policy[~available] == IMPOSSIBLE).all()
    np.testing.assert_array_equal(policy[available], everything[available])


def test_numbers_that_an_action_does_not_have_are_constant(shared: bool) -> None:
    spaces = SPACES["continuous"]
    seen = random_records(np.random.default_rng(0), (6,), spaces)
    policy, _ = build(spaces, share_parameters=shared).executor(6)(seen)
    mean, log_std = np.split(policy.reshape(6, 3, 4), 2, axis=2)
    assert (mean[:, 1, 1] == 0).all()
    assert (log_std[:, 1, 1] == 0).all()
    assert (mean[:, 1, 0] != 0).all()
    assert (log_std[:, 1, 0] == np.float32(-0.3)).all()


def test_agents_that_share_parameters_still_differ_and_know_no_others_observation() -> None:
    spaces = SPACES["with a state"]
    execute, seen = build(spaces).executor(4), seen_by(spaces, 4)
    seen["available"] = True
    seen["observation"][:, 1] = seen["observation"][:, 0]
    policy, value = (output.reshape(4, 2, -1).copy() for output in execute(seen))
    assert (policy[:, 0] != policy[:, 1]).all()
    seen["observation"][:, 1] += 1.0
    again, same_value = (output.reshape(4, 2, -1).copy() for output in execute(seen))
    np.testing.assert_array_equal(again[:, 0], policy[:, 0])
    assert (again[:, 1] != policy[:, 1]).all()
    np.testing.assert_array_equal(value, same_value)
    seen["state"] += 1.0
    last_policy, other_value = (output.reshape(4, 2, -1) for output in execute(seen))
    np.testing.assert_array_equal(last_policy, again)
    assert (other_value != value).all()


def test_an_agent_specific_value_sees_what_the_agent_sees() -> None:
    spaces = SPACES["with a state"]
    execute = build(spaces, agent_specific_value=True).executor(4)
    seen = seen_by(spaces, 4)
    value = execute(seen)[1].reshape(4, 2).copy()
    seen["observation"][:, 1] += 1.0
    again = execute(seen)[1].reshape(4, 2)
    np.testing.assert_array_equal(again[:, 0], value[:, 0])
    assert (again[:, 1] != value[:, 1]).all()


def test_torch_backprop_takes_records(shared: bool) -> None:
    spaces = SPACES["discrete"]
    model, seen = build(spaces, share_parameters=shared), seen_by(spaces, 6)
    TorchBackprop(model)(seen, lambda policy, value: (np.zeros_like(policy), np.ones_like(value)))
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.value.parameters())


def test_an_environment_of_one_agent_is_refused() -> None:
    alone = Spaces(gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(2))
    with pytest.raises(UnsupportedSpaceError, match="is what a single agent sees"):
        build(alone)
