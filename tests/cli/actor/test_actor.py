import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from cli.skirmish import Skirmish

from tianji_algos import registry as algorithms
from tianji_algos.core import Agent
from tianji_cli.errors import RunFailed
from tianji_cli.root.accounting import reconcile
from tianji_cli.telemetry.snapshot import Account
from tianji_envs.core import BaseEnv
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.serial import SerialVectorEnvironment
from tianji_transports.core import FULL

OpenStage = Callable[..., Any]


def joined(fragments: list[Any], name: str) -> npt.NDArray[Any]:
    """A field of consecutive fragments, ``[fragments x T, N, ...]``, without bootstrap rows."""
    return np.concatenate([one.fields[name][: len(one.fields["mask"])] for one in fragments])


def test_a_twin_environment_that_is_given_the_recorded_actions_shows_the_same(acting: OpenStage) -> None:
    one = acting(steps=8, num_envs=4)
    fragments = one.play(40)
    twin = one.make()
    shown = np.zeros((4, 4), np.float32)
    reward, terminated, truncated = np.zeros(4, np.float32), np.zeros(4, np.bool_), np.zeros(4, np.bool_)
    twin.reset(11, shown)
    ended = 0
    for fragment in fragments:
        fields = fragment.fields
        for t in range(8):
            np.testing.assert_array_equal(fields["observation"][t], shown)
            twin.step(fields["action"][t], shown, reward, terminated, truncated)
            np.testing.assert_array_equal(fields["reward"][t], reward)
            np.testing.assert_array_equal(fields["terminated"][t], terminated)
            np.testing.assert_array_equal(fields["truncated"][t], truncated)
            ended += np.count_nonzero(terminated | truncated)
        np.testing.assert_array_equal(fields["observation"][8], shown)
    assert ended > 20
    twin.close()


ENVIRONMENTS = pytest.mark.parametrize(
    ("name", "options", "ends"),
    [
        ("CartPole-v1", {}, "terminated"),
        ("CartPole-v1", {"max_episode_steps": 5}, "truncated"),
        ("CartPole-v1", {"max_episode_steps": 2}, "truncated"),
        ("Pendulum-v1", {"max_episode_steps": 7}, "truncated"),
    ],
)


@ENVIRONMENTS
def test_the_step_after_an_end_is_no_experience_and_every_other_is(
    acting: OpenStage, name: str, options: dict[str, int], ends: str
) -> None:
    one = acting(name, steps=4, num_envs=3, **options)
    fragments = one.play(30)
    over = joined(fragments, "terminated") | joined(fragments, "truncated")
    mask = joined(fragments, "mask")
    assert mask[0].all()
    np.testing.assert_array_equal(mask[1:], ~over[:-1])
    assert joined(fragments, ends).any()
    if ends == "truncated":
        assert not joined(fragments, "terminated").any()


@ENVIRONMENTS
def test_an_episode_s_return_is_the_sum_of_its_rewards_across_fragments_and_its_steps_are_counted(
    acting: OpenStage, name: str, options: dict[str, int], ends: str
) -> None:
    one = acting(name, steps=4, num_envs=3, **options)
    fragments = one.play(30)
    over = joined(fragments, "terminated") | joined(fragments, "truncated")
    reward = joined(fragments, "reward") * joined(fragments, "mask")
    recorded, lengths = joined(fragments, "episode_return"), joined(fragments, "episode_steps")
    assert not lengths[~over].any()
    for env in range(3):
        begin = 0
        for end in np.flatnonzero(over[:, env]):
            assert recorded[end, env] == pytest.approx(reward[begin : end + 1, env].sum(), rel=1e-5)
            assert lengths[end, env] == np.count_nonzero(joined(fragments, "mask")[begin : end + 1, env])
            begin = end + 1
        assert begin > 0


def test_a_page_a_header_and_a_mask_count_the_same_samples(acting: OpenStage) -> None:
    one = acting(steps=8, num_envs=4)
    fragments = one.play(20)
    samples = [int(fragment.header["samples"]) for fragment in fragments]
    assert samples == [np.count_nonzero(fragment.fields["mask"]) for fragment in fragments]
    assert min(samples) < 32, "an episode ended"
    assert [int(fragment.header["sequence"]) for fragment in fragments] == list(range(20))
    before = np.cumsum([0, *samples])
    assert [int(fragment.header["before"]) for fragment in fragments] == before[:-1].tolist()
    read = one.file.read(0)
    assert (read.pushed, read.finished) == (20, before[-1])
    assert 0 < read.first_step_ns < time.monotonic_ns()
    ages_ns = [int(fragment.header["age_ns"]) for fragment in fragments]
    assert min(ages_ns) > 0
    assert sum(ages_ns) <= time.monotonic_ns() - read.first_step_ns, "one was made after the other"


