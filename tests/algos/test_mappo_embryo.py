from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.fragments import Fragment
from algos.in_step import Outcome, Table, assert_same, in_step
from algos.in_step import train as train_one
from algos.teams import bury, random_team_fragment, random_team_rollout, team_spaces
from algos.training import parameters, train

from tianji_algos.core import AllReduce, Spaces, build_model
from tianji_algos.fast_cpu.ppo import PPOLossByHand
from tianji_algos.mappo.mappo import MAPPOAgent, MAPPOEmbryo
from tianji_algos.mappo.settings import MAPPOAgentSettings, MAPPOSettings
from tianji_algos.models.settings import TeamActorCriticSettings
from tianji_algos.models.teams.actor_critic import TeamActorCritic
from tianji_algos.team import IMPOSSIBLE, cut_off

Floats = npt.NDArray[np.float32]

GAMMA, LAMBDA = 0.9, 0.8
SMALL: dict[str, Any] = {
    "rollout_steps": 64,
    "minibatch_size": 16,
    "epochs": 3,
    "learning_rate": 1e-2,
    "gamma": GAMMA,
    "gae_lambda": LAMBDA,
}
SPACES = {
    "discrete": team_spaces(),
    "with a state": team_spaces((3, 2), state=7),
    "continuous": team_spaces((2, 1, 2), continuous=True),
    "cut off one by one": team_spaces((3, 2, 2), truncates=True),
}


@pytest.fixture(params=SPACES.values(), ids=SPACES)
def spaces(request: pytest.FixtureRequest) -> Spaces:
    assert isinstance(request.param, Spaces)
    return request.param


@pytest.fixture
def fragments(spaces: Spaces) -> list[Fragment]:
    return random_team_rollout(spaces, seed=5)


def build(spaces: Spaces, seed: int = 0, share_parameters: bool = True, **settings: Any) -> MAPPOEmbryo:
    chosen = TeamActorCriticSettings(hidden=(8,), share_parameters=share_parameters, policy_gain=1.0)
    model = build_model(TeamActorCritic, spaces, chosen, 3)
    assert isinstance(model, TeamActorCritic)
    return MAPPOEmbryo(spaces, model, MAPPOSettings(**(SMALL | settings)), seed)


def living(fragment: Fragment) -> npt.NDArray[np.bool_]:
    """Which steps of agents are samples, ``[T, N, M]``."""
    alive: npt.NDArray[np.bool_] = fragment["observation"]["alive"][:-1]
    return alive & fragment["mask"].astype(bool)[..., None]


def by_log_prob(fragments: list[Fragment], columns: list[Floats]) -> dict[float, float]:
    """A column's value of each sample, by the sample's log-probability, which no other has."""
    return {
        key: number
        for fragment, column in zip(fragments, columns, strict=True)
        for key, number in zip(
            fragment["log_prob"][living(fragment)].tolist(), column[living(fragment)].tolist(), strict=True
        )
    }


def expected_advantages(fragment: Fragment, rewards: str) -> Floats:
    """Equation 16 as a sum, agent by agent and step by step."""
    seen, value, cut = fragment["observation"], fragment["value"], cut_off(fragment["observation"])
    steps, envs, agents = fragment["log_prob"].shape
    advantage = np.zeros((steps, envs, agents), np.float32)

    def worth(t: int, n: int, m: int) -> float:
        others = seen["alive"][t, n]
        if rewards == "team" and not others[m] and not cut[t, n, m]:
            return float(value[t, n][others].mean()) if others.any() else 0.0
        return float(value[t, n, m])

    for n in range(envs):
        for m in range(agents):
            for start in range(steps):
                weight = 1.0
                for t in range(start, steps):
                    over = bool(fragment["terminated"][t, n])
                    lives = seen["alive"][:, n, m]
                    gone = rewards == "individual" and not lives[t + 1] and not cut[t + 1, n, m]
                    if not fragment["mask"][t, n] or (rewards == "individual" and not lives[t]):
                        break
                    if cut[t, n, m]:
                        break
                    reward = fragment["reward"][t, n] if rewards == "team" else seen["reward"][t + 1, n, m]
                    after = 0.0 if over or gone else worth(t + 1, n, m)
                    advantage[start, n, m] += weight * (reward + GAMMA * after - worth(t, n, m))
                    weight *= GAMMA * LAMBDA
    return advantage


