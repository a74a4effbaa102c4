import os
import resource
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from cli.buffer.replays import (
    ACTION,
    NaiveReplay,
    ScriptedActor,
    batch_of,
    bytes_held,
    check,
    fragment_layout,
    open_replay,
)

from tianji_algos.fields import FieldSpec
from tianji_cli.roles.buffer.replay.memory import ReplayMemoryError
from tianji_cli.roles.buffer.replay.replay import (
    MOST,
    Replay,
    ReplaySettings,
    UseCounts,
    bytes_of,
    kept_first,
)
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout, common_fields
from tianji_cli.wire.reports import PENDING

SAMPLERS: tuple[str, ...] = ("uniform", "prioritised", "fresh")


def feed(replay: Replay, fragments: int, actor: ScriptedActor | None = None) -> ScriptedActor:
    actor = actor or ScriptedActor(replay.layout, 0, seed=2)
    for _ in range(fragments):
        actor.fill(replay.free)
        replay.accept()
    return actor


def mapped(layout: FragmentLayout, capacity: int, directory: Path | None) -> Replay:
    chosen = ReplaySettings(capacity, "uniform", 3, 0.9, memory="mmap")
    return Replay(layout, chosen, agent_fields=("action",), seed=0, directory=directory)


def test_the_oldest_fragment_makes_place_for_the_next() -> None:
    layout = fragment_layout(4, 2)
    replay, naive = open_replay(layout, 3), NaiveReplay(layout, 3)
    actor = ScriptedActor(layout, 0, seed=2)
    for _ in range(10):
        actor.fill(replay.free)
        naive.accept(replay.free)
        replay.accept()
        assert (replay.size, replay.accepted) == (len(list(naive.keys())), naive.accepted)
        assert replay.free.nbytes == layout.nbytes


def test_capacity_is_rounded_up_to_whole_fragments() -> None:
    layout = fragment_layout(4, 2)
    for capacity, live in ((1, 1), (8, 1), (9, 2)):
        replay = Replay(layout, ReplaySettings(capacity, "uniform", 1, 0.9), agent_fields=("action",), seed=0)
        actor = ScriptedActor(layout, 0, 0, end_rate=0.0)
        feed(replay, 5, actor)
        assert replay.size == live * 8


@pytest.mark.parametrize("lean", [False, True])
def test_what_was_refused_leaves_no_trace(lean: bool) -> None:
    layout = fragment_layout(4, 2, lean=lean)
    naive = NaiveReplay(layout, 3)
    replay = open_replay(layout, 3, n_step=3)
    actor, stranger = ScriptedActor(layout, 0, seed=2), ScriptedActor(layout, 5, seed=3)
    for _ in range(7):
        actor.fill(replay.free)
        naive.accept(replay.free)
        replay.accept()
        stranger.fill(replay.free)
        replay.free[:] = os.urandom(layout.nbytes)
        check(batch_of(replay, 50), naive, 3, 0.9)


def test_a_batch_may_lie_in_memory_that_is_lent() -> None:
    replay = open_replay(fragment_layout(4, 2), 3)
    feed(replay, 3)
    layout = BatchLayout.of(replay.layout, 5, ("action",))
    loan = memoryview(bytearray(layout.nbytes))
    sent = BatchArrays(layout, loan)
    sent.stamp(job=8)
    replay.sample(sent)
    received = BatchArrays(layout, loan)
    assert received.rejection(job=8) is None
    np.testing.assert_array_equal(received.batch.next_observation, sent.batch.next_observation)
    np.testing.assert_array_equal(received.key, sent.key)
    assert (received.key >= 0).all()


def test_batches_of_another_job_or_layout_are_refused() -> None:
    fragments = fragment_layout(4, 2)
    arrays = BatchArrays(BatchLayout.of(fragments, 5, ("action",)))
    assert arrays.rejection(job=8) == "its magic is 0x0, not 0x544a4254"
    arrays.stamp(job=8)
    assert arrays.rejection(job=9) == "its job is 0x8, not 0x9"
    other = BatchArrays(BatchLayout.of(fragments, 4, ("action",)), arrays.memory)
    assert str(other.rejection(job=8)).startswith("its layout is")


