"""An actor stores frames once, and its agent and learners see them in stacks."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cli.film import FRAME, Film
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tianji_algos.rollout_observations import Observations
from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.results import UnfitError

OpenStage = Callable[..., Any]
ANY_FILM = {
    "stack": st.sampled_from([1, 2, 4]),
    "steps": st.sampled_from([1, 2, 3, 8]),
    "end_rate": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    "num_envs": st.integers(1, 3),
}
relaxed = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def episodes_seen(fragments: list[Any], stack: int) -> Iterator[npt.NDArray[Any]]:
    """Stacks at each step, put together one by one from the newest frames and the masks alone."""
    since: list[list[Any]] = [[] for _ in range(fragments[0].fields["mask"].shape[1])]
    first = np.ones(len(since), np.bool_)
    for fragment in fragments:
        frames = fragment.fields["observation"][stack - 1 :]
        for shown, mask in zip(frames, fragment.fields["mask"], strict=False):
            since = [
                [frame] if new else [*known, frame]
                for known, frame, new in zip(since, shown, first, strict=True)
            ]
            blank = [np.zeros(FRAME.shape, np.uint8)] * stack
            stacks = [np.stack([*blank, *known][-stack:]) for known in since]
            yield np.stack(stacks) if stack > 1 else np.stack(stacks)[:, 0]
            first = ~mask


@relaxed
@given(**ANY_FILM)
def test_an_agent_sees_the_last_frames_of_each_episode_and_a_learner_what_it_saw(
    acting: OpenStage, stack: int, steps: int, end_rate: float, num_envs: int
) -> None:
    one = acting(steps=steps, film=Film(num_envs, stack, end_rate))
    fragments = one.play(6)
    seen = one.witness.said.seen
    for shown, expected in zip(seen, episodes_seen(fragments, stack), strict=False):
        np.testing.assert_array_equal(shown, expected)
    for number, finished in enumerate(one.witness.said.finished[:5]):
        np.testing.assert_array_equal(finished, seen[(number + 1) * steps])
    for number, fragment in enumerate(fragments):
        # A fragment's first rows are what was seen at its first step, zeros included.
        first = seen[number * steps]
        rows = fragment.fields["observation"][:stack]
        np.testing.assert_array_equal(rows.swapaxes(0, 1) if stack > 1 else rows[0], first)
    gathered = Observations(one.spaces, torch.device("cpu"))
    gathered.gather([fragment.fields for fragment in fragments])
    numbers = np.arange(6 * (steps + 1) * num_envs).reshape(6, steps + 1, num_envs)
    for number, fragment_numbers in enumerate(numbers):
        shown = [*seen[number * steps : (number + 1) * steps], one.witness.said.finished[number]]
        np.testing.assert_array_equal(gathered.take(fragment_numbers), shown)


@relaxed
@given(n_step=st.sampled_from([1, 3]), **ANY_FILM)
def test_a_replay_of_single_frames_gives_back_what_the_agent_saw(
    acting: OpenStage, stack: int, steps: int, end_rate: float, num_envs: int, n_step: int
) -> None:
    one = acting(steps=steps, film=Film(num_envs, stack, end_rate))
    chosen = ReplaySettings(6 * steps * num_envs, "uniform", n_step, 0.9)
    replay = Replay(one.layout, chosen, agent_fields=("action",), seed=1)
    for fragment in one.play(6):
        into = np.ndarray(one.layout.nbytes, np.uint8, replay.free)
        into[: fragment.header.nbytes] = np.frombuffer(fragment.header.tobytes(), np.uint8)
        for name, array in one.layout.views(replay.free).items():
            array[...] = fragment.fields[name]
        replay.accept()
    batch = BatchArrays(BatchLayout.of(one.layout, 64, ("action",)))
    replay.sample(batch)
    seen = [*one.witness.said.seen[: 6 * steps], one.witness.said.finished[5]]
    lengths = replay.index.starts[batch.key % replay.ring.slot_steps] & 127
    for sample, key in enumerate(batch.key.tolist()):
        t, n = divmod(key, num_envs)
        np.testing.assert_array_equal(batch.batch.observation[sample], seen[t][n])
        np.testing.assert_array_equal(batch.batch.next_observation[sample], seen[t + lengths[sample]][n])


@pytest.mark.parametrize("end_rate", [0.1, 0.6])
def test_what_an_agent_remembers_is_recorded_once_a_fragment_and_forgotten_between_episodes(
    acting: OpenStage, end_rate: float
) -> None:
    one = acting(steps=5, film=Film(4, 2, end_rate))
    expected, episodes = np.zeros(4, np.int64), 0
    for fragment in one.play(12):
        fields = fragment.fields
        np.testing.assert_array_equal(fields["since"][0, :, 0], expected)
        for t, mask in enumerate(fields["mask"]):
            np.testing.assert_array_equal(fields["steps"][t], expected)
            expected = (expected + 1) * mask
            episodes += int(np.count_nonzero(~mask))
        np.testing.assert_array_equal(fields["steps"][5], expected)
    assert episodes > 10


def test_returns_and_lengths_are_those_of_whole_games_where_an_episode_is_less(acting: OpenStage) -> None:
    one = acting(steps=5, film=Film(3, 2, 0.4, games=True))
    fragments = one.play(30)
    twin = Film(3, 2, 0.4, games=True)
    assert twin.games is not None
    shown, reward = np.zeros((3, *FRAME.shape), np.uint8), np.zeros(3, np.float32)
    terminated, truncated = np.zeros(3, np.bool_), np.zeros(3, np.bool_)
    twin.reset(11, shown)
    games, episodes, played = 0, 0, np.zeros(3, np.int64)
    for fragment in fragments:
        for t in range(5):
            twin.step(np.zeros(3), shown, reward, terminated, truncated)
            expected = np.where(twin.games.over, twin.games.score, np.nan)
            np.testing.assert_array_equal(fragment.fields["episode_return"][t], expected)
            np.testing.assert_array_equal(fragment.fields["reward"][t], reward)
            played += fragment.fields["mask"][t]
            expected = np.where(twin.games.over, played, 0)
            np.testing.assert_array_equal(fragment.fields["episode_steps"][t], expected)
            played[twin.games.over] = 0
            games += int(np.count_nonzero(twin.games.over))
            episodes += int(np.count_nonzero(terminated | truncated))
    assert episodes > 2 * games > 20


class Unfit(Film):
    """Its second copy gives what does not fit in a step that is counted from 1."""

    def __init__(self, at: int) -> None:
        super().__init__(3, 2, 0.4, games=True)
        self._left = at

    def step(self, actions: Any, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        self._left -= 1
        if not self._left:
            raise UnfitError("it does not fit", 1)
        super().step(actions, observation, reward, terminated, truncated)


@pytest.mark.parametrize("at", range(1, 41))
def test_the_step_of_a_game_is_said_where_an_episode_is_less(stage: OpenStage, at: int) -> None:
    one, twin = stage(steps=5, film=Unfit(at)), Film(3, 2, 0.4, games=True)
    assert twin.games is not None
    shown, reward = np.zeros((3, *FRAME.shape), np.uint8), np.zeros(3, np.float32)
    terminated, truncated = np.zeros(3, np.bool_), np.zeros(3, np.bool_)
    twin.reset(11, shown)
    played, is_step = 0, True
    for _ in range(1, at):
        twin.step(np.zeros(3), shown, reward, terminated, truncated)
        played = 0 if twin.games.over[1] else played + is_step
        is_step = not (terminated[1] or truncated[1])
    played += is_step
    one.publish(0)
    moment = f"in step {played} of its episode" if played else "when it was reset"
    with pytest.raises(BrokenEnvironmentError, match=rf"environment 1 of actor 0 {moment}"):
        one.play(30)


class Broken(Film):
    """Its second copy gives rewards, or scores of games, that are no numbers."""

    def step(self, actions: Any, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        super().step(actions, observation, reward, terminated, truncated)
        (reward if self.games is None else self.games.score)[1] = np.nan


@pytest.mark.parametrize("games", [False, True])
def test_a_return_that_is_no_number_is_an_error_and_no_lost_episode(
    acting: OpenStage, work: Callable[..., bool], games: bool
) -> None:
    one = acting(steps=50, film=Broken(2, end_rate=0.5, games=games))
    with pytest.raises(BrokenEnvironmentError, match="environment 1 of actor 0 is nan"):
        work(one.actor, 49)


def test_it_says_how_many_frames_a_step_takes(stage: OpenStage) -> None:
    assert stage(film=Film(2)).actor.report().frames_per_step == 4
    assert stage().actor.report().frames_per_step == 1


@pytest.mark.parametrize("turns", [3, 8])
def test_an_actor_that_stopped_holds_no_memory_of_its_fragment(
    acting: OpenStage, work: Callable[..., bool], turns: int
) -> None:
    one = acting(steps=8, film=Film(2, 1))
    work(one.actor, turns)
    fragment = one.actor.unfinished
    lent = fragment.fields["observation"]
    one.actor.stop()
    assert not np.shares_memory(one.actor._stack.seen, lent)