@pytest.mark.parametrize("rewards", ["team", "individual"])
def test_advantages_are_each_agents_own(spaces: Spaces, fragments: list[Fragment], rewards: str) -> None:
    embryo = build(spaces, rewards=rewards, normalize_advantage="none", epochs=1)
    expected = by_log_prob(fragments, [expected_advantages(fragment, rewards) for fragment in fragments])
    values = by_log_prob(fragments, [fragment["value"][:-1] for fragment in fragments])
    batches = [
        {name: getattr(b, name).tolist() for name in ("log_prob", "advantage", "target", "value")}
        for b in embryo.minibatches(fragments)
    ]
    assert sum(len(batch["log_prob"]) for batch in batches) == len(expected)
    for batch in batches:
        own = [expected[key] for key in batch["log_prob"]]
        np.testing.assert_allclose(batch["advantage"], own, rtol=1e-4, atol=1e-5)
        assert batch["value"] == [values[key] for key in batch["log_prob"]]
        target = np.add(own, batch["value"])
        np.testing.assert_allclose(batch["target"], target, rtol=1e-4, atol=1e-4)


def test_a_death_ends_an_agents_own_return_and_not_the_teams() -> None:
    spaces = team_spaces((2, 2))
    fragment = random_team_fragment(np.random.default_rng(0), 3, 1, spaces, deaths=False)
    fragment["mask"][:], fragment["terminated"][:], fragment["truncated"][:] = 1, [[0], [0], [1]], 0
    fragment["value"][:] = 0
    fragment["observation"]["alive"][1:, 0, 1] = False
    fragment["observation"]["reward"][1:, 0] = [[1, 10], [2, 0], [4, 0]]
    fragment["reward"][:, 0] = [11, 2, 4]
    found = {}
    for rewards in ("team", "individual"):
        embryo = build(
            spaces, rewards=rewards, normalize_advantage="none", epochs=1, gamma=1.0, gae_lambda=1.0
        )
        (batch,) = embryo.minibatches([fragment])
        found[rewards] = dict(zip(batch.log_prob.tolist(), batch.target.tolist(), strict=True))
    (first, must_abort), (second, _), (third, _) = fragment["log_prob"][:, 0].tolist()
    assert found["team"] == {first: 17, must_abort: 17, second: 6, third: 4}
    assert found["individual"] == {first: 7, must_abort: 10, second: 6, third: 4}


def test_an_agent_that_was_cut_off_keeps_the_value_of_what_it_saw_last() -> None:
    """The second agent is cut off by the first step, and the first by the last one."""
    spaces = team_spaces((2, 2), truncates=True)
    fragment = random_team_fragment(np.random.default_rng(0), 3, 1, spaces, deaths=False)
    fragment["mask"][:], fragment["terminated"][:], fragment["truncated"][:] = 1, 0, [[0], [0], [1]]
    seen = fragment["observation"]
    seen["truncated"][1, 0, 1] = True
    seen["alive"][1:, 0, 1] = False
    seen["reward"][1:, 0] = [[1, 10], [2, 0], [4, 0]]
    fragment["reward"][:, 0] = [11, 2, 4]
    fragment["value"][:, 0] = [[0, 0], [0, 50], [0, 3000], [100, 7000]]
    found = {}
    for rewards in ("team", "individual"):
        embryo = build(
            spaces, rewards=rewards, normalize_advantage="none", epochs=1, gamma=1.0, gae_lambda=1.0
        )
        (batch,) = embryo.minibatches([fragment])
        found[rewards] = dict(zip(batch.log_prob.tolist(), batch.target.tolist(), strict=True))
    (first, is_cut), (second, _), (third, _) = fragment["log_prob"][:, 0].tolist()
    assert found["team"] == {first: 117, is_cut: 61, second: 106, third: 104}
    assert found["individual"] == {first: 107, is_cut: 60, second: 106, third: 104}


