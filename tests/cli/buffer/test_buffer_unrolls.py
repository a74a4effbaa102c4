"""Unrolls of a replay: every one is what its steps one by one make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.buffer.replays import PRIORITY, ScriptedActor, bytes_held, fragment_layout
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_algos.fields import FieldSpec
from tianji_cli.config.schema import Unroll
from tianji_cli.roles.buffer.replay.file import ReplayFileError, restore_replay, save_replay
from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings, bytes_of
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout

STATE = FieldSpec("state", np.dtype(np.float32), (3,), once=True)
READ = ("action", "state")
EVENTS = st.lists(st.tuples(st.sampled_from("aaaaaaaalr"), st.integers(0, 2)), min_size=1, max_size=30)
"""An actor's fragment arrives (a) or is lost (l), or the actor restarts (r)."""


def open_unrolls(layout: FragmentLayout, fragments: int, unroll: Unroll, sampler: str = "uniform") -> Replay:
    chosen = ReplaySettings(fragments * layout.steps * layout.num_envs, sampler, unroll=unroll)
    return Replay(layout, chosen, agent_fields=READ, seed=3)


def unrolls_of(replay: Replay, size: int) -> BatchArrays:
    into = BatchArrays(BatchLayout.of(replay.layout, size, READ, replay.settings.unroll))
    replay.sample(into)
    return into


class Naive:
    """Contents of a replay of ``live`` fragments, as copies in a list."""

    def __init__(self, layout: FragmentLayout, live: int, unroll: Unroll) -> None:
        self.layout, self.live = layout, live
        self._needed = unroll.steps // layout.steps
        self.fragments: list[Fragment] = []

    def accept(self, memory: memoryview) -> None:
        self.fragments.append(Fragment(self.layout, memoryview(bytearray(memory))))

    @property
    def complete(self) -> dict[int, tuple[list[Fragment], int]]:
        """Fragments and environment of every unroll that can be drawn, by its key."""
        oldest = max(0, len(self.fragments) - self.live)
        found = {}
        for first in range(oldest, len(self.fragments)):
            chain, header = [self.fragments[first]], self.fragments[first].header
            latest = tuple(int(header[name]) for name in ("actor", "incarnation", "sequence"))
            for later in self.fragments[first + 1 :]:
                which = tuple(int(later.header[name]) for name in ("actor", "incarnation", "sequence"))
                if which == (*latest[:2], latest[2] + 1) and len(chain) < self._needed:
                    chain.append(later)
                    latest = which
            if len(chain) == self._needed:
                for n in range(self.layout.num_envs):
                    found[first * self.layout.steps * self.layout.num_envs + n] = (chain, n)
        return found

    def check(self, into: BatchArrays) -> int:
        """Compare every unroll of a batch with what it should be; returns how many steps are learnt from."""
        complete, arrays, used = self.complete, into.arrays, 0
        unroll = into.layout.sample
        assert isinstance(unroll, Unroll)
        for place, key in enumerate(into.key.tolist()):
            chain, n = complete[key]
            columns = {
                name: np.concatenate([one.fields[name][: self.layout.steps, n] for one in chain])
                for name in ("observation", "action", "reward", "mask", "terminated")
            }
            np.testing.assert_array_equal(arrays["observation"][place, :-1], columns["observation"])
            np.testing.assert_array_equal(
                arrays["observation"][place, -1], chain[-1].fields["observation"][-1, n]
            )
            np.testing.assert_array_equal(arrays["fields/action"][place], columns["action"])
            np.testing.assert_array_equal(arrays["reward"][place], columns["reward"])
            np.testing.assert_array_equal(arrays["mask"][place], columns["mask"] != 0)
            np.testing.assert_array_equal(
                arrays["terminated"][place], (columns["terminated"] != 0) & (columns["mask"] != 0)
            )
            np.testing.assert_array_equal(arrays["fields/state"][place], chain[0].fields["state"][0, n])
            assert into.version[place] == int(chain[0].header["version"])
            used += int((columns["mask"][unroll.burn_in :] != 0).sum())
        return used


class StatefulActor(ScriptedActor):
    """Records a state of its own before each fragment."""

    def fill(self, memory: memoryview, version: int = 0) -> None:
        super().fill(memory, version)
        state = Fragment(self.layout, memory).fields["state"]
        state[...] = self._rng.random(state.shape)


@settings(max_examples=150, deadline=None)
@given(
    events=EVENTS,
    seed=st.integers(0, 1000),
    end_rate=st.sampled_from([0.0, 0.3, 1.0]),
    steps=st.integers(1, 3),
    num_envs=st.integers(1, 3),
    fragments=st.integers(1, 8),
    shares=st.tuples(st.integers(0, 2), st.integers(1, 2)),
    sampler=st.sampled_from(["uniform", "prioritised"]),
)
def test_every_unroll_is_what_its_fragments_one_by_one_make_of_it(
    events: list[tuple[str, int]],
    seed: int,
    end_rate: float,
    steps: int,
    num_envs: int,
    fragments: int,
    shares: tuple[int, int],
    sampler: str,
) -> None:
    layout, unroll = fragment_layout(steps, num_envs, STATE), Unroll(shares[0] * steps, shares[1] * steps)
    replay, naive = open_unrolls(layout, fragments, unroll, sampler), Naive(layout, fragments, unroll)
    actors = [StatefulActor(layout, number, seed, end_rate) for number in range(3)]
    used = 0
    for version, (event, number) in enumerate(events):
        match event:
            case "a":
                actors[number].fill(replay.free, version)
                naive.accept(replay.free)
                replay.accept()
            case "l":
                actors[number].lose()
            case "r":
                actors[number].restart()
        complete = naive.complete
        assert (replay.ring.drawable, replay.drawable) == (len(complete), bool(complete))
        if complete:
            into = unrolls_of(replay, 8)
            learnt = naive.check(into)
            assert into.steps == learnt
            used += learnt
            assert replay.uses.total == used
            replay.update_priorities(into.key, np.linspace(0.1, 2.0, 8, dtype=np.float32))


