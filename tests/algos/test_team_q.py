from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.team_episodes import empty_records, random_records, team_spaces
from algos.training import flat_of

from tianji_algos.core import Spaces, build_model
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.settings import TeamQSettings
from tianji_algos.models.teams.networks import BatchedGRU
from tianji_algos.models.teams.q_network import NO_ACTION, TeamQ
from tianji_algos.team import Records, Team

Floats = npt.NDArray[np.float32]
Actions = npt.NDArray[np.int64]

ENVS, STEPS = 5, 6


def build(spaces: Spaces | None = None, seed: int = 0, **settings: Any) -> TeamQ:
    model = build_model(TeamQ, spaces or team_spaces(), TeamQSettings(width=8, **settings), seed)
    assert isinstance(model, TeamQ)
    return model


def unrolled(model: TeamQ, seen: Records, last_action: Actions) -> Floats:
    """Q ``[T, N, M, A]`` of records ``[T, N]``, in one go."""
    steps, envs = seen.shape
    rows = model.rows()(seen.reshape(-1), last_action.reshape(steps * envs, -1))
    with torch.no_grad():
        q = model(torch.from_numpy(rows), [envs] * steps)
    return q.reshape(steps, envs, *q.shape[1:]).numpy()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("informed", [True, False])
def test_the_executor_does_step_by_step_what_torch_does_at_once(shared: bool, informed: bool) -> None:
    spaces = team_spaces()
    model = build(spaces, share_parameters=shared, last_action=informed, agent_id=informed)
    rng = np.random.default_rng(0)
    seen = random_records(spaces, rng, STEPS, ENVS)
    actions = rng.integers(5, size=(STEPS, ENVS, 3))
    before = np.concatenate((np.full((1, ENVS, 3), NO_ACTION), actions[:-1]))
    expected = unrolled(model, seen, before)
    executor = model.executor(ENVS)
    for step in range(STEPS):
        (q,) = executor(seen[step])
        np.testing.assert_allclose(q, expected[step], rtol=1e-4, atol=1e-5)
        executor.note(actions[step])


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_forgotten_is_forgotten_in_those_environments_alone(shared: bool) -> None:
    spaces = team_spaces()
    model = build(spaces, share_parameters=shared)
    rng = np.random.default_rng(1)
    seen = random_records(spaces, rng, 3, ENVS)
    executor, untouched, fresh = (model.executor(ENVS) for _ in range(3))
    for one in (executor, untouched):
        for step in range(2):
            one(seen[step])
            one.note(np.ones((ENVS, 3), np.int64))
    where = np.array([True, False, False, True, False])
    executor.forget(where)
    (q,), (remembers,), (begins,) = (one(seen[2]) for one in (executor, untouched, fresh))
    np.testing.assert_allclose(q[where], begins[where], rtol=1e-5)
    np.testing.assert_allclose(q[~where], remembers[~where], rtol=1e-5)
    assert (np.abs(begins - remembers) > 1e-4).any(axis=(1, 2)).all()


def test_a_preview_does_not_move_on() -> None:
    spaces = team_spaces()
    executor = build(spaces).executor(ENVS)
    seen = random_records(spaces, np.random.default_rng(2), ENVS)
    looked = executor.preview(seen)[0].copy()
    np.testing.assert_array_equal(executor(seen)[0], looked)
    assert (executor(seen)[0] != looked).any()


@pytest.mark.parametrize("shared", [True, False])
def test_an_adopted_policy_acts_like_its_model(shared: bool) -> None:
    spaces = team_spaces()
    executor = build(spaces, seed=0, share_parameters=shared).executor(ENVS)
    other = build(spaces, seed=1, share_parameters=shared)
    seen = random_records(spaces, np.random.default_rng(3), ENVS)
    executor.adopt(flat_of(other))
    np.testing.assert_array_equal(executor(seen)[0], other.executor(ENVS)(seen)[0])


