"""The recorder of docs/examples writes what it is sent, no more than it may, and its reader finds it."""

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.roles.contexts import context_of
from pydantic import BaseModel

from tianji_cli.errors import RunFailed
from tianji_cli.roles.user_role import UserRole
from tianji_cli.wire.fragment import Fragment

OpenStage = Callable[..., Any]
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of docs/examples by name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.fixture
def one(stage: OpenStage, work: Callable[..., bool]) -> Any:
    opened = stage(steps=4, num_envs=2, window=6, copies=1)
    opened.publish(0)
    return opened


@pytest.fixture
def make(examples: Any, one: Any) -> Callable[..., UserRole]:
    def build(directory: Path, max_mb: float = 1000) -> UserRole:
        recorder = examples("recorder")
        # Less than a megabyte is of use here alone.
        settings: BaseModel = recorder.RecorderSettings.model_construct(max_mb=max_mb)
        role: UserRole = recorder.Recorder(context_of(one, "recorder", directory, settings, reads=False))
        return role

    return build


def push(one: Any, work: Callable[..., bool], fragments: int) -> list[Any]:
    """Let the actor push so many, and hear what the buffer gets."""
    received: list[Any] = []
    while len(received) < fragments:
        work(one.actor)
        fragment = one.receive()
        if fragment is not None:
            received.append(fragment)
    return received


def test_the_files_hold_what_the_buffer_received(
    one: Any, work: Callable[..., bool], make: Callable[..., UserRole], examples: Any, tmp_path: Path
) -> None:
    recorder = make(tmp_path)
    assert not recorder.turn()
    received = push(one, work, 5)
    assert recorder.turn()
    received += push(one, work, 1)
    recorder.stop()
    recorder.close()
    assert recorder.report()["written"] == 6
    layout = examples("recorder").read_layout(tmp_path)
    assert layout == one.layout
    read = list(examples("offline").read_fragments(tmp_path / "0000.fragments", layout))
    assert [fragment.header.tobytes() for fragment in read] == [sent.header.tobytes() for sent in received]
    for fragment, sent in zip(read, received, strict=True):
        for name, array in sent.fields.items():
            np.testing.assert_array_equal(fragment.fields[name], array)


def test_layout_json_alone_says_where_each_field_lies(
    one: Any, work: Callable[..., bool], make: Callable[..., UserRole], tmp_path: Path
) -> None:
    recorder = make(tmp_path)
    (sent,) = push(one, work, 1)
    recorder.stop()
    recorder.close()
    document = json.loads((tmp_path / "layout.json").read_text())
    raw = np.memmap(tmp_path / "0000.fragments", np.uint8, "r")
    assert raw.size == document["nbytes"]
    for name, dtype, shape, bootstrap, history, once in document["fields"]:
        rows = 1 if once else history + document["steps"] + bootstrap
        full = (rows, document["num_envs"], *shape)
        field = np.ndarray(full, dtype, raw.data, document["offsets"][name])
        np.testing.assert_array_equal(field, sent.fields[name])


def test_no_more_than_max_mb_is_written_and_the_rest_is_reported_over_all_sessions(
    one: Any, work: Callable[..., bool], make: Callable[..., UserRole], tmp_path: Path
) -> None:
    most = 3.5 * one.layout.nbytes / 1e6
    first = make(tmp_path, most)
    push(one, work, 2)
    first.stop()
    first.close()
    second = make(tmp_path, most)
    push(one, work, 4)
    second.turn()
    assert second.report().items() >= {"written": 1, "left_out": 3}.items()
    second.close()
    sizes = {file.name: file.stat().st_size for file in tmp_path.glob("*.fragments")}
    assert sizes == {"0000.fragments": 2 * one.layout.nbytes, "0001.fragments": one.layout.nbytes}


def test_a_full_disk_is_named_as_the_cause(
    one: Any, work: Callable[..., bool], make: Callable[..., UserRole], small_disk: Path
) -> None:
    recorder = make(small_disk)
    for _ in range(64 * 1024 // one.layout.nbytes - 16):
        push(one, work, 1)
        recorder.turn()
    with pytest.raises(RunFailed, match=r"cannot record to .*0000\.fragments: No space left on device"):
        record(recorder, one, work, 17)
    recorder.close()


def record(recorder: UserRole, one: Any, work: Callable[..., bool], fragments: int) -> None:
    for _ in range(fragments):
        push(one, work, 1)
        recorder.turn()


@pytest.fixture
def recorded(one: Any, work: Callable[..., bool], make: Callable[..., UserRole], tmp_path: Path) -> Path:
    """A file of three fragments."""
    recorder = make(tmp_path)
    push(one, work, 3)
    recorder.stop()
    recorder.close()
    return tmp_path / "0000.fragments"


def test_a_fragment_that_was_cut_off_is_left_out_and_said(
    one: Any, recorded: Path, examples: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    read = examples("offline").read_fragments
    os.truncate(recorded, 2 * one.layout.nbytes + 17)
    assert [int(fragment.header["sequence"]) for fragment in read(recorded, one.layout)] == [0, 1]
    assert f"(17 of {one.layout.nbytes} bytes)" in capsys.readouterr().out
    os.truncate(recorded, 5)
    assert list(read(recorded, one.layout)) == []
    os.truncate(recorded, 0)
    assert list(read(recorded, one.layout)) == []


@pytest.mark.parametrize("field", ["magic", "schema", "layout", "samples"])
def test_a_damaged_fragment_is_refused_by_its_number(
    one: Any, recorded: Path, examples: Any, field: str
) -> None:
    data = bytearray(recorded.read_bytes())
    Fragment(one.layout, memoryview(data)[one.layout.nbytes :]).header[field] = 77
    recorded.write_bytes(data)
    with pytest.raises(SystemExit, match=r"0000\.fragments, fragment 1: "):
        list(examples("offline").read_fragments(recorded, one.layout))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("mask", False, "it claims 8 samples and its mask has 7"),
        ("observation", np.nan, "observation is not finite somewhere"),
        ("terminated", 7, "terminated is neither true nor false somewhere"),
    ],
)
def test_a_body_that_no_actor_can_have_written_is_refused(
    one: Any, recorded: Path, examples: Any, field: str, value: Any, why: str
) -> None:
    data = bytearray(recorded.read_bytes())
    array = Fragment(one.layout, memoryview(data)).fields[field]
    array = array.view(np.uint8) if array.dtype == np.bool_ else array
    array[(0,) * array.ndim] = value
    recorded.write_bytes(data)
    with pytest.raises(SystemExit, match=rf"0000\.fragments, fragment 0: {why}"):
        list(examples("offline").read_fragments(recorded, one.layout))


def test_a_layout_that_was_tampered_with_is_refused(recorded: Path, examples: Any) -> None:
    document = json.loads(recorded.with_name("layout.json").read_text())
    document["num_envs"] += 1
    recorded.with_name("layout.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="does not say how its fragments are divided"):
        examples("recorder").read_layout(recorded.parent)
