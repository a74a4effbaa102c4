"""Battles of SMAX as a vector of environments: JaxMARL's own, as a team's records."""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

from tianji_envs.core import VectorEnvironment, derive_seed
from tianji_envs.errors import MissingExtraError, UnknownEnvironmentError, WrongOptionError
from tianji_envs.team import TeamSpace
from tianji_envs.teams import smax
from tianji_envs.teams.smax import SMAXFactory, SMAXOptions

N, M, STOP, EAST, LIMIT = 8, 3, 4, 1, 40
Roll = Callable[..., Any]


@pytest.fixture(scope="module")
def battles() -> Iterator[VectorEnvironment]:
    """Compiled once: it takes seconds."""
    made = SMAXFactory().make("3m", N, max_episode_steps=LIMIT)
    yield made
    made.close()


def attack(seen: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Shoot at the first enemy in range; without one go where the enemies begin."""
    shoots = seen["available"][..., STOP + 1 :]
    chosen = np.where(shoots.any(axis=-1), STOP + 1 + shoots.argmax(axis=-1), EAST)
    return np.where(seen["alive"], chosen, STOP)


def retreat(seen: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Do not fight."""
    return np.full(seen["alive"].shape, STOP, np.int64)


def test_records_and_actions_have_the_sizes_that_the_scenario_has(battles: VectorEnvironment) -> None:
    assert battles.agents == ("ally_0", "ally_1", "ally_2")
    # Of JaxMARL: 13 features of each other unit and 10 of one's own; 12 numbers a unit in the state.
    assert battles.observation_space.dtype == TeamSpace(M, 5 * 13 + 10, 8, 6 * 12).dtype
    assert battles.action_space == gymnasium.spaces.MultiDiscrete([8] * M)


def test_steps_are_those_of_jaxmarl(battles: VectorEnvironment) -> None:
    import jax  # noqa: PLC0415 - takes seconds, and is settled by what makes battles
    from jaxmarl.environments.smax import HeuristicEnemySMAX, map_name_to_scenario  # noqa: PLC0415

    build: Any = HeuristicEnemySMAX
    scenario: Any = map_name_to_scenario
    env = build(scenario=scenario("3m"), max_steps=LIMIT - 1)
    step, available = jax.jit(env.step_env), jax.jit(env.get_avail_actions)
    key, now = jax.random.split(jax.random.PRNGKey(derive_seed(11, 2)))
    shown, state = jax.jit(env.reset)(now)

    seen = np.zeros(N, battles.observation_space.dtype)
    reward, terminated, truncated = np.zeros(N, np.float32), np.ones(N, np.bool_), np.ones(N, np.bool_)
    battles.reset(11, seen)
    rewards = 0.0
    for _ in range(LIMIT):
        mine = seen[2]
        for i, agent in enumerate(env.agents):
            np.testing.assert_allclose(mine["observation"][i], shown[agent], atol=1e-5)
            np.testing.assert_array_equal(mine["available"][i], available(state)[agent])
        np.testing.assert_allclose(mine["state"], shown["world_state"], atol=1e-4)
        np.testing.assert_array_equal(mine["alive"], state.state.unit_alive[:M])
        actions = attack(seen)
        key, now = jax.random.split(key)
        shown, state, gained, done, _ = step(
            now, state, {agent: actions[2, i] for i, agent in enumerate(env.agents)}
        )
        battles.step(actions, seen, reward, terminated, truncated)
        assert reward[2] == pytest.approx(float(gained["ally_0"]), abs=1e-6)
        assert (terminated[2] or truncated[2]) == bool(done["__all__"])
        rewards += float(reward[2])
        if done["__all__"]:
            break
    assert rewards > 0.3
    assert terminated[2]


def test_a_battle_begins_anew_on_the_step_after_its_end_without_reward_or_flags(
    battles: VectorEnvironment, roll: Roll
) -> None:
    rollout = roll(battles, 200, act=attack)
    over = rollout.terminated | rollout.truncated
    ends = np.nonzero(over[:-1])
    assert len(ends[0]) > 2 * N
    after = (ends[0] + 1, ends[1])
    assert not rollout.reward[after].any()
    assert not over[after].any()
    begun = rollout.observation[1:][after]
    assert begun["alive"].all()
    assert not begun["reward"].any()
    own_health = begun["observation"][:, :, -10]
    assert (own_health == 1).all()
    # What ended is still seen with the step that ended it.
    ended = rollout.observation[1:][ends]
    ours, theirs = (ended["state"][:, side].any(axis=1) for side in (slice(0, 30), slice(30, 60)))
    np.testing.assert_array_equal(rollout.terminated[ends], ~(ours & theirs))


def test_a_team_reward_is_everybody_s_and_worth_two_where_all_enemies_fall(
    battles: VectorEnvironment, roll: Roll
) -> None:
    rollout = roll(battles, 200, act=attack)
    parts = rollout.observation[1:]["reward"]
    np.testing.assert_array_equal(parts, np.repeat(rollout.reward[..., None], M, axis=2))
    returns: list[float] = []
    for column, over in zip(rollout.reward.T, (rollout.terminated | rollout.truncated).T, strict=True):
        returns += [float(part.sum()) for part in np.split(column, np.flatnonzero(over) + 1)[:-1]]
    assert max(returns) == pytest.approx(2.0, abs=1e-3)


def test_a_battle_is_won_where_only_allies_are_left(battles: VectorEnvironment, roll: Roll) -> None:
    won: list[npt.NDArray[np.bool_]] = []

    def act(seen: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        assert battles.won is not None
        won.append(battles.won.copy())
        return attack(seen)

    rollout = roll(battles, 300, act=act)
    after = rollout.observation[1:-1]
    gone = ~after["state"][..., 30:60].any(axis=-1)
    # JaxMARL logs as won what ends with a reward of 1 at least: the bonus.
    expected = rollout.terminated[:-1] & gone & after["alive"].any(axis=-1)
    np.testing.assert_array_equal(np.array(won[1:]), expected)
    np.testing.assert_array_equal(expected, rollout.reward[:-1] >= 1)
    assert 0 < expected.sum() < rollout.terminated.sum()


def test_dead_agents_see_nothing_and_can_only_stop(battles: VectorEnvironment, roll: Roll) -> None:
    seen = roll(battles, 100, act=attack).observation
    dead = ~seen["alive"]
    assert 0 < dead.sum() < dead.size / 2
    assert not seen["observation"][dead].any()
    np.testing.assert_array_equal(seen["available"][dead], np.eye(8, dtype=np.bool_)[[STOP] * dead.sum()])
    assert seen["available"].any(axis=-1).all()


@pytest.mark.parametrize(
    ("limit", "ends"), [({"max_episode_steps": 6}, [5, 12]), pytest.param({}, [99], marks=pytest.mark.soak)]
)
def test_a_battle_without_an_end_is_truncated_at_the_limit_which_is_100_unless_the_config_says_otherwise(
    roll: Roll, limit: dict[str, int], ends: list[int]
) -> None:
    peaceful = SMAXFactory().make("3m", 2, options={"enemy_shoots": False}, **limit)
    rollout = roll(peaceful, ends[-1] + 3, act=retreat)
    assert not rollout.terminated.any()
    assert np.flatnonzero(rollout.truncated[:, 0]).tolist() == ends
    np.testing.assert_array_equal(rollout.truncated[:, 0], rollout.truncated[:, 1])


def test_a_seed_repeats_every_battle_and_no_two_share_a_stream(
    battles: VectorEnvironment, roll: Roll
) -> None:
    first, again = (roll(battles, 60, seed=7, act=attack).observation for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = roll(battles, 1, seed=8, act=attack).observation
    begins = np.concatenate([first[0]["state"], other[0]["state"]])
    assert len(np.unique(begins, axis=0)) == 2 * N


def test_what_is_drawn_is_the_first_battle(battles: VectorEnvironment) -> None:
    battles.reset(3, np.zeros(N, battles.observation_space.dtype))
    picture = battles.render()
    assert picture.shape == (12 * 32, 12 * 32, 3)
    blue, red = picture[..., 2] > picture[..., 0], picture[..., 0] > picture[..., 2]
    assert 0 < np.nonzero(blue)[1].mean() < 12 * 16 < np.nonzero(red)[1].mean()


def test_scenarios_and_defaults_are_jaxmarl_s() -> None:
    from jaxmarl.environments.smax import HeuristicEnemySMAX, smax_env  # noqa: PLC0415 - takes seconds

    assert set(smax.SCENARIOS) == set(smax_env.MAP_NAME_TO_SCENARIO)
    parameters: dict[str, Any] = {}
    for kind in (smax_env.SMAX, HeuristicEnemySMAX):
        parameters |= inspect.signature(kind).parameters
    options = asdict(SMAXOptions())
    assert options == {name: parameters[name].default for name in options}


@pytest.mark.parametrize(("wrong", "nearest"), [("5m_vs_5m", "'5m_vs_6m'"), ("corridor", "they are 3m, 8m")])
def test_an_unknown_scenario_is_refused_with_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=f"SMAX has no scenario '{wrong}'; .*{nearest}"):
        SMAXFactory().check_id(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"see_enemy_action": True}, "did you mean 'see_enemy_actions'"),
        ({"scenario": "3m"}, "they are enemy_shoots, "),
        ({"walls_cause_death": 1}, "true or false"),
        ({"attack_mode": "nearest"}, '"closest" or "random"'),
        ({"world_steps_per_env_step": 0}, "greater than 0"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_built(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongOptionError, match=message) as refused:
        SMAXFactory().check_options("3m", options)
    assert refused.value.option == next(iter(options))


def test_without_jaxmarl_the_message_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tianji\[smax\]'"):
        SMAXFactory().check_options("3m", {})
    monkeypatch.delitem(sys.modules, "tianji_envs.teams.smax_vector", raising=False)
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    monkeypatch.setitem(sys.modules, "jaxmarl.environments.smax", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tianji\[smax\]'"):
        SMAXFactory().make("3m", 1)


def test_making_one_prints_nothing_keeps_the_streams_and_imports_no_other_environment() -> None:
    program = (
        "import sys; from tianji_envs.teams.smax import SMAXFactory; "
        "before = sys.stdout, sys.stderr, sys.__stdout__; SMAXFactory().make('3m', 1); "
        "print(before == (sys.stdout, sys.stderr, sys.__stdout__), "
        "'jaxmarl.environments.storm' in sys.modules, 'matplotlib' in sys.modules)\n"
        "import jaxmarl; assert jaxmarl.make('HeuristicEnemySMAX')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True False False\n")  # Then comes the whole of JaxMARL, and prints.
    assert done.stderr == ""


def test_the_users_settings_of_jax_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    smax._settle_jax(4)
    assert os.environ["JAX_PLATFORMS"] == "cuda"
    assert "XLA_FLAGS" not in os.environ
    smax._settle_jax(1)
    assert "intra_op_parallelism_threads=1" in os.environ["XLA_FLAGS"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp")
    smax._settle_jax(1)
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=/tmp"