def test_a_batch_of_nothing_or_of_unknown_fields_has_no_layout() -> None:
    with pytest.raises(ValueError, match="needs samples"):
        BatchLayout.of(fragment_layout(4, 2), 0, ("action",))
    with pytest.raises(ValueError, match="no field 'value'"):
        BatchLayout.of(fragment_layout(4, 2), 1, ("action", "value", "advantage"))


def test_a_batch_is_written_over_the_one_before() -> None:
    replay = open_replay(fragment_layout(4, 2), 3)
    feed(replay, 3)
    into = BatchArrays(BatchLayout.of(replay.layout, 64, ("action",)))
    addresses = [array.ctypes.data for array in (into.batch.observation, into.batch.reward, into.age)]
    replay.sample(into)
    first = into.key.copy()
    replay.sample(into)
    assert (into.key != first).any()
    assert addresses == [array.ctypes.data for array in (into.batch.observation, into.batch.reward, into.age)]


def test_uses_are_counted_over_all_samples_there_ever_were() -> None:
    replay = open_replay(fragment_layout(4, 2), 3)
    actor = ScriptedActor(replay.layout, 0, seed=2)
    uses: dict[int, int] = {}
    each = replay.ring.steps_each
    for _ in range(12):
        mask = Fragment(replay.layout, replay.free)
        actor.fill(replay.free)
        places = np.flatnonzero(mask.fields["mask"].reshape(-1)).tolist()
        uses |= {replay.ring.next * each + place: 0 for place in places}
        replay.accept()
        for key in batch_of(replay, 20).key.tolist():
            uses[key] += 1
    counts = np.array(list(uses.values()))
    np.testing.assert_array_equal(replay.uses.histogram[: counts.max() + 1], np.bincount(counts))
    summary = replay.uses.summary()
    assert summary is not None
    assert (summary.mean, summary.max) == (counts.mean(), counts.max())
    assert (summary.p50, summary.p95) == tuple(
        np.quantile(counts, (0.5, 0.95), method="inverted_cdf").tolist()
    )


def test_use_counts_stop_at_255_and_the_mean_does_not() -> None:
    layout = fragment_layout(1, 1)
    replay = open_replay(layout, 1)
    assert replay.uses.summary() is None
    feed(replay, 1)
    for _ in range(3):
        batch_of(replay, 200)
    summary = replay.uses.summary()
    assert summary is not None
    assert (summary.mean, summary.max) == (600.0, 255.0)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("capacity", [1, 1000, 12_345])
@pytest.mark.parametrize("stack", [1, 4])
def test_the_size_is_predicted_to_the_byte(sampler: str, lean: bool, capacity: int, stack: int) -> None:
    layout = fragment_layout(5, 3, lean=lean, stack=stack)
    replay = Replay(layout, ReplaySettings(capacity, sampler, 3, 0.9), agent_fields=("action",), seed=0)
    predicted = bytes_of(layout, replay.settings, ("action",))
    assert predicted.total == replay.nbytes == bytes_held(replay)
    assert predicted.memory == replay.memory.bytes.nbytes


def test_what_is_read_once_takes_no_memory() -> None:
    spare = (FieldSpec("priority", np.dtype(np.float32)),)
    settings = ReplaySettings(100_000, "uniform")
    lean = bytes_of(fragment_layout(16, 16, *spare), settings, ("action",))
    full = bytes_of(fragment_layout(16, 16, *spare, lean=False), settings, ("action",))
    assert full.total - lean.total > 6.9 * 100_000  # Three flags and the return lie before the action.


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("num_envs", [16, 32, 64])
def test_a_million_cartpole_transitions_take_at_most_1_3_times_what_they_say(
    sampler: str, num_envs: int
) -> None:
    layout = fragment_layout(16, num_envs, shape=(4,))
    action = FieldSpec("action", np.dtype(np.uint8))
    fields = tuple(action if spec == ACTION else spec for spec in layout.fields)
    layout = FragmentLayout(16, num_envs, fields)
    record = 4 * 4 + 1 + 4 + 3  # Observation, action, reward, three flags.
    assert bytes_of(layout, ReplaySettings(1_000_000, sampler), ("action",)).total <= 1.3 * record * 1_000_000


