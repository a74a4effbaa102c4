"""Results of reset() and step() have to fit the spaces: of single, vector and team environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from tianji_envs.core import BaseEnv, VectorEnvironment, fits
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.gym import OwnVectorEnvironment
from tianji_envs.records import RecordSpace
from tianji_envs.results import Expected, bounds_of, first_fault, missing_reset
from tianji_envs.serial import GymnasiumEnv, SerialVectorEnvironment
from tianji_envs.teams.pettingzoo import PettingZooTeam

Roll = Callable[..., Any]
GOOD_STEPS = 4
"""An episode's end and a reset are among them: what is wrong comes in the second step of an episode."""


class Single(gymnasium.Env[Any, Any]):
    """Shows ``good``; in its fourth step ``bad``, or gives what ``change`` makes of the step."""

    def __init__(self, space: Any, good: Any, bad: Any = None, change: Any = None) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.good, self.bad, self.change, self.made = good, bad, change, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        return self.good, {}

    def step(self, action: Any) -> Any:  # noqa: ARG002 - nothing comes of it
        self.made += 1
        result = self.good, 1.0, self.made == GOOD_STEPS - 2, False, {}
        if self.made < GOOD_STEPS:
            return result
        return (self.bad, *result[1:]) if self.change is None else self.change(*result)


def single(*arguments: Any) -> VectorEnvironment:
    """Two copies, of which only the second is wrong."""
    second = iter([False, True])

    def create() -> BaseEnv:
        space, good = arguments[:2]
        return GymnasiumEnv(Single(*arguments) if next(second) else Single(space, good, good))

    return SerialVectorEnvironment("mine", create, 2)


UINT8 = spaces.Box(0, 255, (3,), np.uint8)
FLOATS = spaces.Box(-9.0, 9.0, (4,), np.float32)
ZEROS = np.zeros(4, np.float32)
PAIR = spaces.Dict({"seen": FLOATS, "deep": spaces.Dict({"mode": spaces.Discrete(3)})})


def in_pair(seen: Any = ZEROS, mode: Any = 1) -> tuple[Any, Any]:
    """Observations of ``PAIR``, of which the second has these parts."""
    return {"seen": ZEROS, "deep": {"mode": 1}}, {"seen": seen, "deep": {"mode": mode}}


BAD = [
    (UINT8, np.zeros(3, np.uint8), np.array([1, -1, 3]), "(3,) and int64, [ 1 -1 3], with -1 at [1]; obs"),
    (UINT8, [1, 2, 255], [1, 2, 300], "type list and shape (3,), [1, 2, 300], with 300 at [2]; obs"),
    (
        UINT8,
        np.zeros(3, np.uint8),
        np.array([1.7, 0, 0]),
        "(3,) and float64, [1.7 0. 0. ]; observation_space s",
    ),
    (
        UINT8,
        np.zeros(3, np.int64),
        np.array([0, 0, 256]),
        "with 256 at [2]; observation_space says (3,) and uint8",
    ),
    (FLOATS, ZEROS, ZEROS[:1], "an observation of shape (1,) and float32, [0.]; observation_space says (4,)"),
    (FLOATS, ZEROS, 0.5, "an observation of type float, 0.5; observation_space says (4,) and float32"),
    (FLOATS, ZEROS, None, "an observation of type NoneType, None; observation_space says (4,)"),
    (FLOATS, ZEROS, [0, [1, 2], 3, 4], "an observation of type list, [0, [1, 2], 3, 4]; obs"),
    (spaces.Discrete(5), 3, 1.7, "an observation of type float, 1.7; observation_space says () and int64"),
    (spaces.Discrete(5), np.int64(3), np.array([3]), "an observation of shape (1,) and int64, [3]; obs"),
    (
        spaces.MultiBinary(2),
        np.ones(2, bool),
        np.array([0.0, 1.0]),
        "an observation of shape (2,) and float64",
    ),
    (
        PAIR,
        *in_pair(seen=0.5),
        "observation['seen'] of type float, 0.5; observation_space says (4,) and float32",
    ),
    (
        PAIR,
        *in_pair(mode=np.float32(1)),
        "observation['deep.mode'] of shape () and float32, 1.0; observation_space",
    ),
    (
        PAIR,
        *in_pair(seen=ZEROS[:, None]),
        "observation['seen'] of shape (4, 1) and float32, [[0.] [0.] [0.] [0.]]; obs",
    ),
]