def test_agents_that_share_a_network_differ_by_what_they_are_told() -> None:
    spaces = team_spaces()
    seen = random_records(spaces, np.random.default_rng(4), ENVS)
    seen["observation"][...] = 1.0
    named, unnamed = (build(spaces, agent_id=named).executor(ENVS)(seen)[0] for named in (True, False))
    assert np.ptp(named, axis=1).max() > 1e-3
    np.testing.assert_allclose(unnamed, np.repeat(unnamed[:, :1], 3, axis=1), rtol=1e-5)


def test_agents_with_networks_of_their_own_learn_apart() -> None:
    model = build(share_parameters=False)
    inputs = torch.randn(4, 3, model.encoder.inputs)
    model(inputs, [4])[:, 1].sum().backward()
    gradient = model.encoder.weights[0].grad
    assert gradient is not None
    assert gradient[1].abs().max() > 0.0
    assert gradient[[0, 2]].abs().max() == 0.0


def test_inputs_are_observation_last_action_and_agent() -> None:
    spaces = team_spaces(agents=2, observation=3, actions=4)
    inputs = build(spaces).rows()
    seen = empty_records(spaces, 1)
    seen["observation"] = 0.5
    rows = inputs(seen, np.array([[2, NO_ACTION]]))
    np.testing.assert_array_equal(
        rows, [[[0.5, 0.5, 0.5, 0, 0, 1, 0, 1, 0], [0.5, 0.5, 0.5, 0, 0, 0, 0, 0, 1]]]
    )
    many = inputs(empty_records(spaces, 7), np.zeros((7, 2), np.int64))
    assert many.shape == (7, 2, inputs.width)
    np.testing.assert_array_equal(many[:, :, -2:], np.tile(np.eye(2), (7, 1, 1)))


@pytest.mark.parametrize("networks", [1, 3])
def test_the_gru_is_torchs(networks: int) -> None:
    torch.manual_seed(0)
    width, sizes = 4, [5, 5, 3, 1]
    ours = BatchedGRU(networks, 3, width)
    for parameter in ours.parameters():
        parameter.data.normal_()
    rows = torch.randn(networks, sum(sizes), 3)
    with torch.no_grad():
        outputs = ours(rows, sizes)
        for network in range(networks):
            theirs = torch.nn.GRU(3, width)
            bias = torch.cat((torch.zeros(2 * width), ours.state_bias[network, 0]))
            for name, value in (
                ("weight_ih_l0", ours.input_weight[network].T),
                ("weight_hh_l0", ours.state_weight[network].T),
                ("bias_ih_l0", ours.bias[network, 0]),
                ("bias_hh_l0", bias),
            ):
                theirs.get_parameter(name).copy_(value)
            packed = torch.nn.utils.rnn.PackedSequence(rows[network], torch.tensor(sizes))
            torch.testing.assert_close(outputs[network], theirs(packed)[0].data)


def test_one_agent_and_continuous_actions_are_refused(cartpole_spaces: Spaces) -> None:
    with pytest.raises(UnsupportedSpaceError, match="single agent"):
        build(cartpole_spaces)
    with pytest.raises(UnsupportedSpaceError, match="'maddpg', would be right"):
        build(Spaces(team_spaces().observation, gym.spaces.Box(-1.0, 1.0, (3, 2))))


@pytest.mark.parametrize(
    "actions",
    [
        gym.spaces.Box(-1.0, 1.0, (3,)),
        gym.spaces.Box(-1.0, 1.0, (2, 3)),
        gym.spaces.Box(-1.0, 1.0, (3, 2, 2)),
        gym.spaces.MultiDiscrete([5, 5]),
        gym.spaces.Discrete(5),
    ],
    ids=str,
)
def test_actions_that_are_not_those_of_the_teams_agents_are_refused(actions: gym.Space[Any]) -> None:
    with pytest.raises(UnsupportedSpaceError, match="a row, for each, not"):
        Team.of(Spaces(team_spaces(agents=3).observation, actions))