def test_an_agent_that_observes_sees_each_step_and_a_bonus_of_its_own_is_in_no_return(
    acting: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, npt.NDArray[Any]]] = []

    def observe(_agent: Any, step: Any) -> None:
        seen.append({name: array.copy() for name, array in step.items()})
        step["reward"] += 10 * step["mask"]

    monkeypatch.setattr(algorithms.load("agent", "ppo"), "observe", observe)
    fragments = acting(steps=8, num_envs=4).play(20)
    for name in ("observation", "action", "terminated", "truncated", "mask", "episode_steps"):
        np.testing.assert_array_equal(joined(fragments, name), [step[name] for step in seen[: 20 * 8]])
    rewards = np.array([step["reward"] for step in seen[: 20 * 8]])
    np.testing.assert_array_equal(joined(fragments, "reward"), rewards + 10 * joined(fragments, "mask"))
    returns, lengths = joined(fragments, "episode_return"), joined(fragments, "episode_steps")
    assert lengths.any()
    np.testing.assert_array_equal(returns[lengths > 0], lengths[lengths > 0])


def test_an_agent_that_does_not_observe_is_not_called(
    acting: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "observe", lambda _agent, _step: pytest.fail("called"))
    acting(steps=8, num_envs=4).play(2)


def test_values_and_the_bootstrap_row_are_those_of_the_policy_in_the_header(stage: OpenStage) -> None:
    one = stage(steps=5, num_envs=2)
    judge = one.model.executor(2)
    for version in (0, 1, 7):
        parameters = one.publish(version)
        fragment = one.play(2)[-1]  # One was begun with the policy before.
        assert fragment.header["version"] == version
        judge.adopt(parameters)
        for observation, value in zip(fragment.fields["observation"], fragment.fields["value"], strict=True):
            np.testing.assert_allclose(value, judge(observation)[1], rtol=1e-6)


def test_a_policy_is_adopted_only_between_two_fragments(stage: OpenStage, work: Callable[..., bool]) -> None:
    one = stage(steps=6, num_envs=2)
    first = one.publish(0)
    work(one.actor, 3)
    second = one.publish(1)
    one.publish(2)
    fragments = one.play(2)
    assert [int(fragment.header["version"]) for fragment in fragments] == [0, 2]
    judge = one.model.executor(2)
    judge.adopt(first)
    values = [judge(observation)[1].copy() for observation in fragments[0].fields["observation"]]
    np.testing.assert_allclose(fragments[0].fields["value"], values, rtol=1e-6)
    judge.adopt(second)
    assert not np.allclose(judge(fragments[0].fields["observation"][5])[1], values[5])


def test_without_a_policy_nothing_is_produced(stage: OpenStage, work: Callable[..., bool]) -> None:
    one = stage()
    assert not work(one.actor, 20)
    assert one.file.read(0).produced == 0
    assert one.file.read(0).first_step_ns == 0
    one.publish(0)
    assert work(one.actor)
    assert one.file.read(0).produced == 4


def test_in_step_an_actor_makes_its_share_and_waits_for_the_next_policy(
    stage: OpenStage, work: Callable[..., bool]
) -> None:
    one = stage(steps=4, num_envs=2, per_version=3, window=8)
    for version in range(3):
        one.publish(version)
        assert not work(one.actor, 40)
        received = [one.receive() for _ in range(3)]
        assert [int(fragment.header["version"]) for fragment in received if fragment] == [version] * 3
        assert one.receive() is None
        assert one.file.read(0).unfinished == 0


def test_a_window_of_unclaimed_fragments_holds_the_actor_back(
    acting: OpenStage, work: Callable[..., bool]
) -> None:
    one = acting(steps=4, num_envs=2, window=2)
    assert not work(one.actor, 40)
    held_back = one.file.read(0)
    assert (held_back.pushed, held_back.unfinished) == (2, 0)
    assert one.receive() is not None
    assert work(one.actor)
    assert not work(one.actor, 40)
    assert one.file.read(0).pushed == 3


