from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.team_episodes import empty_records, random_records, team_spaces
from algos.training import flat_of

from tianji_algos.batch import SequenceBatch
from tianji_algos.core import Spaces, build_model
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.settings import TeamQSettings
from tianji_algos.models.teams.q_network import TeamQ
from tianji_algos.qmix.qmix import PackedEpisodes, QMIXAgent
from tianji_algos.qmix.settings import QMIXAgentSettings
from tianji_algos.team import Records

ENVS = 64
SPACES = team_spaces(agents=3, observation=4, actions=5)


def build(seed: int = 0, num_envs: int = ENVS, **settings: Any) -> tuple[TeamQ, QMIXAgent]:
    model = build_model(TeamQ, SPACES, TeamQSettings(width=8), seed)
    assert isinstance(model, TeamQ)
    return model, QMIXAgent(SPACES, model, QMIXAgentSettings(**settings), num_envs, seed)


def row(num_envs: int = ENVS) -> dict[str, npt.NDArray[Any]]:
    return {"action": np.zeros((num_envs, 3), np.uint8)}


def records(seed: int = 0, num_envs: int = ENVS) -> Records:
    return random_records(SPACES, np.random.default_rng(seed), num_envs)


def is_available(seen: Records, actions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.take_along_axis(seen["available"], actions[..., None], axis=2)
    return found[..., 0]


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_only_available_actions_are_taken(epsilon: float) -> None:
    _, agent = build(epsilon_start=epsilon, epsilon_end=epsilon, eval_epsilon=epsilon)
    for seed in range(20):
        seen = records(seed)
        assert is_available(seen, agent.act(seen, row())).all()
        assert is_available(seen, agent.act_greedily(seen)).all()


def test_without_exploration_the_best_available_action_is_taken_and_recorded() -> None:
    model, agent = build(epsilon_start=0.0, epsilon_end=0.0)
    executor = model.executor(ENVS)
    for seed in range(3):
        seen, into = records(seed), row()
        (q,) = executor(seen)
        expected = np.where(seen["available"], q, -np.inf).argmax(axis=2)
        executor.note(expected)
        np.testing.assert_array_equal(agent.act(seen, into), expected)
        np.testing.assert_array_equal(into["action"], expected)


def test_random_actions_are_uniform_among_those_available() -> None:
    _, agent = build(num_envs=4000)
    seen = empty_records(SPACES, 4000)
    seen["available"] = [[True] * 5, [False, True, False, True, True], [False, False, True, False, False]]
    actions = agent.act(seen, row(4000))
    for m, expected in enumerate(([0.2] * 5, [0, 1 / 3, 0, 1 / 3, 1 / 3], [0, 0, 1, 0, 0])):
        shares = np.bincount(actions[:, m], minlength=5) / 4000
        np.testing.assert_allclose(shares, expected, atol=0.03)


def test_a_dead_agent_does_the_only_thing_it_can() -> None:
    _, agent = build(epsilon_start=0.5, epsilon_end=0.5)
    seen = empty_records(SPACES, ENVS)
    seen["alive"][:, 1] = False
    seen["available"][:, 1] = [True, False, False, False, False]
    assert (agent.act(seen, row())[:, 1] == 0).all()


def test_epsilon_falls_over_the_steps_of_the_job() -> None:
    _, agent = build(num_envs=1000, epsilon_start=1.0, epsilon_end=0.2, epsilon_steps=100)
    seen = empty_records(SPACES, 1000)
    agent.begin_episodes(np.ones(1000, np.bool_))
    best = agent.act_greedily(seen).copy()
    for env_steps, epsilon in ((0, 1.0), (50, 0.6), (100, 0.2), (500, 0.2)):
        agent.schedule(env_steps)
        agent.begin_episodes(np.ones(1000, np.bool_))
        others = (agent.act(seen, row(1000)) != best).mean()
        assert others == pytest.approx(0.8 * epsilon, abs=0.05)


def test_agents_remember_within_an_episode_and_not_beyond() -> None:
    _, agent = build(num_envs=1, epsilon_start=0.0, epsilon_end=0.0)
    everything = np.ones(1, np.bool_)
    episodes = []
    for _ in range(2):
        agent.begin_episodes(everything)
        steps = []
        for seed in range(8):
            agent.act(records(seed, 1), row(1))
            steps.append(agent._masked.copy())
        episodes.append(steps)
    np.testing.assert_array_equal(episodes[0], episodes[1])
    agent.act(records(0, 1), row(1))
    assert (agent._masked != episodes[0][0]).any()


def test_a_new_policy_does_not_make_agents_forget() -> None:
    model, agent = build(num_envs=1, epsilon_start=0.0, epsilon_end=0.0)
    _, other = build(num_envs=1, epsilon_start=0.0, epsilon_end=0.0)
    for one in (agent, other):
        one.act(records(0, 1), row(1))
    agent.adopt(flat_of(model))
    for one in (agent, other):
        one.act(records(1, 1), row(1))
    np.testing.assert_array_equal(agent._masked, other._masked)


def play(agent: QMIXAgent, steps: int, seed: int) -> tuple[SequenceBatch, npt.NDArray[np.float32]]:
    """Play episodes of random lengths, each followed by a step that resets, as an actor does.

    Returns:
        The episodes, and the values ``[T, N, M, A]`` that it acted by, -inf where an action was not
        available. The first number that an agent sees in row t of environment n is t N + n.
    """
    rng, envs = np.random.default_rng(seed), agent._action.shape[0]
    seen = random_records(SPACES, rng, steps, envs)
    seen["observation"][..., 0] = np.arange(steps * envs).reshape(steps, envs, 1)
    action = np.zeros((steps, envs, 3), np.uint8)
    values, pieces, begins = [], [], np.zeros(envs, np.int64)
    ended = np.zeros(envs, np.bool_)
    for t in range(steps):
        agent.act(seen[t], {"action": action[t]})
        values.append(agent._masked.copy())
        fresh = ended.copy()
        if fresh.any():
            agent.begin_episodes(fresh)
            begins[fresh] = t + 1
        ended = ~fresh & ((rng.random(envs) < 0.2) & (t < steps - 2) | (t == steps - 2))
        pieces += [(n, int(begins[n]), t + 1) for n in np.flatnonzero(ended)]
    batch = SequenceBatch(
        np.zeros((len(pieces), steps), SPACES.observation.dtype),
        {"action": np.zeros((len(pieces), steps - 1, 3), np.uint8)},
        np.zeros((len(pieces), steps - 1), np.float32),
        np.array([stop - begin for _, begin, stop in pieces], np.int32),
        np.ones(len(pieces), np.bool_),
    )
    for piece, (n, begin, stop) in enumerate(pieces):
        batch.observation[piece, : stop - begin + 1] = seen[begin : stop + 1, n]
        batch.fields["action"][piece, : stop - begin] = action[begin:stop, n]
    return batch, np.stack(values)


@pytest.mark.parametrize("shared", [True, False])
def test_episodes_are_learnt_from_with_the_values_that_were_acted_by(shared: bool) -> None:
    model = build_model(TeamQ, SPACES, TeamQSettings(width=8, share_parameters=shared), 0)
    assert isinstance(model, TeamQ)
    with torch.no_grad():
        model.encoder.weights[0][:, 0] = 0.0  # Does not see which row it is.
    agent = QMIXAgent(SPACES, model, QMIXAgentSettings(epsilon_start=0.5), 6, 0)
    batch, acted_by = play(agent, 24, seed=3)
    episodes = PackedEpisodes(batch)
    inputs = model.rows()(episodes.seen, episodes.last_action)
    with torch.no_grad():
        q = model(torch.from_numpy(inputs), episodes.sizes).numpy()
    assert len(set(batch.length.tolist())) > 3
    time, env = np.divmod(episodes.seen["observation"][:, 0, 0].astype(np.int64), 6)
    expected, available = acted_by[time, env], episodes.seen["available"]
    np.testing.assert_allclose(q[available], expected[available], rtol=1e-4, atol=1e-5)


def test_exploration_follows_the_seed() -> None:
    model, _ = build()
    first, second, other = (
        QMIXAgent(SPACES, model, QMIXAgentSettings(), ENVS, seed).act(records(), row()) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_the_field_is_as_small_as_the_actions_allow() -> None:
    (field,) = QMIXAgent.fields(SPACES, QMIXAgentSettings())
    assert (field.name, field.dtype, field.shape) == ("action", np.uint8, (3,))
    (field,) = QMIXAgent.fields(team_spaces(actions=300), QMIXAgentSettings())
    assert field.dtype == np.uint16


def test_what_does_not_fit_is_refused(cartpole_spaces: Spaces) -> None:
    assert QMIXAgent.plays_in_team
    with pytest.raises(UnsupportedSpaceError, match="single agent"):
        QMIXAgent.fields(cartpole_spaces, QMIXAgentSettings())
