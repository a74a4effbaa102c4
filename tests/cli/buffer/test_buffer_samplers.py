from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cli.buffer.replays import PRIORITY, ScriptedActor, batch_of, fragment_layout, open_replay

from tianji_algos.errors import DivergedError
from tianji_cli.roles.buffer.replay.replay import Replay
from tianji_cli.roles.buffer.replay.samplers import SMALLEST_PRIORITY
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
SAMPLERS: tuple[str, ...] = ("uniform", "prioritised", "fresh")


def filled(fragments: int = 5, accepted: int = 7, *, envs: int = 3, **settings: Any) -> Replay:
    """A replay in which 7 fragments of 4 x 3 steps arrived, and 5 are held."""
    layout = fragment_layout(4, envs)
    replay = open_replay(layout, fragments, **settings)
    actor = ScriptedActor(layout, 0, seed=1)
    for _ in range(accepted):
        actor.fill(replay.free)
        replay.accept()
    return replay


def held(replay: Replay) -> npt.NDArray[np.int64]:
    """Keys of all samples, the oldest first."""
    each, ring = replay.ring.steps_each, replay.ring
    insertions = np.arange(ring.oldest, ring.next)
    masks = [replay.index.starts[ring.steps(int(insertion))] > 0 for insertion in insertions]
    return (insertions[:, None] * each + np.arange(each))[np.array(masks)]