@pytest.mark.parametrize(("space", "good", "bad", "words"), BAD)
def test_a_step_that_numpy_would_cut_or_repeat_is_refused(
    space: Any, good: Any, bad: Any, words: str, roll: Roll
) -> None:
    with pytest.raises(BrokenEnvironmentError) as caught:
        roll(single(space, good, bad), 6)
    assert str(caught.value).startswith(
        f"mine: step() gave {'an observation ' if space is not PAIR else words}"
    )
    assert words in str(caught.value)
    assert str(caught.value).endswith("(copy 1, step 2 of its episode)"), "as the user counts"


@pytest.mark.parametrize(
    ("space", "shown"),
    [
        (UINT8, [1, 2, 255]),
        (UINT8, np.array([1, 2, 255])),
        (UINT8, np.ones(3, bool)),
        (FLOATS, np.zeros(4)),
        (FLOATS, [0, 1, 2, 3]),
        (spaces.Discrete(3, start=5), 7),
        (spaces.Discrete(2), True),
        (spaces.Discrete(2), np.array(1)),
        (spaces.MultiBinary(2), np.ones(2, bool)),
        (spaces.MultiDiscrete([3, 4]), [2, 3]),
        (spaces.Box(0, 1, (2,), bool), [1, 0]),
    ],
)
def test_what_stays_what_it_is_in_the_space_s_dtype_is_taken(space: Any, shown: Any, roll: Roll) -> None:
    rollout = roll(single(space, shown, shown), 6)
    np.testing.assert_array_equal(rollout.observation[:, 1], np.stack([np.asarray(shown)] * 7))
    assert first_fault(rollout.observation, bounds_of(space, 2)) is None


def test_another_value_of_a_type_that_was_right_is_looked_at_again() -> None:
    expected = Expected("it", np.float32, (4,))
    for right in (np.zeros(4), ZEROS, np.zeros(4, np.int16), [0.0, 1.0, 2.0, 3.0], ZEROS):
        expected.check(right)
        for wrong in (np.zeros(3), np.zeros((4, 1)), np.zeros(4, complex), ["a"] * 4, 0.0, np.float32(0)):
            with pytest.raises(BrokenEnvironmentError):
                expected.check(wrong)


@given(
    st.sampled_from([np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64, np.bool_]),
    st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64]),
    st.data(),
)
def test_whole_numbers_fit_where_they_stay_what_they_are(to: Any, of: Any, data: st.DataObject) -> None:
    limits = np.iinfo(of)
    edges = st.sampled_from(
        [n for n in (-129, -1, 0, 1, 127, 128, 255, 256, limits.max) if n >= limits.min and n <= limits.max]
    )
    numbers = data.draw(
        st.lists(edges | st.integers(int(limits.min), int(limits.max)), min_size=1, max_size=3)
    )
    least, most = (0, 1) if to is np.bool_ else (np.iinfo(to).min, np.iinfo(to).max)
    assert fits(np.array(numbers, of), np.dtype(to)) == all(least <= number <= most for number in numbers)


WHOLE = [
    (spaces.Discrete(5), -1, "gave -1 as observation", "observation_space says 0 to 4;"),
    (spaces.Discrete(5), 7, "gave 7 as observation", "observation_space says 0 to 4;"),
    (spaces.Discrete(3, start=-1), 2, "gave 2 as observation", "observation_space says -1 to 1;"),
    (spaces.MultiDiscrete([3, 4]), [1, 4], "gave 4 as observation[1]", "observation_space says 0 to 3;"),
    (spaces.MultiDiscrete([3, 4]), [5, 1], "gave 5 as observation[0]", "observation_space says 0 to 2;"),
    (spaces.MultiBinary(2), [0, 2], "gave 2 as observation[1]", "observation_space says 0 to 1;"),
    (spaces.Box(1, 7, (2, 2), np.int32), [[1, 2], [0, 7]], "gave 0 as observation[1, 0]", "says 1 to 7;"),
    (
        spaces.Box(np.array([0, 3]), np.array([4, 9]), dtype=np.int8),
        [3, 2],
        "gave 2 as observation[1]",
        "3 to 9",
    ),
]


