import time

import numpy as np
import pytest
from cli.data.replays import ScriptedActor, fragment_layout
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.data.arrival import Arrival
from tianji_cli.data.fragment import Fragment

STEPS = 12


def message(arrival: Arrival) -> memoryview:
    memory = memoryview(bytearray(Arrival.nbytes(STEPS)))
    arrival.write(memory)
    return memory


@given(
    samples=st.integers(0, STEPS),
    age_s=st.floats(0, 1e5),
    returns=st.lists(st.floats(-1e9, 1e9, width=32), max_size=STEPS),
)
def test_an_arrival_comes_out_of_its_message_as_it_went_in(
    samples: int, age_s: float, returns: list[float]
) -> None:
    sent = Arrival(samples, time.monotonic_ns() - int(age_s * 1e9), returns)
    read = Arrival.read(message(sent))
    assert read is not None
    assert (read.samples, list(read.returns)) == (samples, returns)
    # The message carries an age, so what it took to read it is added.
    assert sent.started_ns <= read.started_ns <= time.monotonic_ns()


def test_an_arrival_says_of_a_fragment_what_it_holds() -> None:
    layout = fragment_layout(4, 3)
    memory = memoryview(bytearray(layout.nbytes))
    ScriptedActor(layout, 0, seed=3, end_rate=0.5).fill(memory)
    fragment = Fragment(layout, memory)
    ended = (fragment.fields["terminated"] | fragment.fields["truncated"]).astype(bool)
    fragment.fields["episode_return"][...] = np.where(ended, np.arange(12).reshape(4, 3), np.nan)
    fragment.header["age_ns"] = 5_000_000_000
    before = time.monotonic_ns()
    arrival = Arrival.of(fragment)
    assert arrival.samples == fragment.fields["mask"].sum() > 0
    assert list(arrival.returns) == np.flatnonzero(ended).tolist()
    assert len(arrival.returns) > 0
    assert before <= arrival.started_ns + 5_000_000_000 <= time.monotonic_ns()
    assert Arrival.of(fragment, started_ns=7).started_ns == 7


def test_every_step_of_a_fragment_may_end_an_episode() -> None:
    read = Arrival.read(message(Arrival(STEPS, 0, [float(i) for i in range(STEPS)])))
    assert read is not None
    assert list(read.returns) == list(range(STEPS))


@pytest.mark.parametrize("nbytes", [0, 1, 23])
def test_a_message_without_a_header_is_no_arrival(nbytes: int) -> None:
    assert Arrival.read(memoryview(bytearray(nbytes))) is None


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        pytest.param(0, STEPS + 1, id="more samples than steps"),
        pytest.param(0, 2**64 - 1, id="no number of samples"),
        pytest.param(8, 2**63, id="a negative age"),
        pytest.param(16, STEPS + 1, id="more returns than steps"),
        pytest.param(16, 2**62, id="returns whose size overflows"),
    ],
)
def test_a_message_with_impossible_numbers_is_no_arrival(offset: int, value: int) -> None:
    memory = message(Arrival(STEPS, time.monotonic_ns(), [1.0]))
    assert Arrival.read(memory) is not None
    memory[offset : offset + 8] = value.to_bytes(8, "little")
    assert Arrival.read(memory) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_an_arrival_or_none(payload: bytes) -> None:
    arrival = Arrival.read(memoryview(bytearray(payload)))
    if arrival is not None:
        assert 24 + 4 * max(arrival.samples, len(arrival.returns)) <= len(payload)