def drawn(replay: Replay, batches: int, size: int) -> dict[int, int]:
    into = BatchArrays(BatchLayout.of(replay.layout, size, ("action",)))
    keys = []
    for _ in range(batches):
        replay.sample(into)
        keys.append(into.key.copy())
    values, counts = np.unique(np.concatenate(keys), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def chi_square(counts: dict[int, int], expected: dict[int, float]) -> float:
    assert counts.keys() <= expected.keys()
    return sum((counts.get(key, 0) - mean) ** 2 / mean for key, mean in expected.items())


def test_every_sample_is_as_likely_as_any_other() -> None:
    replay = filled(sampler="uniform")
    keys = held(replay).tolist()
    assert len(keys) == replay.size < 60
    counts = drawn(replay, 500, 80)
    # Fewer than 60 degrees of freedom: 100 is exceeded once in 1000 seeds.
    assert chi_square(counts, dict.fromkeys(keys, 40_000 / len(keys))) < 100


def test_a_sampler_of_ones_own_draws_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    replay = filled(fragments=40, accepted=40, sampler="recent:RecentSampler")
    keys = held(replay).tolist()
    counts = drawn(replay, 500, 80)
    assert counts.keys() <= set(keys)
    newest = sum(counts.get(key, 0) for key in keys[-len(keys) // 4 :])
    assert 0.47 < newest / 40_000 < 0.53


def test_rare_samples_are_found_among_many_steps_that_are_none() -> None:
    layout = fragment_layout(64, 16)
    replay = open_replay(layout, 4)
    fragment = Fragment(layout, replay.free)
    ScriptedActor(layout, 0, 0).fill(replay.free)
    fragment.fields["mask"][...] = False
    fragment.fields["mask"][50, 3] = True
    replay.accept()
    assert set(drawn(replay, 3, 100)) == {50 * 16 + 3}


def test_samples_are_drawn_in_proportion_to_their_priority_to_the_power_alpha() -> None:
    replay = filled(sampler="prioritised", priority_exponent=0.7)
    keys = held(replay)
    priorities = np.random.default_rng(2).random(keys.size).astype(np.float32) * 5
    replay.update_priorities(keys, -priorities)  # Of an error, the size counts.
    powered = (priorities.astype(np.float64) + SMALLEST_PRIORITY) ** 0.7
    expected = 40_000 * powered / powered.sum()
    counts = drawn(replay, 500, 80)
    assert chi_square(counts, dict(zip(keys.tolist(), expected.tolist(), strict=True))) < 100


def test_weights_make_up_for_the_probabilities() -> None:
    replay = filled(sampler="prioritised", priority_exponent=0.5, importance_exponent=0.3)
    keys = held(replay)
    priorities = np.random.default_rng(2).random(keys.size).astype(np.float32) + 0.1
    replay.update_priorities(keys, priorities)
    into = batch_of(replay, 16)
    chances = np.sqrt(priorities.astype(np.float64)) / np.sqrt(priorities.astype(np.float64)).sum()
    weights = (replay.size * chances[np.searchsorted(keys, into.key)]) ** -0.3
    np.testing.assert_allclose(into.batch.weight, weights / weights.max(), rtol=1e-4)


def test_beta_rises_to_1_with_the_env_steps_of_the_job() -> None:
    def weights(env_steps: int) -> npt.NDArray[np.float32]:
        layout = fragment_layout(4, 3)
        chosen = open_replay(
            layout, 5, sampler="prioritised", importance_steps=1000, importance_exponent=0.5
        ).settings
        replay = Replay(layout, chosen, agent_fields=("action",), seed=0, env_steps=env_steps)
        ScriptedActor(layout, 0, 0, end_rate=0.0).fill(replay.free)
        replay.accept()
        assert replay.size == 12
        replay.update_priorities(held(replay), np.geomspace(0.1, 10, 12).astype(np.float32))
        return batch_of(replay, 32).batch.weight.copy()

    half, most, later = weights(500 - 12), weights(1000 - 12), weights(10_000)
    np.testing.assert_allclose(half, most**0.75, rtol=1e-5)
    np.testing.assert_array_equal(most, later)


def test_new_samples_have_the_largest_priority_so_far() -> None:
    replay = filled(sampler="prioritised")
    replay.update_priorities(held(replay)[:3], np.array([2.0, 50.0, 1.0], np.float32))
    replay.update_priorities(held(replay)[:3], np.array([2.0, 2.0, 1.0], np.float32))
    ScriptedActor(replay.layout, 1, 0, end_rate=0.0).fill(replay.free)
    replay.accept()
    assert replay.sampler.priorities is not None
    newest = replay.sampler.priorities[replay.ring.steps(replay.ring.next - 1)]
    np.testing.assert_allclose(newest, 50.0**0.6, rtol=1e-5)


def test_an_actor_may_bring_first_priorities() -> None:
    layout = fragment_layout(4, 3, PRIORITY)
    replay = open_replay(layout, 3, sampler="prioritised", priority_exponent=0.6)
    actor = ScriptedActor(layout, 0, 0)
    for _ in range(5):
        actor.fill(replay.free)
        fields = Fragment(layout, replay.free).fields
        expected = np.where(fields["mask"], (fields["priority"].astype(np.float64) + 1e-6) ** 0.6, 0.0)
        fields["priority"][3, 2] = np.nan
        expected[3, 2] = fields["mask"][3, 2]  # Not a number: as if nothing were known, the largest so far.
        replay.accept()
        assert replay.sampler.priorities is not None
        found = replay.sampler.priorities[replay.ring.steps(replay.ring.next - 1)]
        np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-5)


def test_what_is_evicted_or_no_experience_has_no_priority() -> None:
    replay = filled(sampler="prioritised")
    assert replay.sampler.priorities is not None
    starts = replay.index.starts
    np.testing.assert_array_equal(replay.sampler.priorities[: starts.size] > 0, starts > 0)
    assert np.count_nonzero(starts) == replay.size


def test_priorities_of_evicted_samples_are_counted_and_left_out() -> None:
    replay = filled(sampler="prioritised")
    keys = held(replay)
    assert replay.sampler.priorities is not None
    before = replay.sampler.priorities.copy()
    each = replay.ring.steps_each
    gone = np.array([0, 2 * each - 1, replay.ring.next * each, -1, 1 << 60])
    replay.update_priorities(gone, np.full(5, 9.0, np.float32))
    np.testing.assert_array_equal(replay.sampler.priorities, before)
    assert replay.stale_updates == 5
    replay.update_priorities(np.append(keys[:1], 0), np.array([3.0, 9.0], np.float32))
    assert replay.stale_updates == 6
    assert replay.sampler.priorities[keys[0] % replay.ring.slot_steps] == np.float32((3.0 + 1e-6) ** 0.6)


def test_the_last_of_several_priorities_for_one_sample_counts() -> None:
    replay = filled(sampler="prioritised", priority_exponent=1.0)
    key = held(replay)[4]
    replay.update_priorities(np.array([key] * 3), np.array([3.0, 1.0, 2.0], np.float32))
    assert replay.sampler.priorities is not None
    assert replay.sampler.priorities[key % replay.ring.slot_steps] == pytest.approx(2.0, rel=1e-5)


def test_priorities_that_are_no_numbers_are_refused() -> None:
    replay = filled(sampler="prioritised")
    with pytest.raises(DivergedError, match="the loss has diverged"):
        replay.update_priorities(held(replay)[:2], np.array([1.0, np.nan], np.float32))


def test_a_handle_of_no_experience_gets_no_priority() -> None:
    replay = filled(sampler="prioritised")
    each = replay.ring.steps_each
    every = np.arange(replay.ring.oldest * each, replay.ring.next * each)
    replay.update_priorities(every, np.ones(every.size, np.float32))
    assert set(drawn(replay, 50, 80)) == set(held(replay).tolist())


def test_fresh_samples_come_first_and_the_oldest_of_them_first() -> None:
    replay = filled(sampler="fresh")
    first = held(replay)
    assert batch_of(replay, 7).key.tolist() == first[:7].tolist()
    assert batch_of(replay, 7).key.tolist() == first[7:14].tolist()
    actor = ScriptedActor(replay.layout, 1, 0)
    for _ in range(4):  # Evicts samples that were never used.
        actor.fill(replay.free)
        replay.accept()
    still = held(replay).tolist()
    assert still[0] > first[14], "of those never used, some were evicted"
    assert batch_of(replay, len(still)).key.tolist() == still


def test_once_all_were_used_fresh_first_is_uniform() -> None:
    replay = filled(sampler="fresh")
    keys = held(replay).tolist()
    mixed = batch_of(replay, len(keys) + 50).key.tolist()
    assert mixed[: len(keys)] == keys
    assert set(mixed) == set(keys)
    counts = drawn(replay, 500, 80)
    assert chi_square(counts, dict.fromkeys(keys, 40_000 / len(keys))) < 100


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_is_drawn_depends_on_the_seed_alone(sampler: str) -> None:
    def keys(seed: int) -> list[list[int]]:
        replay = filled(sampler=sampler, seed=seed)
        np.random.default_rng().random(3)
        found = []
        for _ in range(4):
            into = batch_of(replay, 40)
            found.append(into.key.tolist())
            replay.update_priorities(into.key, np.arange(40, dtype=np.float32))
            ScriptedActor(replay.layout, 1, 0).fill(replay.free)
            replay.accept()
        return found

    assert keys(3) == keys(3)
    assert keys(3) != keys(4)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_empty_replay_has_no_batches(sampler: str) -> None:
    replay = filled(accepted=0, sampler=sampler)
    with pytest.raises(ValueError, match="empty"):
        batch_of(replay, 1)


@pytest.mark.parametrize("sampler", ["uniform", "fresh"])
def test_without_priorities_all_weights_are_1_and_updates_change_nothing(sampler: str) -> None:
    replay, untouched = filled(sampler=sampler), filled(sampler=sampler)
    for _ in range(20):
        into, expected = batch_of(replay, 9), batch_of(untouched, 9)
        assert into.batch.weight.tolist() == [1.0] * 9
        assert into.key.tolist() == expected.key.tolist()
        replay.update_priorities(into.key, np.arange(9, dtype=np.float32))
