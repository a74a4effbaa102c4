from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.teams import bury, random_records, team_spaces

from tianji_algos.core import Fields, Spaces, build_model
from tianji_algos.fields import FieldSpec
from tianji_algos.mappo.mappo import MAPPOAgent, MAPPOEmbryo
from tianji_algos.mappo.settings import MAPPOAgentSettings, MAPPOSettings
from tianji_algos.models.settings import TeamActorCriticSettings
from tianji_algos.models.teams.actor_critic import TeamActorCritic
from tianji_algos.models.torch_backend import TorchExecutor
from tianji_algos.normalization import Normalization, build_normalizer
from tianji_algos.team import Records

ENVS = 16
SPACES = {
    "discrete": team_spaces(),
    "continuous": team_spaces((2, 1, 2), continuous=True),
}


@pytest.fixture(params=SPACES.values(), ids=SPACES)
def spaces(request: pytest.FixtureRequest) -> Spaces:
    assert isinstance(request.param, Spaces)
    return request.param


def build(
    spaces: Spaces, num_envs: int = ENVS, seed: int = 0, asked: Normalization | None = None, **settings: Any
) -> tuple[TeamActorCritic, MAPPOAgent]:
    chosen = TeamActorCriticSettings(**({"hidden": (16,), "policy_gain": 1.0} | settings))
    model = build_model(TeamActorCritic, spaces, chosen, seed)
    assert isinstance(model, TeamActorCritic)
    build_normalizer(model, spaces, asked)
    return model, MAPPOAgent(spaces, model, MAPPOAgentSettings(), num_envs, seed)


def allocate(specs: tuple[FieldSpec, ...], steps: int, envs: int) -> dict[str, npt.NDArray[Any]]:
    return {spec.name: np.zeros((spec.rows(steps), envs, *spec.shape), spec.dtype) for spec in specs}


def row_of(spaces: Spaces, envs: int = ENVS) -> dict[str, npt.NDArray[Any]]:
    fields = allocate(MAPPOAgent.fields(spaces, MAPPOAgentSettings()), 1, envs)
    return {name: field[0] for name, field in fields.items()}


def seen_in(spaces: Spaces, rows: int = ENVS) -> Records:
    rng = np.random.default_rng(3)
    seen = random_records(rng, (rows,), spaces)
    bury(seen, rng.random(seen["alive"].shape) < 0.2)
    return seen


def scaled(actions: Any, spaces: Spaces) -> Any:
    low, high = spaces.action.low, spaces.action.high
    return np.clip((low + high) / 2 + actions * (high - low) / 2, low, high)


