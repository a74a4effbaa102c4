import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.buffer.naive_sequences import NaiveSequences, check_sequences, open_sequences, play, sequences_of
from cli.buffer.replays import (
    PRIORITY,
    NaiveReplay,
    ScriptedActor,
    batch_of,
    check,
    fragment_layout,
    open_replay,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tianji_cli.files.saved import seal
from tianji_cli.roles.buffer.replay import file
from tianji_cli.roles.buffer.replay.file import ReplayFileError, restore_replay, save_replay
from tianji_cli.roles.buffer.replay.replay import Replay

SAMPLERS: tuple[str, ...] = ("uniform", "prioritised", "fresh")


def used(replay: Replay, naive: NaiveReplay, fragments: int) -> ScriptedActor:
    """Let a replay receive, be sampled and get priorities."""
    actor = ScriptedActor(replay.layout, 0, seed=2)
    for number in range(fragments):
        actor.fill(replay.free, version=number)
        naive.accept(replay.free)
        replay.accept()
        into = batch_of(replay, 5)
        replay.update_priorities(into.key, np.linspace(0.1, 3, 5, dtype=np.float32))
    return actor


def assert_same_batches(one: Replay, other: Replay) -> None:
    for _ in range(5):
        mine, its = batch_of(one, 30), batch_of(other, 30)
        for name, _ in mine.layout.arrays:
            np.testing.assert_array_equal(arrays_of(mine)[name], arrays_of(its)[name], err_msg=name)
        for replay, batch in ((one, mine), (other, its)):
            replay.update_priorities(batch.key, np.linspace(0, 2, 30, dtype=np.float32))


def arrays_of(into: Any) -> dict[str, Any]:
    batch = into.batch
    names = ("observation", "next_observation", "reward", "discount", "weight")
    arrays = {name: getattr(batch, name) for name in names}
    arrays |= {f"fields/{name}": array for name, array in batch.fields.items()}
    return arrays | {"key": into.key, "version": into.version, "age": into.age}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sampler=st.sampled_from(SAMPLERS),
    fragments=st.integers(1, 5),
    accepted=st.integers(1, 14),
    n_step=st.integers(1, 6),
    lean=st.booleans(),
    stack=st.sampled_from([1, 3]),
)
def test_a_restored_replay_goes_on_like_the_one_that_was_saved(
    tmp_path: Path, sampler: str, fragments: int, accepted: int, n_step: int, lean: bool, stack: int
) -> None:
    layout = fragment_layout(3, 2, PRIORITY, lean=lean, stack=stack)
    saved = open_replay(layout, fragments, sampler=sampler, n_step=n_step, seed=1)
    used(saved, NaiveReplay(layout, fragments), accepted)
    save_replay(saved, tmp_path)
    restored = open_replay(layout, fragments, sampler=sampler, n_step=n_step, seed=99)
    restore_replay(restored, tmp_path)
    assert (restored.size, restored.accepted) == (saved.size, saved.accepted)
    assert (restored.ring.env_steps, restored.stale_updates) == (saved.ring.env_steps, saved.stale_updates)
    assert restored.uses.summary() == saved.uses.summary()
    assert_same_batches(saved, restored)
    strangers = [ScriptedActor(layout, 8, seed=5) for _ in range(2)]
    for _ in range(4):
        for replay, actor in zip((saved, restored), strangers, strict=True):
            actor.fill(replay.free)
            replay.accept()
        assert_same_batches(saved, restored)


def test_episodes_begin_anew_after_a_restore(tmp_path: Path) -> None:
    layout = fragment_layout(3, 2)
    naive = NaiveReplay(layout, 6)
    saved = open_replay(layout, 6, n_step=5)
    actor = used(saved, naive, 4)
    save_replay(saved, tmp_path)
    restored = open_replay(layout, 6, n_step=5, sampler="uniform")
    restore_replay(restored, tmp_path)
    for _ in range(2):  # They would go on if the replay did not know better.
        actor.fill(restored.free)
        naive.accept(restored.free)
        naive.fragments[-1].header["incarnation"] = 1
        restored.accept()
    check(batch_of(restored, 100), naive, 5, 0.9)


def test_a_larger_replay_takes_it_and_a_smaller_one_does_not(tmp_path: Path) -> None:
    layout = fragment_layout(3, 2)
    naive = NaiveReplay(layout, 4)
    saved = open_replay(layout, 4)
    actor = used(saved, naive, 9)
    save_replay(saved, tmp_path)
    larger = open_replay(layout, 10)
    restore_replay(larger, tmp_path)
    check(batch_of(larger, 100), naive, 1, 0.9)
    assert larger.size == saved.size
    for _ in range(20):
        actor.fill(larger.free)
        larger.accept()
    assert larger.ring.next - larger.ring.oldest == 10
    with pytest.raises(ReplayFileError, match="holds 24 env steps, more than the capacity"):
        restore_replay(open_replay(layout, 3), tmp_path)