@pytest.mark.parametrize("turns", [1, 5, 8], ids=["begun", "half full", "full and not pushed"])
def test_an_actor_that_stops_gives_its_fragment_up(
    acting: OpenStage, work: Callable[..., bool], turns: int
) -> None:
    one = acting(steps=8, num_envs=4, window=1)
    work(one.actor, turns)
    one.actor.stop()
    page = one.file.read(0)
    assert page.produced == page.dropped > 0
    assert reconcile({(0, 0): page}, {}, set()) == Account(page.produced, 0, 0, 0, dropped=page.produced)
    assert one.receive() is None
    assert one.sender.loan(0, "fragments", 8) is not FULL, "the loan was given back"


def test_an_actor_that_stops_between_fragments_drops_nothing(
    acting: OpenStage, work: Callable[..., bool]
) -> None:
    one = acting(steps=4, num_envs=2, per_version=1)
    work(one.actor, 10)
    one.actor.stop()
    page = one.file.read(0)
    assert (page.produced, page.unfinished, page.dropped) == (8, 0, 0)


class Leaky(BaseEnv):
    """Gives something that is not finite at one step, or at its second reset."""

    def __init__(self, what: str, at: int, value: float) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.what, self.at, self.value, self.steps, self.resets = what, at, value, 0, 0

    def reset(self, seed: int | None = None) -> Any:  # noqa: ARG002 - it always begins alike
        self.resets += 1
        return self._shown(self.what == "reset" and self.resets == 2)

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:  # noqa: ARG002 - it goes its way
        self.steps += 1
        now = self.steps == self.at
        reward = self.value if now and self.what == "reward" else 1.0
        return self._shown(now and self.what == "observation"), reward, self.steps % 10 == 0, False

    def _shown(self, leaks: bool) -> npt.NDArray[np.float32]:
        return np.array([0, 0, self.value if leaks else 0, 0], np.float32)


@pytest.mark.parametrize(
    ("what", "at", "value", "words"),
    [
        (
            "observation",
            5,
            np.nan,
            r"environment 1 of actor 0 gave nan as observation\[2\] in step 5 of its episode: fin",
        ),
        ("observation", 8, np.inf, r"gave inf as observation\[2\] in step 8 of its episode"),
        (
            "observation",
            21,
            np.nan,
            r"observation\[2\] in step 1 of its episode",
        ),  # The third, of ten steps each.
        ("reward", 3, -np.inf, r"environment 1 of actor 0 gave -inf as reward in step 3 of its episode"),
        ("reset", 0, np.nan, r"gave nan as observation\[2\] when it was reset"),
    ],
)
def test_what_is_not_finite_is_named_at_its_source_and_is_in_no_fragment_that_is_sent(
    acting: OpenStage, what: str, at: int, value: float, words: str
) -> None:
    sound_first = iter([("", 0, 0.0), (what, at, value)])
    leaky = SerialVectorEnvironment("leaky", lambda: Leaky(*next(sound_first)), 2)
    one = acting(steps=4, environment=leaky)
    sent: list[Any] = []
    with pytest.raises(BrokenEnvironmentError, match=words):
        one.play(30, sent)
    for fragment in sent:
        assert np.isfinite(fragment.fields["observation"]).all()
        assert np.isfinite(fragment.fields["reward"]).all()


@pytest.mark.parametrize(
    ("what", "bonus", "error", "words"),
    [
        (
            "",
            np.nan,
            RunFailed,
            r"^PPOAgent\.observe\(\) gave nan as reward of environment 1 of actor 0 in step 1",
        ),
        ("reward", 1.0, BrokenEnvironmentError, "^environment 1 of actor 0 gave nan as reward in step 3 of"),
    ],
)
def test_a_bonus_that_is_not_finite_is_the_agent_s(
    acting: OpenStage,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    bonus: float,
    error: type[Exception],
    words: str,
) -> None:
    def observe(_agent: Any, step: Any) -> None:
        step["reward"][1] += bonus

    monkeypatch.setattr(algorithms.load("agent", "ppo"), "observe", observe)
    sound_first = iter(["", what])
    leaky = SerialVectorEnvironment("leaky", lambda: Leaky(next(sound_first), 3, np.nan), 2)
    with pytest.raises(error, match=words):
        acting(steps=4, environment=leaky).play(1)