@pytest.mark.parametrize(("space", "bad", "gave", "wanted"), WHOLE)
@pytest.mark.parametrize("in_record", [False, True])
def test_whole_numbers_that_the_space_does_not_have_are_found(
    space: Any, bad: Any, gave: str, wanted: str, in_record: bool
) -> None:
    shown = np.stack([np.stack([space.sample() for _ in range(3)]) for _ in range(4)])
    values, shape = shown, space
    if in_record:
        shape = RecordSpace("mine", spaces.Dict({"part": space, "other": FLOATS}))
        values = np.zeros(shown.shape[:2], shape.dtype)
        values["part"] = shown
        gave = gave.replace("observation", "observation['part']")
    bounds = bounds_of(shape, 3)
    assert first_fault(values, bounds) is None
    (values["part"] if in_record else values)[2, 1] = bad
    found = first_fault(values, bounds)
    assert found is not None
    assert found[:3] == (2, 1, gave)
    assert wanted in found[3]


@given(st.integers(1, 9), st.integers(-5, 5), st.integers(-12, 12))
def test_the_bounds_of_discrete_are_its_elements(n: int, start: int, value: int) -> None:
    space = spaces.Discrete(n, start=start)
    found = first_fault(np.array([[value]]), bounds_of(space, 1))
    assert (found is None) == space.contains(value)


def test_bounds_are_looked_at_only_where_a_dtype_has_more() -> None:
    free = [UINT8, spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(0, 1, (2,), bool)]
    assert [bounds_of(space, 2) for space in free] == [{}, {}, {}]


def test_a_real_number_outside_of_a_box_is_no_fault_and_is_found() -> None:
    half = spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([np.inf, 2.0], np.float32))
    values = np.zeros((2, 3, 2), np.float32)
    values[1, 2] = 9.0, 2.5
    (bounds,) = bounds_of(half, 3).values()
    assert first_fault(values, bounds_of(half, 3)) is None
    outside = bounds.outside(values)
    assert outside is not None
    assert np.argwhere(outside).tolist() == [[1, 2, 1]]
    assert bounds.say((1, 2, 1)) == "observation_space says -inf to 2.0"


NO_FLAGS = [[False], "False", float("nan"), np.zeros(2, bool), np.array([False]), None, 2, {}]
NO_REWARDS = [None, "1.5", [1.0], np.ones(1), np.ones(2), object()]


@pytest.mark.parametrize("flag", NO_FLAGS, ids=repr)
@pytest.mark.parametrize("place", [2, 3])
def test_a_flag_is_true_or_false(flag: Any, place: int, roll: Roll) -> None:
    def change(*result: Any) -> Any:
        return (*result[:place], flag, *result[place + 1 :])

    name = {2: "terminated", 3: "truncated"}[place]
    with pytest.raises(BrokenEnvironmentError) as caught:
        roll(single(FLOATS, ZEROS, None, change), 6)
    message = str(caught.value)
    if isinstance(flag, dict) and place == 3:
        assert "step() gave 4 values" in message, "as gym's old step(), which has an info there"
    else:
        assert message.startswith(f"mine: step() gave {name} of ")
        assert message.endswith("; True or False is wanted (copy 1, step 2 of its episode)")


@pytest.mark.parametrize("flag", [True, np.True_, np.array(True), 1, np.int32(1), 1.0], ids=repr)
def test_numbers_0_and_1_and_arrays_of_one_flag_are_flags(flag: Any, roll: Roll) -> None:
    for place in (2, 3):
        made = single(FLOATS, ZEROS, None, lambda *all, at=place: (*all[:at], flag, *all[at + 1 :]))
        rollout = roll(made, 5)
        ends = rollout.terminated if place == 2 else rollout.truncated
        assert ends[:, 1].tolist() == [False, place == 2, False, False, True]