def test_an_empty_replay_is_saved_and_restored(tmp_path: Path) -> None:
    layout = fragment_layout(3, 2)
    save_replay(open_replay(layout, 4), tmp_path)
    restored = open_replay(layout, 4)
    restore_replay(restored, tmp_path)
    assert restored.size == 0


def test_a_replay_that_holds_something_is_not_restored(tmp_path: Path) -> None:
    layout = fragment_layout(3, 2)
    replay = open_replay(layout, 4)
    used(replay, NaiveReplay(layout, 4), 2)
    save_replay(replay, tmp_path)
    with pytest.raises(ValueError, match="only an empty replay"):
        restore_replay(replay, tmp_path)


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], object]:
    def do(directory: Path) -> None:
        path = directory / "replay.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return do


def changed(name: str, value: float) -> Callable[[Path], object]:
    return edit(lambda document: document["settings"].update({name: value}))


def flip(name: str, where: int) -> Callable[[Path], object]:
    def do(directory: Path) -> None:
        content = bytearray((directory / name).read_bytes())
        content[where] ^= 1
        (directory / name).write_bytes(content)

    return do


def cut(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:-1])


def lengthen(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes() + b"x")


def pickled(directory: Path) -> None:
    np.save(directory / "replay_uses.npy", np.array([{}], object), allow_pickle=True)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no document": (lambda directory: (directory / "replay.json").unlink(), "replay.json"),
    "no JSON": (lambda directory: (directory / "replay.json").write_text("{"), "cannot read"),
    "no object": (lambda directory: (directory / "replay.json").write_text("[]"), "not of schema 1"),
    "schema": (edit(lambda document: document.update(schema=2)), "not of schema 1"),
    "part missing": (edit(lambda document: document.pop("births")), "births"),
    "births": (edit(lambda document: document.update(births=[5, 2])), "counts fragments from 5 to 2"),
    "no numbers": (edit(lambda document: document.update(births=["x", 2])), "cannot read"),
    "other layout": (edit(lambda document: document.update(layout="0")), "other fragments than the config's"),
    "n_step": (changed("n_step", 2), "with n_step = 2, and the config has 1"),
    "gamma": (changed("gamma", 0.5), r"with gamma = 0\.5, and the config has 0\.9"),
    "alpha": (changed("priority_exponent", 1.0), r"with priority_exponent = 1\.0, and the config has 0\.6"),
    "setting missing": (edit(lambda document: document["settings"].pop("gamma")), "gamma"),
    "no array": (lambda directory: (directory / "replay_links.npy").unlink(), "replay_links.npy"),
    "fragments": (flip("replay_fragments.npy", 200), "replay_fragments.npy is damaged"),
    "spans": (flip("replay_spans.npy", -1), "replay_spans.npy is damaged"),
    "uses": (flip("replay_uses.npy", -1), "replay_uses.npy is damaged"),
    "priorities": (flip("replay_priorities.npy", -1), "replay_priorities.npy is damaged"),
    "links": (flip("replay_links.npy", -1), "replay_links.npy is damaged"),
    "cut": (cut("replay_fragments.npy"), "replay_fragments.npy is damaged"),
    "longer": (lengthen("replay_fragments.npy"), "replay_fragments.npy is damaged"),
    "no npy": (flip("replay_fragments.npy", 0), "cannot read"),
    "pickle": (pickled, r"has object \[1\], not uint8"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_damaged_or_foreign_is_refused(tmp_path: Path, what: str) -> None:
    damage, complaint = DAMAGE[what]
    layout = fragment_layout(3, 2)
    saved = open_replay(layout, 4, sampler="prioritised")
    used(saved, NaiveReplay(layout, 4), 6)
    save_replay(saved, tmp_path)
    damage(tmp_path)
    if (tmp_path / "replay.json").exists():
        seal(tmp_path, ("replay.json",))
    with pytest.raises(ReplayFileError, match=complaint):
        restore_replay(open_replay(layout, 4, sampler="prioritised"), tmp_path)


def test_a_document_that_is_not_as_it_was_written_is_refused_with_the_way_out(tmp_path: Path) -> None:
    layout = fragment_layout(3, 2)
    place = tmp_path / "replay/last"
    place.mkdir(parents=True)
    save_replay(open_replay(layout, 4), place)
    document = json.loads((place / "replay.json").read_text())
    (place / "replay.json").write_text(json.dumps(document | {"accepted": document["accepted"] + 1}))
    with pytest.raises(ReplayFileError, match=r"replay\.json is damaged: its SHA-256") as refused:
        restore_replay(open_replay(layout, 4), place)
    assert f"goes on with an empty one: rm -r {tmp_path}/replay" in str(refused.value)


def test_another_sampler_s_state_is_refused(tmp_path: Path) -> None:
    layout = fragment_layout(3, 2)
    save_replay(open_replay(layout, 4, sampler="fresh"), tmp_path)
    with pytest.raises(ReplayFileError, match="with sampler = fresh, and the config has uniform"):
        restore_replay(open_replay(layout, 4, sampler="uniform"), tmp_path)


def test_an_exponent_of_priorities_that_there_are_not_is_not_compared(tmp_path: Path) -> None:
    layout = fragment_layout(3, 2)
    save_replay(open_replay(layout, 4, priority_exponent=0.6), tmp_path)
    restore_replay(open_replay(layout, 4, priority_exponent=1.0), tmp_path)


@pytest.mark.parametrize(
    ("slots", "steps", "accepted", "gives_up"),
    [(6, 5, 0, False), (6, 5, 3, False), (6, 5, 9, False), (3, 8, 9, True)],
)
def test_a_restored_replay_of_sequences_has_them_all(
    tmp_path: Path, slots: int, steps: int, accepted: int, gives_up: bool
) -> None:
    layout = fragment_layout(3, 2)
    saved, naive = open_sequences(layout, slots, steps, seed=1), NaiveSequences(layout, slots, steps)
    actor = ScriptedActor(layout, 0, seed=8)
    for version in range(accepted):
        play(saved, naive, actor, version)
        if saved.drawable:
            sequences_of(saved, 5)
    save_replay(saved, tmp_path)
    assert (naive.given_up > 0) == gives_up
    restored = open_sequences(layout, slots, steps, seed=99)
    restore_replay(restored, tmp_path)
    assert (restored.size, restored.accepted) == (saved.size, saved.accepted)
    assert restored.ring.drawable == saved.ring.drawable
    assert restored.steps_given_up == saved.steps_given_up == naive.given_up
    assert restored.uses.summary() == saved.uses.summary()
    for _ in range(5 if accepted else 0):
        mine, its = sequences_of(saved, 20), sequences_of(restored, 20)
        check_sequences(its, naive)
        np.testing.assert_array_equal(mine.key, its.key)


def test_sequences_begin_anew_after_a_restore(tmp_path: Path) -> None:
    """Steps of an open sequence never become samples, and the next step begins a sequence."""
    layout = fragment_layout(3, 1)
    saved, naive = open_sequences(layout, 9, 5), NaiveSequences(layout, 9, 5)
    actor = ScriptedActor(layout, 0, seed=2, end_rate=0.0)
    for _ in range(3):
        play(saved, naive, actor)
    save_replay(saved, tmp_path)
    restored = open_sequences(layout, 9, 5)
    restore_replay(restored, tmp_path)
    for _ in range(2):
        actor.fill(restored.free)
        restored.accept()
    into = sequences_of(restored, 64)
    assert set(zip(into.key.tolist(), into.arrays["length"].tolist(), strict=True)) == {(0, 5), (9, 5)}


def test_a_replay_of_transitions_is_none_of_sequences_nor_of_longer_ones(tmp_path: Path) -> None:
    layout = fragment_layout(3, 2)
    save_replay(open_sequences(layout, 4, 5), tmp_path)
    with pytest.raises(ReplayFileError, match="sequence_steps = 5, and the config has 6"):
        restore_replay(open_sequences(layout, 4, 6), tmp_path)
    with pytest.raises(ReplayFileError, match="sequence_steps = 5, and the config has None"):
        restore_replay(open_replay(layout, 4, gamma=1.0), tmp_path)


def test_links_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    layout = fragment_layout(3, 2)
    for predecessors in ([0, -1], [-1, -2], [-1, 0, 0]):
        replay = open_replay(layout, 4)
        with pytest.raises(ValueError, match="not before them"):
            replay.index.links.restore(0, np.array(predecessors))


def test_a_full_disk_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    layout = fragment_layout(16, 16, shape=(100,))
    replay = open_replay(layout, 4)
    used(replay, NaiveReplay(layout, 4), 4)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(ReplayFileError, match=f"cannot write the replay to {tmp_path}"):
            save_replay(replay, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_replay_that_was_saved_before_lengths_were_recorded_is_gone_on_with() -> None:
    layout = fragment_layout(3, 2)
    before = replace(layout, fields=tuple(one for one in layout.fields if one.name != "episode_steps"))
    assert before.fingerprint != layout.fingerprint
    assert file._fingerprint(before) == file._fingerprint(layout)
