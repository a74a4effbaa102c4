"""Records of teams whose agents differ, leave, come back, or have masks of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from beds.team_worlds import Continuous, Leavers, Leaving, Masked, Telling, TellingTwice
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_envs.errors import BrokenEnvironmentError, UnsupportedSpaceError
from tianji_envs.serial import SerialVectorEnvironment
from tianji_envs.teams.pettingzoo import PettingZooTeam

Roll = Callable[..., Any]
STAYS: Leaving = (99, "dies")


def team(env: Any) -> PettingZooTeam:
    return PettingZooTeam("hand-made", env)


def vector(*envs: Any, limit: int | None = None) -> SerialVectorEnvironment:
    made = iter(envs)
    return SerialVectorEnvironment("hand-made", lambda: team(next(made)), len(envs), limit)


def test_agents_that_see_and_do_less_than_others_are_padded() -> None:
    made = team(Leavers([STAYS, STAYS, STAYS]))
    record = made.reset(0)
    assert made.agents == ("agent_0", "agent_1", "agent_2")
    assert record["observation"].tolist() == [[0, 0, 0], [10, 10, 0], [20, 20, 20]]
    assert record["available"].astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert isinstance(made.action_space, spaces.MultiDiscrete)
    assert made.action_space.nvec.tolist() == [2, 3, 4]
    assert "state" not in made.observation_space.dtype.names


def test_rewards_are_each_agents_own_and_the_teams_is_their_sum() -> None:
    made = team(Leavers([STAYS, (1, "dies"), STAYS]))
    made.reset(0)
    record, reward, _, _ = made.step(np.zeros(3, np.int64))
    assert (record["reward"].tolist(), reward) == ([1, 2, 3], 6)
    record, reward, _, _ = made.step(np.zeros(3, np.int64))
    assert (record["reward"].tolist(), reward) == ([1, 0, 3], 4)


def test_an_agent_that_died_sees_nothing_does_nothing_and_may_choose_action_0() -> None:
    env = Leavers([STAYS, (1, "dies"), STAYS])
    made = team(env)
    made.reset(0)
    record, _, terminated, truncated = made.step(np.array([1, 2, 3]))
    assert not terminated
    assert not truncated
    assert record["alive"].tolist() == [True, False, True]
    assert record["observation"].tolist() == [[1, 0, 0], [0, 0, 0], [21, 21, 21]]
    assert record["available"].astype(int)[1].tolist() == [1, 0, 0, 0]
    made.step(np.array([0, 2, 1]))
    assert env.got == [{"agent_0": 1, "agent_1": 2, "agent_2": 3}, {"agent_0": 0, "agent_2": 1}]


def test_an_agent_that_comes_back_is_alive_again() -> None:
    env = Leavers([STAYS, (1, "dies")], returns={"agent_1": 3})
    made = team(env)
    made.reset(0)
    alive = [made.step(np.array([0, 2]))[0]["alive"].tolist() for _ in range(4)]
    assert alive == [[True, False], [True, False], [True, True], [True, True]]
    assert env.got[3] == {"agent_0": 0, "agent_1": 2}


@pytest.mark.parametrize(
    ("leaving", "terminated", "alive"),
    [
        ([(2, "dies"), (2, "dies")], True, [False, False]),
        ([(1, "dies"), (2, "dies")], True, [False, False]),
        ([(2, "is cut"), (2, "is cut")], False, [True, True]),
        ([(1, "dies"), (2, "is cut")], False, [False, True]),
        ([(1, "is cut"), (2, "dies")], True, [False, False]),
        ([(2, "dies"), (2, "is cut")], False, [False, True]),
    ],
)
def test_an_episode_is_truncated_if_time_ended_it_for_any_and_shows_who_might_have_gone_on(
    leaving: list[Leaving], terminated: bool, alive: list[bool]
) -> None:
    made = team(Leavers(leaving))
    made.reset(0)
    assert made.step(np.zeros(2, np.int64))[2:] == (False, False)
    record, _, over, cut = made.step(np.zeros(2, np.int64))
    assert (over, cut) == (terminated, not terminated)
    assert record["alive"].tolist() == alive
    seen = np.array([[2, 0], [12, 12]])
    assert record["observation"].tolist() == np.where(np.array(alive)[:, None], seen, 0).tolist()


def test_an_agent_that_is_cut_off_alone_shows_what_it_sees_once_more() -> None:
    made = team(Leavers([STAYS, (1, "is cut"), (1, "dies")]))
    record = made.reset(0)
    assert not record["truncated"].any()
    record, _, terminated, truncated = made.step(np.zeros(3, np.int64))
    assert (terminated, truncated) == (False, False)
    assert record["alive"].tolist() == [True, False, False]
    assert record["truncated"].tolist() == [False, True, False]
    assert record["observation"].tolist() == [[1, 0, 0], [11, 11, 0], [0, 0, 0]]
    assert record["available"].astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]
    record, *_ = made.step(np.zeros(3, np.int64))
    assert not record["truncated"].any()
    assert record["observation"].tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert record["available"].astype(int)[1].tolist() == [1, 0, 0, 0]


class Unseen(Leavers):
    """The second agent sees nothing from the first step on."""

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        seen, *rest = super().step(actions)
        return {"agent_0": seen["agent_0"]}, *rest


def test_an_agent_that_is_cut_off_has_to_see_something() -> None:
    made = team(Unseen([STAYS, (1, "is cut")]))
    made.reset(0)
    with pytest.raises(BrokenEnvironmentError, match="agent_1 was truncated, and there is nothing that it"):
        made.step(np.zeros(2, np.int64))


leavings = st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["dies", "is cut"])), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(leavings)
def test_records_keep_their_promises_whenever_agents_leave(leaving: list[Leaving]) -> None:
    env = Leavers(leaving)
    made = vector(env)
    record, reward = np.zeros((2, 1), made.observation_space.dtype)[0], np.zeros(1, np.float32)
    terminated, truncated = np.zeros((2, 1), np.bool_)
    made.reset(3, record)
    ends = max(step for step, _ in leaving)
    for t in range(1, 2 * (ends + 1)):
        step = t % (ends + 1)  # 0: a new episode begins.
        made.step(np.zeros((1, len(leaving)), np.int64), record, reward, terminated, truncated)
        last = {reason for left, reason in leaving if left == ends}
        assert terminated[0] == (step == ends and last == {"dies"})
        assert truncated[0] == (step == ends and "is cut" in last)
        got = [m + 1 if 0 < step <= left else 0 for m, (left, _) in enumerate(leaving)]
        assert record["reward"][0].tolist() == got
        assert reward[0] == sum(got)
        alive = [left > step or (left == step == ends and why == "is cut") for left, why in leaving]
        assert record["alive"][0].tolist() == alive
        cut = [left == step < ends and why == "is cut" for left, why in leaving]
        assert record["truncated"][0].tolist() == cut
        assert record["available"][0].any(axis=-1).all()
        shown = np.array(alive) | cut
        assert (record["observation"][0].any(axis=-1) == shown)[1:].all(), "the first sees 0 at first"


def test_a_limit_of_the_config_cuts_an_episode_whose_agents_live_on(roll: Roll) -> None:
    rollout = roll(vector(Leavers([STAYS, STAYS]), limit=2), 6)
    assert rollout.truncated[:, 0].tolist() == [False, True, False, False, True, False]
    assert rollout.observation["alive"].all()
    assert rollout.observation["observation"][:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_only_the_first_episode_is_seeded(roll: Roll) -> None:
    envs = Leavers([(2, "dies")]), Leavers([(2, "dies")])
    roll(vector(*envs), 7)
    assert [env.seeds[-2:] for env in envs] == [[None, None], [None, None]]
    assert envs[0].seeds[-3] != envs[1].seeds[-3]


def test_an_action_mask_says_what_is_available_and_is_not_seen() -> None:
    made = team(Masked([STAYS, STAYS]))
    record = made.reset(0)
    assert record["observation"].tolist() == [[0, 0], [10, 10]]
    assert record["available"].astype(int).tolist() == [[0, 1, 0], [0, 0, 1]]


def test_a_mask_that_leaves_a_living_agent_no_action_is_refused() -> None:
    env = Masked([STAYS])
    env.masks = np.zeros(2, np.int8)
    with pytest.raises(BrokenEnvironmentError, match=r"hand-made: agent_0 .* leaves it no action"):
        team(env).reset(0)


def test_a_mask_in_the_infos_says_what_is_available_as_one_in_the_observation_does() -> None:
    made = team(Telling([STAYS, (2, "is cut"), (2, "dies")]))
    record = made.reset(0)
    for step in range(4):
        assert record["observation"][0].tolist() == [step, 0, 0], "the mask is no part of it"
        choices = [[step % 2], [step % 3 if step < 3 else 0], [step % 4 if step < 2 else 0]]
        assert [np.flatnonzero(one).tolist() for one in record["available"]] == choices
        record, *_ = made.step(np.array([one[0] for one in choices]))


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ([1, 1, 1], r"agent_0 has an action_mask of shape \(3,\) in its info for 2 actions; \(2,\) would be"),
        ([[1, 1]], r"agent_0 has an action_mask of shape \(1, 2\) in its info for 2 actions"),
        (1, r"agent_0 has an action_mask of shape \(\) in its info"),
        ([0, 0], "agent_0 is alive, and its action_mask leaves it no action"),
    ],
    ids=["too long", "too deep", "a number", "nothing left"],
)
def test_a_mask_in_the_infos_that_is_none_is_refused(start: int, shown: Any, words: str) -> None:
    with pytest.raises(BrokenEnvironmentError, match=f"hand-made: {words}"):
        team(Telling([STAYS], {start: shown})).step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ({2: None}, "has no action_mask in its info, and had one before; one at reset"),
        ({0: None, 1: None}, "has an action_mask in its info, and had none before; one at reset"),
    ],
    ids=["vanishes", "appears"],
)
def test_a_mask_that_the_infos_have_at_some_steps_only_is_refused(shown: Any, words: str) -> None:
    made = team(Telling([STAYS], shown))
    made.reset(0)
    made.step(np.zeros(1, np.int64))
    with pytest.raises(BrokenEnvironmentError, match=f"hand-made: agent_0 {words}"):
        made.step(np.zeros(1, np.int64))


def test_masks_in_observation_and_infos_have_to_agree() -> None:
    assert team(TellingTwice([STAYS], {0: [False, True]})).reset(0)["available"].tolist() == [[False, True]]
    with pytest.raises(
        BrokenEnvironmentError, match=r"has action_mask \[0 1\], its info \[1, 0\]; one would"
    ):
        team(TellingTwice([STAYS], {0: [1, 0]}))


@pytest.mark.parametrize("shown", [[0, 0], None], ids=["empty", "none"])
def test_an_agent_that_was_cut_off_may_have_no_action_or_no_mask(shown: Any) -> None:
    made = team(Telling([(1, "is cut"), STAYS], {1: shown}))
    made.reset(0)
    record, *_ = made.step(np.zeros(2, np.int64))
    assert record["truncated"].tolist() == [True, False]
    assert record["available"][0].tolist() == [True, True, False]


def test_a_record_for_a_policy_needs_the_mask_that_the_infos_have() -> None:
    made = team(Telling([STAYS, STAYS]))
    seen = np.zeros(1, np.float32)
    record = made.record_of({"agent_0": {"observation": seen, "action_mask": [0, 1]}})
    assert record["available"].astype(int).tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="agent_0 has a mask of its actions: "):
        made.record_of({"agent_0": seen})


def test_boxes_of_actions_are_padded_and_reach_each_agent_in_its_own_shape() -> None:
    env = Continuous([STAYS, STAYS])
    made = vector(env)
    box = made.action_space
    assert isinstance(box, spaces.Box)
    assert box.low.tolist() == [[-2, -2, -2, -2], [-2, -2, -2, 0]]
    assert box.high.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert "available" not in made.observation_space.dtype.names
    record = np.zeros(1, made.observation_space.dtype)
    made.reset(0, record)
    actions = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    out = np.zeros(1, np.float32), np.zeros(1, np.bool_), np.zeros(1, np.bool_)
    made.step(actions, record, *out)
    actions[...] = 77  # The caller writes the next step's into the same array.
    assert env.got[0]["agent_0"].tolist() == [[0, 1], [2, 3]]
    assert env.got[0]["agent_1"].tolist() == [4, 5, 6]


class Sees(Leavers):
    """One agent that sees ``value`` of ``space``."""

    def __init__(self, space: Any, value: Any) -> None:
        super().__init__([STAYS])
        self.space, self.value = space, value

    def observation_space(self, agent: str) -> Any:  # noqa: ARG002 - there is one
        return self.space

    def _see(self, agent: str) -> Any:  # noqa: ARG002 - there is one
        return self.value


@pytest.mark.parametrize(
    ("space", "value", "row"),
    [
        (spaces.Box(0, 9, (2, 2), np.float64), np.array([[1.0, 2.0], [3.0, 4.0]]), [1, 2, 3, 4]),
        (spaces.Box(0, 255, (3,), np.uint8), np.array([1, 2, 255], np.uint8), [1, 2, 255]),
        (spaces.Discrete(4), 2, [0, 0, 1, 0]),
        (spaces.Discrete(3, start=5), 5, [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    ],
)
def test_what_an_agent_sees_becomes_numbers_in_a_row(space: Any, value: Any, row: list[float]) -> None:
    assert team(Sees(space, value)).reset(0)["observation"].tolist() == [row]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), "hand-made: agent_0 sees Box.* an image"),
        (spaces.Box(-1, 1, (80, 80), np.float32), "an image; a team's agents see at most 4096 numbers"),
        (spaces.Text(4), "hand-made: agent_0 sees Text.*Box, Discrete, MultiBinary and MultiDiscrete"),
        (spaces.Dict(a=spaces.Discrete(2)), "'observation' and an 'action_mask'"),
    ],
)
def test_what_is_not_a_row_of_numbers_is_refused(space: Any, words: str) -> None:
    with pytest.raises(UnsupportedSpaceError, match=words):
        team(Sees(space, None))


class MixedActions(Leavers):
    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2) if agent == "agent_0" else spaces.Box(0, 1, (2,), np.float32)


def test_agents_that_act_in_several_ways_are_refused() -> None:
    with pytest.raises(UnsupportedSpaceError, match="all Discrete, or all Box"):
        team(MixedActions([STAYS, STAYS]))


class CountsFromFive(Leavers):
    def action_space(self, agent: str) -> Any:  # noqa: ARG002 - there is one
        return spaces.Discrete(2, start=5)


def test_an_agent_gets_its_action_as_its_own_space_counts() -> None:
    env = CountsFromFive([STAYS])
    made = team(env)
    made.reset(0)
    made.step(np.array([1]))
    assert env.got == [{"agent_0": 6}]


class WithState(Leavers):
    """Its state is all observations in a row, and ``more``."""

    def __init__(self, more: list[float], shape: tuple[int, ...] | None = None) -> None:
        super().__init__([STAYS, STAYS])
        self.more = more
        self.state_space = spaces.Box(-99, 99, shape or (3 + len(more),), np.float32)

    def state(self) -> npt.NDArray[Any]:
        return np.concatenate([*(self._see(agent) for agent in self.possible_agents), self.more])


def test_a_state_of_the_environments_own_is_part_of_every_record() -> None:
    made = team(WithState([7.0]))
    assert made.reset(0)["state"].tolist() == [0, 10, 10, 7]
    assert made.step(np.zeros(2, np.int64))[0]["state"].tolist() == [1, 11, 11, 7]


@pytest.mark.parametrize("env", [WithState([]), WithState([], shape=(90, 90))])
def test_a_state_that_is_all_observations_or_an_image_is_left_out(env: Any) -> None:
    assert "state" not in team(env).observation_space.dtype.names


class SeesNothing(Leavers):
    def reset(self, seed: int | None = None) -> Any:
        super().reset(seed)
        return {}, {}


class NoAgents(Leavers):
    def reset(self, seed: int | None = None) -> Any:
        seen = super().reset(seed)
        self.agents = []
        return seen


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (SeesNothing([STAYS]), "agent_0 is alive, and there is nothing that it sees"),
        (NoAgents([STAYS]), "no agent alive"),
        (Sees(spaces.Box(0, 1, (3,)), np.zeros(4)), r"agent_0 sees an array of shape \(4,\)"),
    ],
)
def test_an_environment_that_breaks_its_contract_is_refused(env: Any, words: str) -> None:
    with pytest.raises(BrokenEnvironmentError, match=f"hand-made: .*{words}"):
        team(env).reset(0)


def test_what_is_not_made_for_drawing_says_so() -> None:
    with pytest.raises(BrokenEnvironmentError, match="make it with render=True"):
        team(Leavers([STAYS])).render()
