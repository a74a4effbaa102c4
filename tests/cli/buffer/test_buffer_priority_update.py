from typing import Any

import numpy as np
import pytest
from cli.buffer.replays import ScriptedActor, batch_of, fragment_layout, open_replay
from hypothesis import given
from hypothesis import strategies as st

from tianji_algos.errors import DivergedError
from tianji_cli.roles.buffer.replay.samplers import PrioritisedSampler
from tianji_cli.wire.batches import priorities_layout, read_priorities, write_priorities

JOB = 9


def read(memory: memoryview, size: int) -> Any:
    return read_priorities(priorities_layout(size), memory, JOB)


def message(keys: list[int], priorities: list[float]) -> memoryview:
    layout = priorities_layout(len(keys))
    memory = memoryview(bytearray(layout.nbytes))
    write_priorities(layout, memory, JOB, np.array(keys, np.int64), np.array(priorities, np.float32))
    return memory


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(0, 2.0**100, width=32)), min_size=1, max_size=9
    )
)
def test_handles_and_priorities_are_read_as_they_were_written(update: list[tuple[int, float]]) -> None:
    keys, priorities = (list(column) for column in zip(*update, strict=True))
    came = read(message(keys, priorities), len(update))
    assert (came[0].tolist(), came[1].tolist()) == (keys, priorities)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, -1e-30])
def test_priorities_that_are_none_are_neither_written_nor_read(bad: float) -> None:
    with pytest.raises(DivergedError, match="the loss has diverged"):
        message([1, 2, 3], [1.0, bad, 1.0])
    memory = message([1, 2, 3], [1.0, 2.0, 3.0])
    second = priorities_layout(3).offsets["priority"] + 4
    memory[second : second + 4] = np.float32(bad).tobytes()
    assert read(memory, 3) == "a priority is negative or not finite"


@pytest.mark.parametrize("size", [0, 2, 4])
def test_a_message_of_another_size_is_refused(size: int) -> None:
    assert "bytes, not" in read(message([0] * size, [1.0] * size), 3)


PAYLOAD = priorities_layout(3).nbytes - 24


@given(st.binary(min_size=PAYLOAD, max_size=PAYLOAD))
def test_no_message_can_spoil_a_sum_tree(payload: bytes) -> None:
    memory = message([0, 0, 0], [0.0, 0.0, 0.0])
    memory[24:] = payload
    layout = fragment_layout(2, 2)
    replay = open_replay(layout, 3, sampler="prioritised", priority_exponent=1.0)
    actor = ScriptedActor(layout, 0, seed=1)
    for _ in range(3):
        actor.fill(replay.free)
        replay.accept()
    update = read(memory, 3)
    if not isinstance(update, str):
        replay.update_priorities(*update)
    assert isinstance(replay.sampler, PrioritisedSampler)
    assert np.isfinite(replay.sampler.tree.total)
    assert replay.sampler.tree.total > 0
    assert np.isfinite(batch_of(replay, 8).batch.weight).all()