def test_numbers_whose_squares_are_too_large_are_finite_all_the_same(acting: OpenStage) -> None:
    leaky = SerialVectorEnvironment("leaky", lambda: Leaky("observation", 2, 1e30), 2)
    one = acting(steps=4, environment=leaky)
    (fragment,) = one.play(1)
    assert fragment.fields["observation"].max() == np.float32(1e30)


def test_records_of_teams_are_looked_into_part_by_part(acting: OpenStage) -> None:
    class Poisoned(Skirmish):
        def step(self, actions: Any, observation: Any, *others: Any) -> None:
            super().step(actions, observation, *others)
            observation["reward"][1, 0] = np.nan

    one = acting(steps=4, film=Poisoned(2))
    with pytest.raises(
        BrokenEnvironmentError, match=r"environment 1 .* nan as observation\['reward'\]\[0\] in"
    ):
        one.play(1)


class Shows(BaseEnv):
    """Episodes of ten steps that show ``value`` in one of them, counted over all."""

    def __init__(self, space: gym.Space[Any], at: int, value: Any) -> None:
        self.observation_space, self.action_space = space, gym.spaces.Discrete(2)
        self.at, self.value, self.made = at, value, 0

    def reset(self, seed: int | None = None) -> Any:  # noqa: ARG002 - it always begins alike
        return np.zeros(self.observation_space.shape or (), self.observation_space.dtype)

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:  # noqa: ARG002 - it goes its way
        self.made += 1
        shown = self.value if self.made == self.at else self.reset()
        return shown, 1.0, self.made % 10 == 0, False


def showing(space: gym.Space[Any], at: int, value: Any) -> SerialVectorEnvironment:
    second = iter([0, at])
    return SerialVectorEnvironment("shows", lambda: Shows(space, next(second), value), 2)


@pytest.mark.parametrize("at", [1, 4, 5, 10, 11, 23])
def test_a_whole_number_that_the_space_does_not_have_is_named_with_the_step_of_its_episode(
    acting: OpenStage, at: int
) -> None:
    space = gym.spaces.MultiDiscrete([3, 4])
    one = acting(steps=4, environment=showing(space, at, np.array([5, 1])))
    sent: list[Any] = []
    words = (
        rf"environment 1 of actor 0 gave 5 as observation\[0\] in step {(at - 1) % 10 + 1} of its episode: "
    )
    with pytest.raises(
        BrokenEnvironmentError, match=words + r"observation_space says 0 to 2; show one of these"
    ):
        one.play(30, sent)
    for fragment in sent:
        assert fragment.fields["observation"].max() == 0


def test_real_numbers_outside_of_their_bounds_are_counted(acting: OpenStage) -> None:
    one = acting(steps=4, environment=showing(gym.spaces.Box(-1, 1, (4,), np.float32), 12, [0, 2, 0, -3]))
    one.play(2)
    assert one.actor.report().remarks == {}
    one.play(4)
    assert (
        one.actor.report()
        .remarks["bounds"]
        .startswith(
            "environment 1 of actor 0 gave 2.0 as observation[1] in step 2 of its episode: "
            "observation_space says -1.0 to 1.0 (2 such numbers in 4 steps): "
        )
    )


def fails_at_nan(observation: npt.NDArray[Any], _fields: Any) -> npt.NDArray[Any]:
    if np.isnan(observation).any():
        raise ValueError("probabilities contain NaN")
    return np.zeros(2, np.int64)


def fails_at_no_class(observation: npt.NDArray[Any], _fields: Any) -> npt.NDArray[Any]:
    np.eye(5)[observation]
    return np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("environment", "act", "words", "cause"),
    [
        (
            lambda: SerialVectorEnvironment("leaky", lambda: Leaky("observation", 2, np.nan), 2),
            fails_at_nan,
            "gave nan as observation",
            ValueError,
        ),
        (
            lambda: showing(gym.spaces.Discrete(5), 2, 7),
            fails_at_no_class,
            "gave 7 as observation in step 2 of its episode",
            IndexError,
        ),
    ],
    ids=["not finite", "outside of the space"],
)
def test_an_agent_that_fails_over_an_impossible_observation_is_not_blamed(
    acting: OpenStage, environment: Any, act: Any, words: str, cause: type[Exception]
) -> None:
    one = acting(steps=8, environment=environment())
    one.agent_in_use.act = act
    with pytest.raises(BrokenEnvironmentError, match=words) as caught:
        one.play(1)
    assert isinstance(caught.value.__cause__, cause)
