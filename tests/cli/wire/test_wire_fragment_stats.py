import time

import gymnasium as gym
import numpy as np
import pytest
from cli.buffer.replays import ScriptedActor, fragment_layout
from hypothesis import example, given
from hypothesis import strategies as st

from tianji_cli.wire.fragment import Fragment, FragmentLayout, FragmentStats, common_fields, stats_layout

STEPS = 12


JOB = 7
LAYOUT = stats_layout(STEPS)


def message(stats: FragmentStats) -> memoryview:
    memory = memoryview(bytearray(LAYOUT.nbytes))
    stats.write(LAYOUT, memory, JOB)
    return memory


def read(memory: memoryview) -> FragmentStats | str:
    return FragmentStats.read(LAYOUT, memory, JOB)


@example(samples=0, age_s=0.0, ended=[], winnable=False)
@example(samples=STEPS, age_s=1.0, ended=[(float(i), i % 3 == 0) for i in range(STEPS)], winnable=True)
@given(
    samples=st.integers(0, STEPS),
    age_s=st.floats(0, 1e5),
    ended=st.lists(st.tuples(st.floats(-1e9, 1e9, width=32), st.booleans()), max_size=STEPS),
    winnable=st.booleans(),
)
def test_an_arrival_comes_out_of_its_message_as_it_went_in(
    samples: int, age_s: float, ended: list[tuple[float, bool]], winnable: bool
) -> None:
    returns, wins = [value for value, _ in ended], [won for _, won in ended if winnable]
    lengths = list(range(1, len(returns) + 1))
    sent = FragmentStats(samples, time.monotonic_ns() - int(age_s * 1e9), returns, wins, (), lengths)
    came = read(message(sent))
    assert isinstance(came, FragmentStats)
    assert (came.samples, list(came.returns), list(came.wins)) == (samples, returns, wins)
    assert list(came.lengths) == lengths
    # The message carries an age, so what it took to read it is added.
    assert sent.started_ns <= came.started_ns <= time.monotonic_ns()


def test_an_arrival_says_of_a_fragment_what_it_holds() -> None:
    layout = fragment_layout(4, 3)
    memory = memoryview(bytearray(layout.nbytes))
    ScriptedActor(layout, 0, seed=3, end_rate=0.5).fill(memory)
    fragment = Fragment(layout, memory)
    ended = (fragment.fields["terminated"] | fragment.fields["truncated"]).astype(bool)
    fragment.fields["episode_return"][...] = np.where(ended, np.arange(12).reshape(4, 3), np.nan)
    fragment.fields["episode_steps"][...] = np.where(ended, 7, 0)
    fragment.header["age_ns"] = 5_000_000_000
    before = time.monotonic_ns()
    arrival = FragmentStats.of(fragment)
    assert arrival.samples == fragment.fields["mask"].sum() > 0
    assert list(arrival.returns) == np.flatnonzero(ended).tolist()
    assert len(arrival.returns) > 0
    assert list(arrival.lengths) == [7] * len(arrival.returns)
    assert before <= arrival.started_ns + 5_000_000_000 <= time.monotonic_ns()
    assert FragmentStats.of(fragment, started_ns=7).started_ns == 7
    assert arrival.wins == []


def test_wins_and_metrics_are_those_of_the_episodes_that_ended_and_arrive_unchanged() -> None:
    common = common_fields(gym.spaces.Box(-1, 1, (2,), np.float32), winnable=True, metrics=2)
    fragment = Fragment(layout := FragmentLayout(2, 3, common), memoryview(bytearray(layout.nbytes)))
    fragment.fields["episode_return"][...] = [[np.nan, 5, 1], [2, np.nan, np.nan]]
    fragment.fields["won"][...] = [[False, True, False], [True, False, False]]
    fragment.fields["metrics"][...] = np.arange(12).reshape(2, 3, 2)
    sent = FragmentStats.of(fragment)
    assert (sent.returns, sent.wins) == ([5.0, 1.0, 2.0], [True, False, True])
    assert sent.metrics == [[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    stats = stats_layout(6, 2)
    memory = memoryview(bytearray(stats.nbytes))
    sent.write(stats, memory, JOB)
    came = FragmentStats.read(stats, memory, JOB)
    assert isinstance(came, FragmentStats)
    assert (list(came.returns), list(came.wins), came.metrics) == (sent.returns, sent.wins, sent.metrics)
    without = FragmentStats.read(stats_layout(6), memory, JOB)
    assert isinstance(without, str), "both ends have the same metrics"


@pytest.mark.parametrize("nbytes", [0, 1, LAYOUT.nbytes - 1, LAYOUT.nbytes + 1])
def test_a_message_of_another_size_is_rejected(nbytes: int) -> None:
    assert read(memoryview(bytearray(nbytes))) == f"it has {nbytes} bytes, not {LAYOUT.nbytes}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("samples", STEPS + 1, id="more samples than steps"),
        pytest.param("samples", 2**64 - 1, id="no number of samples"),
        pytest.param("age_ns", 2**63, id="a negative age"),
        pytest.param("returns", STEPS + 1, id="more returns than steps"),
        pytest.param("returns", 2**62, id="returns whose size overflows"),
        pytest.param("wins", 2, id="more wins than returns"),
        pytest.param("wins", 2**64 - 1, id="no number of wins"),
    ],
)
def test_a_message_with_impossible_numbers_is_rejected(name: str, value: int) -> None:
    memory = message(FragmentStats(STEPS, time.monotonic_ns(), [1.0]))
    assert isinstance(read(memory), FragmentStats)
    fields = LAYOUT.header.fields
    assert fields is not None
    offset = fields[name][1]
    memory[offset : offset + 8] = value.to_bytes(8, "little")
    assert "it counts" in str(read(memory))


@given(st.binary(min_size=LAYOUT.nbytes - 24, max_size=LAYOUT.nbytes - 24))
def test_whatever_follows_a_good_header_the_stats_fit_a_fragment(payload: bytes) -> None:
    memory = message(FragmentStats(0, 0, []))
    memory[24:] = payload
    came = read(memory)
    if isinstance(came, FragmentStats):
        assert max(came.samples, len(came.returns)) <= STEPS
        assert len(came.wins) in {0, len(came.returns)}
