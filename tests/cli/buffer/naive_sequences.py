"""Sequences of a replay as Python lists, put together one step after the other."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from cli.buffer.replays import ScriptedActor

from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout


@dataclass
class Sequence:
    key: int
    version: int
    observations: list[npt.NDArray[Any]]
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    terminated: bool = False


class NaiveSequences:
    """Contents of a replay of ``live`` fragments, and the sequences that are complete."""

    def __init__(self, layout: FragmentLayout, live: int, most: int) -> None:
        self.layout, self.live, self.most = layout, live, most
        self.accepted, self.insertions = 0, 0
        self.given_up = 0
        self.accepted_by: list[int] = []
        self.masks: list[npt.NDArray[np.bool_]] = []
        self._complete: list[Sequence] = []
        self._latest: dict[int, tuple[int, int, int]] = {}
        self._open: dict[tuple[int, int], Sequence] = {}

    @property
    def oldest(self) -> int:
        return max(0, self.insertions - self.live)

    @property
    def size(self) -> int:
        return sum(int(mask.sum()) for mask in self.masks[self.oldest :])

    @property
    def complete(self) -> dict[int, Sequence]:
        """Sequences that can be drawn, by their keys."""
        first = self.oldest * self.layout.steps * self.layout.num_envs
        return {one.key: one for one in self._complete if one.key >= first}

    def accept(self, memory: memoryview) -> None:
        fragment, insertion = Fragment(self.layout, memoryview(bytearray(memory))), self.insertions
        self.insertions += 1
        header = fragment.header
        actor, incarnation, number = (int(header[name]) for name in ("actor", "incarnation", "sequence"))
        before = self._latest.get(actor)
        goes_on = before is not None and before[:2] == (incarnation, number - 1) and before[2] >= self.oldest
        self._latest[actor] = (incarnation, number, insertion)
        for n in range(self.layout.num_envs):
            if not goes_on:
                self._close(actor, n)
            for t in range(self.layout.steps):
                self._step(actor, n, t, insertion, fragment.fields, int(header["version"]))
        self.masks.append(fragment.fields["mask"] != 0)
        self.accepted += int(self.masks[-1].sum())
        self.accepted_by.append(self.accepted)

    def _step(self, actor: int, n: int, t: int, insertion: int, fields: Any, version: int) -> None:
        if not fields["mask"][t, n]:
            self._close(actor, n)
            return
        key = (insertion * self.layout.steps + t) * self.layout.num_envs + n
        first = Sequence(key, version, [fields["observation"][t, n]])
        one = self._open.setdefault((actor, n), first)
        one.observations.append(fields["observation"][t + 1, n])
        one.actions.append(int(fields["action"][t, n]))
        one.rewards.append(float(fields["reward"][t, n]))
        one.steps.append(key)
        terminated, truncated = bool(fields["terminated"][t, n]), bool(fields["truncated"][t, n])
        if terminated or truncated or len(one.actions) == self.most:
            self._close(actor, n, terminated=terminated)

    def _close(self, actor: int, n: int, *, terminated: bool = False) -> None:
        one = self._open.pop((actor, n), None)
        if one is not None:
            one.terminated = terminated
            self._complete.append(one)
            if one.key not in self.complete:
                self.given_up += len(one.actions)


def open_sequences(layout: FragmentLayout, fragments: int, most: int, seed: int = 0) -> Replay:
    capacity = fragments * layout.steps * layout.num_envs
    chosen = ReplaySettings(capacity, "uniform", sequence_steps=most)
    return Replay(layout, chosen, agent_fields=("action",), seed=seed)


def sequences_of(replay: Replay, size: int) -> BatchArrays:
    steps = replay.settings.sequence_steps
    into = BatchArrays(BatchLayout.of(replay.layout, size, replay.agent_fields, steps))
    replay.sample(into)
    return into


def check_sequences(into: BatchArrays, naive: NaiveSequences, *, ages: bool = True) -> None:
    """Compare every sequence of a batch with what it should be; ages only where the batch was just drawn."""
    complete, arrays = naive.complete, into.arrays
    each = naive.layout.steps * naive.layout.num_envs
    for place, key in enumerate(into.key.tolist()):
        one = complete[key]
        length = len(one.actions)
        assert (arrays["length"][place], arrays["terminated"][place]) == (length, one.terminated)
        for row in range(naive.most + 1):
            seen = one.observations[min(row, length)]
            np.testing.assert_array_equal(arrays["observation"][place, row], seen)
        assert arrays["fields/action"][place, :length].tolist() == one.actions
        assert arrays["reward"][place, :length].tolist() == one.rewards
        assert into.version[place] == one.version
        assert not ages or into.age[place] == naive.accepted - naive.accepted_by[key // each]
        assert into.weight[place] == 1.0


def play(replay: Replay, naive: NaiveSequences, actor: ScriptedActor, version: int = 0) -> None:
    """Let an actor's next fragment arrive."""
    actor.fill(replay.free, version)
    naive.accept(replay.free)
    replay.accept()
