from __future__ import annotations

import numpy as np
import pytest
from algos.team_episodes import empty_records, random_batch, team_spaces

from tianji_algos.batch import SequenceBatch
from tianji_algos.models.teams.q_network import NO_ACTION
from tianji_algos.qmix.qmix import PackedEpisodes

SPACES = team_spaces(agents=2, observation=1, actions=3)
L = 4


def hand_made() -> SequenceBatch:
    """Episode 0 has two steps and terminates, 1 has all four and is cut, 2 has one and terminates.

    What episode e sees at time t is 10 e + t + 1, what its agents do there is (t, e), and it gets that as
    its reward; beyond an episode's end all is 99.
    """
    lengths = np.array([2, 4, 1], np.int32)
    seen = empty_records(SPACES, 3, L + 1)
    seen["observation"] = 99.0
    action = np.full((3, L, 2), 99, np.uint8)
    reward = np.full((3, L), 99.0, np.float32)
    for e, length in enumerate(lengths):
        for t in range(length + 1):
            seen["observation"][e, t] = 10 * e + t + 1
        for t in range(length):
            action[e, t] = t, e
            reward[e, t] = 10 * e + t + 1
    return SequenceBatch(seen, {"action": action}, reward, lengths, np.array([True, False, True]))


def test_rows_are_time_first_and_end_with_their_episodes() -> None:
    packed = PackedEpisodes(hand_made())
    assert packed.sizes == [3, 3, 2, 1, 1]
    # The longest episode comes first: number 1, then 0, then 2.
    assert packed.seen["observation"][:, 0, 0].tolist() == [11, 1, 21, 12, 2, 22, 13, 3, 14, 15]


def test_the_terminal_step_is_learnt_from_and_nothing_after_it() -> None:
    packed = PackedEpisodes(hand_made())
    assert packed.reward[:, 0].tolist() == [11, 1, 21, 12, 2, 13, 14]
    done = [[0, 1], [0, 0], [0, 2], [1, 1], [1, 0], [2, 1], [3, 1]]
    assert packed.action[packed.origin].tolist() == done
    assert (np.delete(packed.action, packed.origin, axis=0) == 0).all()


def test_only_steps_that_terminated_an_episode_end_what_it_is_worth() -> None:
    packed = PackedEpisodes(hand_made())
    # Episode 1 goes on after its last step, with reward 14.
    assert packed.goes_on[:, 0].tolist() == [1, 1, 0, 1, 0, 1, 1]


def test_a_step_leads_to_the_next_row_of_its_episode() -> None:
    packed = PackedEpisodes(hand_made())
    seen = packed.seen["observation"][:, 0, 0]
    np.testing.assert_array_equal(seen[packed.origin], packed.reward[:, 0])
    np.testing.assert_array_equal(seen[packed.sizes[0] :], seen[packed.origin] + 1)


def test_last_actions_are_those_of_the_step_before() -> None:
    packed = PackedEpisodes(hand_made())
    assert (packed.last_action[:3] == NO_ACTION).all()
    np.testing.assert_array_equal(packed.last_action[3:], packed.action[packed.origin])


def test_a_batch_stays_as_it_is() -> None:
    batch = hand_made()
    batch.observation.setflags(write=False)
    batch.reward.setflags(write=False)
    packed = PackedEpisodes(batch)
    packed.seen["observation"][...] = 0.0
    packed.reward[...] = 0.0
    assert batch.reward[1, 0] == 11.0


@pytest.mark.parametrize("lengths", [[3, 3, 3], [1], [4, 1, 2, 4]])
def test_every_step_is_there_once(lengths: list[int]) -> None:
    batch = random_batch(SPACES, lengths, [True] * len(lengths), L)
    packed = PackedEpisodes(batch)
    assert len(packed.reward) == len(packed.origin) == sum(lengths)
    assert len(packed.seen) == len(packed.action) == sum(lengths) + len(lengths) == sum(packed.sizes)
    valid = np.arange(L) < batch.length[:, None]
    np.testing.assert_array_equal(np.sort(packed.reward[:, 0]), np.sort(batch.reward[valid]))
    assert packed.goes_on.sum() == sum(lengths) - len(lengths)
