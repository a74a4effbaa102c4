"""The ends of channels and slots that roles of one's own have: sequences, copies, back-pressure, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from tianji_algos.fields import FieldSpec
from tianji_cli.files.counters import ProductionFile, ProductionPage
from tianji_cli.roles.buffer.rollout import FragmentValidator
from tianji_cli.roles.records import (
    Draft,
    FragmentInlet,
    FragmentOutlet,
    RecordInlet,
    RecordOutlet,
    SlotReader,
    SlotWriter,
    SourceOutlet,
    record_layout,
)
from tianji_cli.wire.fragment import FragmentLayout, common_fields
from tianji_cli.wire.records import Record
from tianji_cli.wire.reports import Rejected
from tianji_transports.core import FULL, Transport
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Slot, Wiring

JOB = 7
NUMBER = np.dtype(np.int64)
LAYOUT = record_layout([FieldSpec("number", NUMBER), FieldSpec("row", NUMBER, (3,))])


@pytest.fixture
def ends() -> Iterator[list[Transport]]:
    """Endpoints of ranks 0 to 2; rank 0 sends to both others, with a window of two, and writes a slot."""
    channels = tuple(Channel("numbers", rank, (0,), LAYOUT.nbytes) for rank in (1, 2))
    wiring = Wiring("records", channels, (Slot("newest", 0, (1,), LAYOUT.nbytes),))
    endpoints: list[Transport] = [InprocTransport(wiring, rank) for rank in range(3)]
    yield endpoints
    for endpoint in endpoints:
        endpoint.close()


def outlet(ends: list[Transport], *receivers: int) -> RecordOutlet:
    return RecordOutlet(ends[0], "numbers", LAYOUT, receivers, JOB)


def inlet(ends: list[Transport], rank: int, rejected: Rejected | None = None) -> RecordInlet:
    return RecordInlet(ends[rank], "numbers", LAYOUT, JOB, rejected or Rejected())


def push(sender: RecordOutlet, number: int) -> None:
    draft = sender.loan()
    assert isinstance(draft, Draft)
    draft.fields["number"][...] = number
    draft.fields["row"][:] = number
    sender.push(draft)


def numbers(receiver: RecordInlet) -> list[int]:
    found = []
    while (received := receiver.probe()) is not None:
        assert received.fields["row"].tolist() == [received.fields["number"]] * 3
        found.append(int(received.fields["number"]))
    return found


def test_each_receiver_gets_a_copy_and_one_that_is_behind_holds_the_sender_back(
    ends: list[Transport],
) -> None:
    sender, first, second = outlet(ends, 1, 2), inlet(ends, 1), inlet(ends, 2)
    push(sender, 1)
    push(sender, 2)
    assert numbers(first) == [1, 2]
    assert sender.loan() is FULL, "the second has claimed nothing"
    assert sender.unclaimed == 2
    assert numbers(second) == [1, 2]
    push(sender, 3)
    assert (numbers(first), numbers(second)) == ([3], [3])
    assert (sender.sent, sender.unclaimed, first.received, first.lost) == (3, 0, 3, 0)


def test_a_draft_that_is_abandoned_is_no_record(ends: list[Transport]) -> None:
    sender, receiver = outlet(ends, 1), inlet(ends, 1)
    draft = sender.loan()
    assert isinstance(draft, Draft)
    draft.abandon()
    push(sender, 1)
    assert numbers(receiver) == [1]
    assert receiver.lost == 0


def test_a_gap_is_counted_and_a_repeated_number_is_rejected(ends: list[Transport]) -> None:
    rejected = Rejected()
    sender, receiver = outlet(ends, 1), inlet(ends, 1, rejected)
    push(sender, 0)
    sender.sent = 4
    push(sender, 4)
    assert numbers(receiver) == [0, 4]
    assert receiver.lost == 3
    sender.sent = 2
    push(sender, 2)
    assert numbers(receiver) == []
    assert rejected.count == 1
    assert "it is number 2 where 5 is next" in rejected.first


def test_a_record_of_another_job_or_size_is_rejected(ends: list[Transport]) -> None:
    rejected = Rejected()
    receiver = inlet(ends, 1, rejected)
    push(RecordOutlet(ends[0], "numbers", LAYOUT, [1], JOB + 1), 1)
    small = record_layout([FieldSpec("number", NUMBER)])
    draft = RecordOutlet(ends[0], "numbers", small, [1], JOB).loan()
    assert isinstance(draft, Draft)
    RecordOutlet(ends[0], "numbers", small, [1], JOB).push(draft)
    assert receiver.probe() is None
    assert rejected.count == 2


def test_what_is_forwarded_is_a_copy_with_its_changes(ends: list[Transport]) -> None:
    push(outlet(ends, 1), 5)
    comes = inlet(ends, 1)
    received = comes.probe()
    assert received is not None

    def double(fields: Any) -> None:
        fields["number"] *= 2
        fields["row"] *= 2
        assert int(received.fields["number"]) == 5

    onwards = outlet(ends, 2)
    assert onwards.forward(comes, double)
    assert numbers(inlet(ends, 2)) == [10]


def test_a_slot_has_its_newest_record_and_refuses_one_that_is_incomplete(ends: list[Transport]) -> None:
    writer = SlotWriter(ends[0], "newest", LAYOUT, JOB)
    reader = SlotReader(ends[1], "newest", partial(Record, LAYOUT))
    assert reader.latest(0) is None
    assert [writer.publish({"number": number, "row": [number] * 3}) for number in (1, 2)] == [1, 2]
    newest = reader.latest(0)
    assert newest is not None
    assert (newest.version, int(newest.fields["number"])) == (2, 2)
    assert reader.latest(2) is None
    with pytest.raises(ValueError, match="has number, row, not number"):
        writer.publish({"number": 3})
    with pytest.raises(ValueError, match=r"row of newest has shape \(3,\), not \(2,\)"):
        writer.publish({"number": 3, "row": [1, 2]})


def test_a_role_that_holds_fragments_sends_them_on_in_their_order_and_no_more_than_it_says() -> None:
    layout = FragmentLayout(2, 1, common_fields(Box(-1, 1, (2,))))
    channels = (
        Channel("fragments-holder", 1, (0,), layout.nbytes, 8, 3),
        Channel("fragments", 2, (1,), layout.nbytes, 8),
    )
    source, holder, buffer = (InprocTransport(Wiring("holds", channels), rank) for rank in range(3))
    counters = ProductionFile(None, 2)
    made, passed = (ProductionPage(counters, number) for number in range(2))
    sender = SourceOutlet(source, "fragments-holder", layout, [1], JOB, 0, made)
    for number in range(5):
        draft = sender.loan()
        assert isinstance(draft, Draft)
        for name in draft.fields:
            draft.fields[name][...] = number
        sender.push(draft)
    known = FragmentValidator(layout, JOB, {0: (0,)})
    held, onwards = (
        FragmentInlet(holder, "fragments-holder", layout, known, {0: passed}, holds=2),
        FragmentOutlet(holder, "fragments", layout, [2], JOB),
    )
    taken = FragmentInlet(buffer, "fragments", layout, FragmentValidator(layout, JOB, {1: (0,)}))

    gathered = [held.probe() for _ in range(3)]
    assert [one and one.fields["reward"][0, 0] for one in gathered] == [0, 1, 2], "all can be read"
    with pytest.raises(RuntimeError, match=r"3 messages of 'fragments-holder' are held.* holds = 2"):
        held.probe()
    assert onwards.forward(held, None)
    held.drop("odd")
    gathered = [held.probe(), held.probe()]
    while held.first is not None:
        assert onwards.forward(held, None)
    assert held.probe() is None
    assert [int(one.fields["reward"][0, 0]) for one in iter(taken.probe, None)] == [0, 2, 3, 4]
    assert (held.counts, holder.held("fragments-holder")) == ({"received": 5, "dropped": {"odd": 2}}, 0)
    counted = counters.read(1)  # Fragment 0 masks its samples.
    assert (counted.finished, counted.dropped, counted.unfinished, counted.lost) == (6, 2, 0, 0)
    for end in (source, holder, buffer):
        end.close()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([FieldSpec("a", NUMBER), FieldSpec("a", NUMBER)], "two fields are called 'a'"),
        ([FieldSpec("a", np.dtype(object))], "'a' holds objects"),
        ([FieldSpec("a", NUMBER, history=2)], "rows of steps"),
        ([FieldSpec("a", NUMBER, (-1,))], "negative"),
    ],
)
def test_fields_that_no_record_can_have_are_refused(fields: list[FieldSpec], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        record_layout(fields)