def test_every_step_of_a_living_agent_is_seen_once_an_epoch_and_no_other(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    embryo = build(spaces)
    own = sorted(x for f in fragments for x in f["log_prob"][living(f)].tolist())
    batches = [(batch.log_prob.tolist(), batch.total) for batch in embryo.minibatches(fragments)]
    assert sorted(x for batch, _ in batches for x in batch) == sorted(own * 3)
    assert all(len(batch) == total for batch, total in batches)
    env_steps = sum(int(fragment["mask"].sum()) for fragment in fragments)
    assert len(own) < env_steps * living(fragments[0]).shape[2]
    assert train(embryo, fragments) == 3 * env_steps, "uses are of env steps"
    assert embryo.uses_per_sample == 3.0


@pytest.mark.parametrize("rewards", ["team", "individual"])
def test_what_is_recorded_of_the_dead_and_of_reset_steps_changes_nothing(
    spaces: Spaces, fragments: list[Fragment], rewards: str
) -> None:
    clean = build(spaces, rewards=rewards)
    train(clean, fragments)
    for fragment in fragments:
        none = ~living(fragment)
        assert none.any()
        fragment["action"][none] = 0
        fragment["log_prob"][none] = -1e6
        seen = fragment["observation"]
        fragment["value"][~(seen["alive"] | cut_off(seen))] = 1e6
    disturbed = build(spaces, rewards=rewards)
    train(disturbed, fragments)
    np.testing.assert_array_equal(parameters(clean), parameters(disturbed))


@pytest.mark.parametrize("normalize", ["minibatch", "rollout"])
def test_advantages_are_normalised_over_living_agents(
    spaces: Spaces, fragments: list[Fragment], normalize: str
) -> None:
    embryo = build(spaces, normalize_advantage=normalize, epochs=1)
    batches = [batch.advantage.copy() for batch in embryo.minibatches(fragments)]
    parts = batches if normalize == "minibatch" else [np.concatenate(batches)]
    for part in parts:
        np.testing.assert_allclose((part.mean(), part.std()), (0.0, 1.0), atol=1e-4)


@pytest.mark.parametrize("share_parameters", [True, False])
def test_the_first_update_meets_the_policy_that_acted(spaces: Spaces, share_parameters: bool) -> None:
    embryo = build(spaces, share_parameters, minibatch_size=64, epochs=1)
    agent = MAPPOAgent(spaces, embryo.model, MAPPOAgentSettings(), 4, 0)  # type: ignore[arg-type]
    fragment = random_team_fragment(np.random.default_rng(2), 8, 4, spaces)
    for t in range(8):
        row = {name: fragment[name][t] for name in ("action", "log_prob", "value")}
        agent.act(fragment["observation"][t], row)
    train(embryo, [fragment])
    metrics = embryo.metrics()
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0


def test_what_could_not_be_chosen_gets_no_gradient() -> None:
    spaces = SPACES["discrete"]
    embryo, (fragment,) = build(spaces, entropy_coef=0.1), random_team_rollout(spaces, seed=4, fragments=1)
    for batch in embryo.minibatches([fragment]):
        policy, value = embryo.model.executor(1)(batch.observation)
        assert isinstance(embryo._loss, PPOLossByHand)
        d_policy, d_value, _ = embryo._loss.gradient(policy, value, batch)
        assert (d_policy[policy == IMPOSSIBLE] == 0).all()
        assert (d_policy[policy != IMPOSSIBLE] != 0).any()
        dead = np.ones(len(value), bool)
        dead[slice(None) if batch.outputs is None else batch.outputs] = False
        assert (d_policy[dead] == 0).all()
        assert (d_value[dead] == 0).all()


def test_an_agents_steps_move_no_other_agents_parameters(spaces: Spaces) -> None:
    fragment = random_team_fragment(np.random.default_rng(1), 8, 4, spaces, deaths=False)
    fragment["observation"]["alive"][..., 1:] = False
    embryo = build(spaces, share_parameters=False, rewards="individual", max_grad_norm=1e9)
    before = {name: tensor.clone() for name, tensor in embryo.state()[0].items()}
    train(embryo, [fragment])
    after = embryo.state()[0]
    moved = {
        name for name in after if name.startswith("model.") and not torch.equal(after[name], before[name])
    }
    assert {name.split(".")[2] for name in moved if "log_std" not in name} == {"0"}
    assert {name.split(".")[1] for name in moved} >= {"policy", "value"}
    if "model.log_std" in moved:
        assert torch.equal(after["model.log_std"][1:], before["model.log_std"][1:])


def test_fragments_may_be_released_once_the_first_minibatch_is_there(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    kept, released = build(spaces), build(spaces)
    train(kept, [{name: field.copy() for name, field in f.items()} for f in fragments])
    for k, minibatch in enumerate(released.minibatches(fragments)):
        if k == 0:
            for field in (field for f in fragments for field in f.values()):
                field[...] = 77 if field.dtype.names is None else np.zeros((), field.dtype)
        released.update(minibatch)
    np.testing.assert_array_equal(parameters(kept), parameters(released))


@pytest.mark.parametrize("share_parameters", [True, False])
def test_it_trains_through_torch_as_it_does_in_numpy(
    spaces: Spaces, fragments: list[Fragment], share_parameters: bool
) -> None:
    ours = build(spaces, share_parameters=share_parameters)
    theirs = build(spaces, share_parameters=share_parameters, backend="torch")
    for embryo in (ours, theirs):
        train(embryo, fragments)
    np.testing.assert_allclose(parameters(ours), parameters(theirs), rtol=1e-3, atol=1e-4)


def learn_together(
    spaces: Spaces, fragments: list[Fragment], learners: int, **settings: Any
) -> tuple[list[Outcome], Table]:
    embryos = [build(spaces, seed=k, **settings) for k in range(learners)]

    def learn(group: AllReduce) -> Outcome:
        embryos[group.index].join(group)
        return train_one(embryos[group.index], fragments[group.index :: learners])

    return in_step(learners, learn)


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("normalize", ["minibatch", "rollout", "none"])
def test_learners_on_shares_of_a_rollout_make_the_update_of_one_on_all_of_it(
    spaces: Spaces, normalize: str, learners: int
) -> None:
    fragments = random_team_rollout(spaces, seed=7, fragments=6)
    settings: dict[str, Any] = {"minibatch_size": 10**4, "rollout_steps": 10**4, "epochs": 1}
    settings["normalize_advantage"] = normalize
    alone = train_one(build(spaces, **settings), fragments)
    outcomes, _ = learn_together(spaces, fragments, learners, **settings)
    assert_same(outcomes)
    assert (outcomes[0].uses, outcomes[0].updates) == (alone.uses, alone.updates)
    np.testing.assert_allclose(outcomes[0].moments, alone.moments, rtol=1e-4, atol=1e-7)


def test_learners_with_unequal_shares_make_the_same_updates_with_the_same_bits(spaces: Spaces) -> None:
    fragments = random_team_rollout(spaces, seed=7, fragments=6)
    fragments[1]["mask"][:] = 0
    fragments[4]["mask"][2:] = 0
    outcomes, _ = learn_together(spaces, fragments, 3)
    assert_same(outcomes)
    assert outcomes[0].uses == 3 * sum(int(fragment["mask"].sum()) for fragment in fragments)
    assert np.isfinite(outcomes[0].parameters).all()


def mostly_dead(spaces: Spaces, fragments: int) -> tuple[list[Fragment], int]:
    """Fragments of which only each third env step has one who lives, and how many of these are experience."""
    rollout = random_team_rollout(spaces, seed=7, fragments=fragments, deaths=False)
    for fragment in rollout:
        dead = np.ones(fragment["observation"]["alive"].shape, bool)
        dead[::3, :, 0] = False
        bury(fragment["observation"], dead)
    return rollout, sum(int(fragment["mask"][::3].sum()) for fragment in rollout)


def test_minibatches_in_which_nobody_lives_are_left_out(spaces: Spaces) -> None:
    fragments, steps = mostly_dead(spaces, 1)
    embryo = build(spaces, minibatch_size=2, epochs=1)
    batches = [(batch.total, len(batch.log_prob)) for batch in embryo.minibatches(fragments)]
    assert 0 < len(batches) < round(int(fragments[0]["mask"].sum()) / 2)
    assert all(total == own > 0 for total, own in batches)
    assert sum(total for total, _ in batches) == steps


def test_learners_leave_out_together_what_has_nobody_alive(spaces: Spaces) -> None:
    fragments, _ = mostly_dead(spaces, 4)
    far, near = (
        learn_together(spaces, fragments, 2, minibatch_size=2, epochs=2, target_kl=limit)[0]
        for limit in (1e6, 1e-4)
    )
    for outcomes in (far, near):
        assert_same(outcomes)
        assert np.isfinite(outcomes[0].parameters).all()
    all_of_them = 2 * round(sum(int(fragment["mask"].sum()) for fragment in fragments) / 2)
    assert 0 < near[0].updates < far[0].updates < all_of_them


@pytest.mark.parametrize(("normalize", "each_epoch"), [("minibatch", 2), ("none", 1)])
def test_learners_count_who_lives_once_an_epoch(spaces: Spaces, normalize: str, each_epoch: int) -> None:
    fragments = random_team_rollout(spaces, seed=7, fragments=2)
    outcomes, table = learn_together(spaces, fragments, 2, normalize_advantage=normalize)
    assert outcomes[0].updates > 3
    assert table.additions == 1 + 3 * each_epoch + outcomes[0].updates