@pytest.mark.parametrize("reward", NO_REWARDS, ids=lambda reward: type(reward).__name__)
def test_a_reward_is_one_number(reward: Any, roll: Roll) -> None:
    made = single(FLOATS, ZEROS, None, lambda *all: (all[0], reward, *all[2:]))
    with pytest.raises(BrokenEnvironmentError) as caught:
        roll(made, 6)
    assert str(caught.value).startswith("mine: step() gave a reward of ")
    assert str(caught.value).endswith(
        "; a single number is wanted, which a wrapper can make of several (copy 1, step 2 of its episode)"
    )


class Vector(VectorEnv[Any, Any, Any]):
    """Two copies with observations of three bytes; one of its results is ``value`` in the third step."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - gymnasium's

    def __init__(self, place: int = 5, value: Any = None) -> None:
        self.num_envs, self.place, self.value, self.made = 2, place, value, 0
        self.single_observation_space, self.single_action_space = UINT8, spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # noqa: ARG002
        return np.zeros((2, 3), np.uint8), {}

    def step(self, actions: Any) -> Any:  # noqa: ARG002
        self.made += 1
        given: list[Any] = [np.zeros((2, 3), np.uint8), np.ones(2), *np.zeros((2, 2), bool), {}]
        if self.made == 3:
            given[self.place] = self.value
        return tuple(given)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (
            0,
            np.zeros((2, 1), np.uint8),
            "observations of shape (2, 1) and uint8, [[0] [0]]; observation_space",
        ),
        (
            0,
            np.array([[0, 1, 2], [0, 0, 300]]),
            "with 300 at [1, 2]; observation_space says (2, 3) and uint8",
        ),
        (0, np.zeros((2, 3)), "observations of shape (2, 3) and float64"),
        (1, np.ones((2, 1)), "rewards of shape (2, 1) and float64, [[1.] [1.]]; numbers (2,) are wanted"),
        (1, [None, 1.0], "rewards of type list and shape (2,), [None, 1.0]; numbers (2,) are wanted"),
        (
            2,
            np.array(["False", "False"]),
            "terminated of shape (2,) and <U5, ['False' 'False']; an array (2,)",
        ),
        (
            2,
            [[False], [False]],
            "terminated of type list and shape (2, 1), [[False], [False]]; an array (2,)",
        ),
        (3, np.array([0.0, np.nan]), "truncated of shape (2,) and float64, [ 0. nan]; an array (2,) of True"),
        (3, False, "truncated of type bool, False; an array (2,) of True and False is wanted"),
    ],
)
def test_a_vector_s_results_are_held_against_its_spaces(
    place: int, value: Any, words: str, roll: Roll
) -> None:
    vector = OwnVectorEnvironment("vectors", Vector(place, value))
    roll(vector, 2)
    with pytest.raises(BrokenEnvironmentError) as caught:
        roll(vector, 1)
    assert str(caught.value).startswith("vectors: step() gave ")
    assert words in str(caught.value)


def test_a_vector_s_reset_gives_two_values(roll: Roll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vector, "reset", lambda *_, **__: np.zeros((2, 3), np.uint8))
    with pytest.raises(
        BrokenEnvironmentError, match=r"vectors: reset\(\) gave a value of shape \(2, 3\) and"
    ):
        roll(OwnVectorEnvironment("vectors", Vector()), 0)


class Team:
    """A PettingZoo environment of two; ``changes`` are results of its second step."""

    possible_agents = ("ann", "bob")

    def __init__(self, space: Any, good: Any, **changes: Any) -> None:
        self.space, self.good, self.changes, self.made = space, good, changes, 0
        self.agents = list(self.possible_agents)

    def observation_space(self, agent: str) -> Any:  # noqa: ARG002 - both see alike
        return self.space

    def action_space(self, agent: str) -> Any:  # noqa: ARG002
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> Any:  # noqa: ARG002
        if "reset" in self.changes:
            return self.changes["reset"]
        return dict.fromkeys(self.agents, self.good), {}

    def step(self, actions: Any) -> Any:  # noqa: ARG002
        self.made += 1
        result = {
            "seen": dict.fromkeys(self.agents, self.good),
            "rewards": dict.fromkeys(self.agents, 1.0),
            "ends": dict.fromkeys(self.agents, False),
            "cuts": dict.fromkeys(self.agents, False),
            "infos": {},
        }
        if self.made == 2:
            if "step" in self.changes:
                return self.changes["step"]
            self.agents = self.changes.get("agents", self.agents)
            result |= {name: one for name, one in self.changes.items() if name in result}
        return tuple(result.values())


def team(*arguments: Any, **changes: Any) -> VectorEnvironment:
    made = iter([{}, changes])
    return SerialVectorEnvironment("mine", lambda: PettingZooTeam("mine", Team(*arguments, **next(made))), 2)


def of_bob(value: Any, ann: Any = 0) -> dict[str, Any]:
    return {"ann": ann, "bob": value}


@pytest.mark.parametrize(
    ("space", "good", "bad", "words"),
    [
        (
            UINT8,
            np.zeros(3, np.uint8),
            np.array([1, -1, 3]),
            "sees an array of shape (3,) and int64, [ 1 -1 3], w",
        ),
        (
            FLOATS,
            ZEROS,
            ZEROS[:1],
            "sees an array of shape (1,) and float32, [0.]; observation_space says (4,)",
        ),
        (FLOATS, ZEROS, 0.5, "sees an array of type float, 0.5; observation_space says (4,) and float32"),
        (spaces.Discrete(5), 3, 1.7, "sees an array of type float, 1.7; observation_space says () and int64"),
        *((space, space.sample(), bad, f"{gave.replace('gave', 'sees')}: ") for space, bad, gave, _ in WHOLE),
    ],
)
def test_what_an_agent_sees_is_held_against_its_space(
    space: Any, good: Any, bad: Any, words: str, roll: Roll
) -> None:
    with pytest.raises(BrokenEnvironmentError) as caught:
        roll(team(space, good, seen=of_bob(bad, good)), 4)
    assert str(caught.value).startswith(f"mine: bob {words}")
    assert str(caught.value).endswith("(copy 1, step 2 of its episode)")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rewards": of_bob(np.ones(1))},
            "step() gave bob a reward of shape (1,) and float64, [1.]; a single n",
        ),
        ({"rewards": of_bob(None)}, "step() gave bob a reward of type NoneType, None; a single number"),
        ({"rewards": {"zed": 1.0}}, "step() gave rewards of 'zed'; possible_agents are ('ann', 'bob')"),
        ({"rewards": 1.0}, "step() gave rewards of type float, 1.0; a dict by the agents' names is wanted"),
        (
            {"ends": of_bob([False])},
            "step() gave bob terminated of type list and shape (1,), [False]; True or",
        ),
        (
            {"ends": of_bob("False")},
            "step() gave bob terminated of type str, 'False'; True or False is wanted",
        ),
        ({"cuts": of_bob(np.nan)}, "step() gave bob truncated of type float, nan; True or False is wanted"),
        (
            {"cuts": of_bob(np.zeros(1, bool))},
            "step() gave bob truncated of shape (1,) and bool, [False]; True",
        ),
        ({"seen": {7: ZEROS}}, "step() gave observations of 7; possible_agents are ('ann', 'bob')"),
        ({"seen": None}, "step() gave observations of type NoneType, None; a dict by the agents' names"),
        ({"agents": ["ann", "zed"]}, "step() gave agents of 'zed'; possible_agents are ('ann', 'bob')"),
        ({"step": ({}, {}, {}, {})}, "step() gave 4 values; PettingZoo's (observations, rewards, termin"),
        ({"step": None}, "step() gave a value of type NoneType, None; PettingZoo's (observations, rew"),
        ({"reset": {"ann": ZEROS, "bob": ZEROS}}, "reset() gave a value of type dict, {'ann': "),
        (
            {"reset": None},
            "reset() gave a value of type NoneType, None; PettingZoo's (observations, infos) is w",
        ),
        ({"reset": ({"zed": ZEROS}, {})}, "reset() gave observations of 'zed'; possible_agents are"),
    ],
)
def test_results_of_a_team_are_dicts_by_agent_of_numbers_and_flags(
    changes: dict[str, Any], words: str, roll: Roll
) -> None:
    with pytest.raises(BrokenEnvironmentError) as caught:
        roll(team(FLOATS, ZEROS, **changes), 4)
    assert str(caught.value).startswith(f"mine: {words}")
    assert str(caught.value).endswith("(copy 1, step 2 of its episode)") or "reset" in changes


class Known(Team):
    """Shows a state, too, and which actions there are."""

    state_space = FLOATS

    def observation_space(self, agent: str) -> Any:  # noqa: ARG002
        return spaces.Dict({"observation": UINT8, "action_mask": spaces.MultiBinary(2)})

    def state(self) -> Any:
        return np.arange(4.0 if self.made < 2 or "state" not in self.changes else 1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"state": 1},
            "mine: state() gave an array of shape (1,) and float64, [0.]; observation_space says (4,)",
        ),
        (
            {"seen": {"ann": 1, "bob": 1}},
            "mine: ann sees a value of type int, 1; {'observation', 'action_mask'} is wanted",
        ),
    ],
)
def test_a_state_and_a_mask_are_held_against_their_spaces(changes: Any, words: str, roll: Roll) -> None:
    good = {"observation": np.zeros(3, np.uint8), "action_mask": np.ones(2, np.int8)}
    made = SerialVectorEnvironment("mine", lambda: PettingZooTeam("mine", Known(FLOATS, good, **changes)), 2)
    with pytest.raises(BrokenEnvironmentError) as caught:
        roll(made, 4)
    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith("(copy 0, step 2 of its episode)")


def reset_of(**changes: Any) -> Any:
    """Two copies of which the second ended its episode; None if both go on as they should."""
    given: dict[str, npt.NDArray[Any]] = {
        "reward": np.array([1.0, 0.0]),
        "terminated": np.array([True, False]),
        "truncated": np.zeros(2, bool),
    }
    return missing_reset(np.array([False, True]), **(given | changes))


def test_a_step_that_begins_no_episode_where_it_is_to_is_found() -> None:
    assert reset_of() is None
    assert reset_of(reward=np.array([1.0, -2.0]))[0] == 1
    assert "gave a reward of -2 in the step after an episode's end" in reset_of(reward=np.array([1, -2.0]))[1]
    assert "says terminated in the step after" in reset_of(terminated=np.ones(2, bool))[1]
    assert "says truncated in the step after" in reset_of(truncated=np.ones(2, bool))[1]


def test_a_vector_may_keep_its_last_actions() -> None:
    class Keeps(Vector):
        given: ClassVar[list[Any]] = []

        def step(self, actions: Any) -> Any:
            self.given.append(actions)
            return super().step(actions)

    made = OwnVectorEnvironment("vectors", Keeps(4, 0))
    shown, reward, ends, cuts = made.new_observations(), np.zeros(2, np.float32), *np.zeros((2, 2), bool)
    made.reset(0, shown)
    actions = np.zeros(2, np.int64)  # An agent's memory, which it writes into again.
    for step in range(2):
        actions[...] = step
        made.step(actions, shown, reward, ends, cuts)
    assert [one.tolist() for one in Keeps.given] == [[0, 0], [1, 1]]


def test_a_vector_whose_infos_are_a_list_is_stepped(roll: Roll) -> None:
    roll(OwnVectorEnvironment("vectors", Vector(4, [{"a": 1}, {"a": 2}])), 3)


@pytest.mark.parametrize("key", ["final_obs", "final_info"])
def test_a_vector_with_infos_of_another_mode_of_autoreset_is_refused(key: str, roll: Roll) -> None:
    vector = OwnVectorEnvironment("vectors", Vector(4, {"a": 1, key: np.zeros(2)}))
    with pytest.raises(
        BrokenEnvironmentError, match=f"info with '{key}': it resets in .*SAME_STEP, or DISABLED"
    ):
        roll(vector, 3)