def test_frames_are_held_once_and_not_once_a_stack() -> None:
    frames = common_fields(gym.spaces.Box(0, 255, (84, 84), np.uint8), stack=4)
    layout = FragmentLayout(64, 8, kept_first((*frames, ACTION)))
    predicted = bytes_of(layout, ReplaySettings(1_000_000, "uniform"), ("action",))
    assert predicted.total < 1.1 * 84 * 84 * 1_000_000


@pytest.mark.parametrize("once", [False, True])
def test_a_field_that_is_recorded_once_a_fragment_is_in_no_batch(once: bool) -> None:
    layout = fragment_layout(4, 2, FieldSpec("state", np.dtype(np.float32), (5,), once=once))
    refused = pytest.raises(ValueError, match="'state' is recorded once") if once else nullcontext()
    with refused:
        BatchLayout.of(layout, 8, ("action", "state"))


def test_a_replay_takes_only_the_memory_that_it_fills() -> None:
    code = """
import resource
from cli.buffer.replays import fragment_layout, open_replay
from cli.buffer.replays import ScriptedActor
layout = fragment_layout(16, 16, shape=(1000,))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
replay = open_replay(layout, 400)
ScriptedActor(layout, 0, 0).fill(replay.free)
replay.accept()
assert replay.nbytes > 400e6
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    tests = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tests, timeout=120
    )
    assert int(done.stdout) < 60e6


def test_a_file_holds_what_memory_would(tmp_path: Path) -> None:
    layout = fragment_layout(4, 2)
    replay, naive = mapped(layout, 24, tmp_path), NaiveReplay(layout, 3)
    assert replay.memory.in_file
    actor = ScriptedActor(layout, 0, seed=2)
    for _ in range(7):
        actor.fill(replay.free)
        naive.accept(replay.free)
        replay.accept()
    check(batch_of(replay, 100), naive, 3, 0.9)


def test_nothing_is_left_of_the_file(tmp_path: Path) -> None:
    replay = mapped(fragment_layout(4, 2), 1000, tmp_path)
    assert replay.memory.in_file
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_grow_so_large_is_an_error_at_once(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(ReplayMemoryError, match=r"no file of .* MB for the replay in .*: File too large"):
            mapped(fragment_layout(4, 2), 100_000, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_its_blocks_before_anything_is_written(tmp_path: Path) -> None:
    file_system = os.statvfs(tmp_path)
    replay = mapped(fragment_layout(16, 16, shape=(1000,)), 16 * 16 * 100, tmp_path)
    taken = (file_system.f_bfree - os.statvfs(tmp_path).f_bfree) * file_system.f_frsize
    assert taken > 0.5 * replay.memory.bytes.nbytes > 50e6  # Others may free some meanwhile.


def test_what_cannot_fit_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    layout = fragment_layout(16, 16)
    huge = 10**13
    for memory, directory, complaint in (
        ("ram", tmp_path, r'takes .* GB, but .* GB of memory are free: .* or memory = "mmap", would do'),
        ("auto", None, r"takes .* GB, but .* GB of memory are free: a capacity of at most \d+ would do"),
        ("mmap", None, r"a directory"),
    ):
        chosen = ReplaySettings(huge, "uniform", 1, 0.9, memory=memory)  # type: ignore[arg-type]
        with pytest.raises(ReplayMemoryError, match=complaint):
            Replay(layout, chosen, agent_fields=("action",), seed=0, directory=directory)


def test_priorities_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'priority' is float32 \[T, N\]"):
        open_replay(fragment_layout(4, 2, FieldSpec("priority", np.dtype(np.float64))), 2)


def test_a_capacity_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one env step"):
        Replay(fragment_layout(4, 2), ReplaySettings(0, "uniform", 1, 0.9), agent_fields=("action",), seed=0)


def test_uses_are_counted_alike_however_many_come_at_once() -> None:
    rng, uses = np.random.default_rng(1), UseCounts(200)
    uses.begin(slice(0, 100), 100)
    expected = np.zeros(200, np.int64)
    for size in (1, 7, 3000, PENDING, PENDING + 1, 50):
        places = rng.integers(0, 100, size)
        uses.use(places)
        np.add.at(expected, places, 1)
        if size == 7:
            uses.begin(slice(100, 200), 100)
    np.testing.assert_array_equal(uses.counts, np.minimum(expected, MOST))
    np.testing.assert_array_equal(uses.histogram, np.bincount(uses.counts, minlength=MOST + 1))
    assert uses.total == expected.sum()