def test_what_is_recorded_is_what_the_network_says_of_each_agents_action(spaces: Spaces) -> None:
    model, agent = build(spaces)
    row = row_of(spaces)
    given = agent.act(seen_in(spaces), row)
    assert [spaces.action.contains(action) for action in given] == [True] * ENVS
    policy, value = (torch.from_numpy(output) for output in TorchExecutor(model)(seen_in(spaces)))
    action = torch.from_numpy(row["action"])
    if model.team.discrete:
        expected = torch.distributions.Categorical(logits=policy).log_prob(action.reshape(-1))
        np.testing.assert_array_equal(given, row["action"])
    else:
        mean, log_std = policy.chunk(2, dim=1)
        of_numbers = torch.distributions.Normal(mean, log_std.exp()).log_prob(action.reshape(-1, 2))
        expected = of_numbers.sum(dim=1)
        np.testing.assert_allclose(given, scaled(row["action"], spaces), rtol=1e-6)
        assert (given[:, 1, 1] == 0).all()
    np.testing.assert_allclose(row["log_prob"], expected.reshape(ENVS, 3), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(row["value"], value.reshape(ENVS, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "recorded", "given"), [("discrete", np.uint8, np.int64), ("continuous", np.float32, np.float32)]
)
def test_actions_are_recorded_in_the_smallest_type_and_given_in_the_environments(
    name: str, recorded: type[np.generic], given: type[np.generic]
) -> None:
    spaces = SPACES[name]
    _, agent = build(spaces)
    row = row_of(spaces)
    assert row["action"].dtype == recorded
    actions = agent.act(seen_in(spaces), row)
    assert actions.dtype == given
    assert agent.act_greedily(seen_in(spaces)) is actions, "it is reused"


def test_actions_that_are_not_available_are_never_chosen() -> None:
    spaces = SPACES["discrete"]
    _, agent = build(spaces, num_envs=500)
    rng, row = np.random.default_rng(0), row_of(spaces, 500)
    for _ in range(20):
        seen = random_records(rng, (500,), spaces)
        for action in (agent.act(seen, row), agent.act_greedily(seen)):
            assert np.take_along_axis(seen["available"], action[..., None], axis=2).all()
        assert np.isfinite(row["log_prob"]).all()


def test_each_agent_draws_from_its_own_distribution() -> None:
    spaces = SPACES["discrete"]
    model, agent = build(spaces, num_envs=4000)
    seen = np.repeat(seen_in(spaces, 1), 4000)
    actions = agent.act(seen, row_of(spaces, 4000))
    policy, _ = TorchExecutor(model)(seen[:1])
    for m, expected in enumerate(torch.from_numpy(policy).softmax(dim=1)):
        shares = np.bincount(actions[:, m], minlength=4) / 4000
        np.testing.assert_allclose(shares, expected, atol=0.03)


def test_the_bootstrap_row_gets_the_values_after_the_last_step(spaces: Spaces) -> None:
    model, agent = build(spaces)
    specs = MAPPOAgent.fields(spaces, MAPPOAgentSettings())
    assert [spec.name for spec in specs if spec.bootstrap] == ["value"]
    fields = allocate(specs, 2, ENVS)
    agent.finish(fields, seen_in(spaces))
    _, value = TorchExecutor(model)(seen_in(spaces))
    np.testing.assert_allclose(fields["value"][-1], value.reshape(ENVS, 3), rtol=1e-4, atol=1e-5)
    assert not fields["value"][:-1].any()


def test_greedy_actions_are_the_likeliest_and_draw_nothing(spaces: Spaces) -> None:
    model, agent = build(spaces)
    policy, _ = TorchExecutor(model)(seen_in(spaces))
    if model.team.discrete:
        best = policy.argmax(axis=1).reshape(ENVS, 3)
    else:
        best = scaled(policy[:, :2].reshape(ENVS, 3, 2), spaces)
    for _ in range(2):
        np.testing.assert_allclose(agent.act_greedily(seen_in(spaces)), best, rtol=1e-4, atol=1e-5)


class TwoStep:
    """Sixteen copies of the two-step game (Rashid et al., 2018, section 5), which always go on."""

    def __init__(self, spaces: Spaces) -> None:
        self._seen = np.zeros(ENVS, spaces.observation.dtype)
        self._seen["available"] = self._seen["alive"] = True
        self._at = np.zeros(ENVS, np.int64)
        self._had = np.zeros(ENVS, np.float32)

    def observe(self) -> Records:
        self._seen["observation"] = np.eye(4, dtype=np.float32)[self._at][:, None]
        self._seen["reward"] = self._had[:, None]
        return self._seen

    def step(self, action: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Reward and whether the episode ends; a reset step follows that."""
        payoff = np.zeros((4, 2, 2), np.float32)
        payoff[1], payoff[2] = 7.0, [[0, 1], [1, 8]]
        reward = payoff[self._at, action[:, 0], action[:, 1]]
        ends = (self._at == 1) | (self._at == 2)
        follows = np.where(self._at == 0, 1 + action[:, 0], np.where(ends, 3, 0))
        self._at, self._had = follows, reward
        return reward, ends


def collect(
    agent: MAPPOAgent, world: TwoStep, spaces: Spaces, asked: Normalization | None, steps: int = 12
) -> Fields:
    normalised = () if asked is None else asked.fields(spaces)
    fields = allocate((*MAPPOAgent.fields(spaces, MAPPOAgentSettings()), *normalised), steps, ENVS)
    fields["observation"] = np.zeros((steps + 1, ENVS), spaces.observation.dtype)
    fields["reward"] = np.zeros((steps, ENVS), np.float32)
    for name in ("terminated", "truncated", "mask"):
        fields[name] = np.zeros((steps, ENVS), np.bool_)
    agent.begin(fields)
    for t in range(steps):
        fields["observation"][t] = seen = world.observe()
        fields["mask"][t] = ~seen["observation"][:, 0, 3].astype(bool)
        row = {name: fields[name][t] for name in ("action", "log_prob", "value")}
        fields["reward"][t], fields["terminated"][t] = world.step(agent.act(seen, row))
    fields["observation"][steps] = world.observe()
    agent.finish(fields, fields["observation"][-1])
    return fields


@pytest.mark.parametrize(
    ("share_parameters", "scale"),
    [
        (True, {"rewards": "team", "reward_scale": 0.1}),
        (False, {"rewards": "team", "reward_scale": 0.1}),
        (True, {"rewards": "individual", "reward_scale": 0.1}),
        (False, {"rewards": "individual", "reward_scale": 0.1}),
        (True, {"rewards": "team", "reward_scale": 1000.0, "normalize_values": True}),
        (True, {"rewards": "individual", "reward_scale": 1000.0, "normalize_values": True}),
        (True, {"rewards": "team", "normalize_rewards": True}),
        (True, {"rewards": "team", "reward_scale": 0.1, "normalize_observations": True}),
        (False, {"rewards": "individual", "reward_scale": 0.1, "normalize_observations": True}),
    ],
)
def test_a_team_learns_a_game_of_two_steps(share_parameters: bool, scale: dict[str, Any]) -> None:
    spaces = team_spaces((2, 2), observation=4)
    settings: dict[str, Any] = {"rollout_steps": 192, "minibatch_size": 64, "epochs": 4}
    chosen = MAPPOSettings(**settings, **scale, learning_rate=3e-3, entropy_coef=0.01)
    asked = Normalization.of(chosen, spaces, able=False)
    model, agent = build(spaces, asked=asked, policy_gain=0.01, share_parameters=share_parameters)
    embryo = MAPPOEmbryo(spaces, model, chosen, seed=0)
    world, flat, returns = TwoStep(spaces), np.empty(model.parameter_count, np.float32), []
    for _ in range(60):
        fragment = collect(agent, world, spaces, asked)
        returns.append(float(fragment["reward"].sum() / fragment["terminated"].sum()))
        for minibatch in embryo.minibatches([fragment]):
            embryo.update(minibatch)
        model.write_parameters(flat)
        agent.adopt(flat)
    assert returns[0] < 5.5
    assert returns[-1] > 6.5


def test_the_learner_shows_the_networks_what_each_agent_saw() -> None:
    spaces = team_spaces((2, 2), observation=4)
    chosen = MAPPOSettings(
        rollout_steps=192,
        minibatch_size=192,
        epochs=1,
        clip_range=1e-5,
        normalize_observations=True,
        normalize_rewards=False,
    )
    asked = Normalization.of(chosen, spaces)
    model, agent = build(spaces, asked=asked)
    embryo, world = MAPPOEmbryo(spaces, model, chosen, seed=0), TwoStep(spaces)
    flat = np.empty(model.parameter_count, np.float32)
    for _ in range(3):
        [minibatch] = embryo.minibatches([collect(agent, world, spaces, asked)])
        embryo.metrics()
        embryo.update(minibatch)
        assert embryo.metrics()["clip_fraction"] == 0.0
        before = flat.copy()
        model.write_parameters(flat)
        assert (flat != before).any()
        agent.adopt(flat)