def filled(sampler: str = "uniform", fragments: int = 6, sent: int = 9) -> tuple[Replay, Naive]:
    layout, unroll = fragment_layout(2, 2, STATE), Unroll(2, 4)
    replay, naive = open_unrolls(layout, fragments, unroll, sampler), Naive(layout, fragments, unroll)
    actor = StatefulActor(layout, 0, 5)
    for version in range(sent):
        actor.fill(replay.free, version)
        naive.accept(replay.free)
        replay.accept()
    return replay, naive


def test_an_unroll_with_a_large_priority_is_drawn_more_often() -> None:
    replay, naive = filled("prioritised")
    keys = np.array(list(naive.complete), np.int64)
    priorities = np.full(len(keys), 0.01, np.float32)
    priorities[3] = 10.0
    replay.update_priorities(keys, priorities)
    drawn = unrolls_of(replay, 200).key
    assert (drawn == keys[3]).mean() > 0.8


def test_a_new_unroll_is_drawn_as_soon_as_its_last_fragment_is_there() -> None:
    replay, naive = filled("prioritised", fragments=9, sent=2)
    assert not replay.drawable
    actor = StatefulActor(replay.layout, 1, 5)
    for _ in range(3):
        assert not replay.drawable
        actor.fill(replay.free)
        naive.accept(replay.free)
        replay.accept()
    assert set(unrolls_of(replay, 32).key.tolist()) == set(naive.complete)


@pytest.mark.parametrize("sampler", ["uniform", "prioritised"])
def test_unrolls_that_were_saved_are_drawn_again(tmp_path: Path, sampler: str) -> None:
    replay, naive = filled(sampler)
    unrolls_of(replay, 8)
    save_replay(replay, tmp_path)
    again = open_unrolls(replay.layout, 6, Unroll(2, 4), sampler)
    restore_replay(again, tmp_path)
    assert again.ring.drawable == replay.ring.drawable
    one, other = unrolls_of(replay, 16), unrolls_of(again, 16)
    naive.check(other)
    assert bytes(one.memory) == bytes(other.memory)
    actor = StatefulActor(replay.layout, 1, 5)  # Whatever comes goes on from none of what was saved.
    for _ in range(8):
        actor.fill(again.free)
        naive.accept(again.free)
        again.accept()
        assert again.ring.drawable == len(naive.complete)
        naive.check(unrolls_of(again, 16))
    assert again.steps_given_up == 0


def test_steps_that_nothing_was_learnt_from_are_counted() -> None:
    layout = fragment_layout(2, 2, STATE)
    replay = open_unrolls(layout, 4, Unroll(2, 4))
    slow, fast = StatefulActor(layout, 0, 5), StatefulActor(layout, 1, 5)
    slow.fill(replay.free)
    lost = int(Fragment(layout, replay.free).header["samples"])
    replay.accept()
    for _ in range(4):
        assert replay.steps_given_up == 0
        fast.fill(replay.free)
        replay.accept()
    assert replay.steps_given_up == lost > 0
    for _ in range(6):  # Those of the fast one were part of some unroll.
        fast.fill(replay.free)
        replay.accept()
    assert replay.steps_given_up == lost


def test_priorities_of_steps_are_none_of_unrolls() -> None:
    layout = fragment_layout(2, 2, STATE, PRIORITY)
    replay = open_unrolls(layout, 6, Unroll(2, 4), "prioritised")
    actor = StatefulActor(layout, 0, 5)
    for _ in range(3):
        actor.fill(replay.free)
        Fragment(layout, replay.free).fields["priority"][...] = 1e6
        replay.accept()
    assert replay.sampler.priorities is not None
    assert replay.sampler.priorities.max() == 1.0


def test_unrolls_of_another_length_are_refused_from_a_file(tmp_path: Path) -> None:
    replay, _ = filled()
    save_replay(replay, tmp_path)
    with pytest.raises(ReplayFileError, match=r"saved with unroll = \[2, 4\], and the config has \[0, 4\]"):
        restore_replay(open_unrolls(replay.layout, 6, Unroll(0, 4)), tmp_path)


def test_the_bytes_are_those_that_were_predicted() -> None:
    for sampler in ("uniform", "prioritised"):
        replay, _ = filled(sampler)  # type: ignore[arg-type]
        assert bytes_of(replay.layout, replay.settings, READ).total == bytes_held(replay)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"unroll": Unroll(1, 4)}, "does not consist of whole fragments of 2 steps"),
        ({"unroll": Unroll(2, 3)}, "does not consist of whole fragments of 2 steps"),
        ({"unroll": Unroll(2, 4), "sampler": "fresh"}, "'fresh' has no use for unrolls"),
    ],
)
def test_what_makes_no_unrolls_is_refused(changed: dict[str, Any], message: str) -> None:
    layout = fragment_layout(2, 2, STATE)
    with pytest.raises(ValueError, match=message):
        Replay(
            layout,
            ReplaySettings(**{"capacity": 64, "sampler": "uniform", **changed}),
            agent_fields=READ,
            seed=0,
        )


def test_stacks_of_observations_are_refused() -> None:
    with pytest.raises(ValueError, match="fragments hold stacks"):
        open_unrolls(fragment_layout(2, 2, STATE, stack=3), 5, Unroll(2, 4))
