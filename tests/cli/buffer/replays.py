"""Scripted actors that fill replays, and what their transitions are, computed step by step."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings, kept_first
from tianji_cli.roles.buffer.replay.samplers import PrioritisedSampler
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout, common_fields

ACTION = FieldSpec("action", np.dtype(np.int64))
PRIORITY = FieldSpec("priority", np.dtype(np.float32))
JOB = 7


def fragment_layout(
    steps: int,
    num_envs: int,
    *more: FieldSpec,
    shape: tuple[int, ...] = (2,),
    dtype: npt.DTypeLike = np.float32,
    lean: bool = True,
    stack: int = 1,
) -> FragmentLayout:
    """Fragments with an action and the stacks seen; ``lean``: what a replay reads once comes last."""
    low, high = (0, 255) if np.dtype(dtype).kind == "u" else (-1, 1)
    common = common_fields(gym.spaces.Box(low, high, shape, np.dtype(dtype).type), stack)
    seen = FieldSpec("seen", np.dtype(dtype), (stack, *shape), bootstrap=True)
    fields = (*common, ACTION, *([seen] if stack > 1 else []), *more)
    return FragmentLayout(steps, num_envs, kept_first(fields) if lean else fields)


def open_replay(
    layout: FragmentLayout,
    fragments: int,
    *,
    sampler: str = "uniform",
    n_step: int = 1,
    gamma: float = 0.9,
    seed: int = 0,
    **settings: Any,
) -> Replay:
    capacity = fragments * layout.steps * layout.num_envs
    chosen = ReplaySettings(capacity, sampler, n_step, gamma, **settings)
    return Replay(layout, chosen, agent_fields=("action",), seed=seed)


def bytes_held(replay: Replay) -> int:
    """Sum of the bytes of all arrays that a replay keeps over its slots."""
    links = replay.index.links
    arrays: list[npt.NDArray[Any]] = [array for array, _ in replay.index.by_slot.values()]
    arrays += [links.successor, links.predecessor, replay.memory.bytes, replay.uses.counts]
    arrays += [replay._samples, replay._versions, replay.accepted_by]
    if isinstance(replay.sampler, PrioritisedSampler):
        arrays += replay.sampler.tree._levels
    return sum(array.nbytes for array in arrays)


class ScriptedActor:
    """Steps made-up environments whose observations are all different, and records what it makes."""

    def __init__(self, layout: FragmentLayout, number: int, seed: int, end_rate: float = 0.3) -> None:
        self.layout, self.number = layout, number
        self.incarnation, self.sequence, self.before = 0, 0, 0
        self._rng = np.random.default_rng([seed, number])
        self._end_rate = end_rate
        self._stack = layout.fields[0].history + 1
        self._observation = self._new_observations()
        self._episodes = [[frame] for frame in self._observation]
        self._ended = np.zeros(layout.num_envs, np.bool_)

    def fill(self, memory: memoryview, version: int = 0) -> None:
        """Write the next fragment."""
        fragment = Fragment(self.layout, memory)
        memory[:] = self._rng.bytes(len(memory))  # A read between the fields gives rubbish.
        fragment.begin(
            job=JOB,
            actor=self.number,
            incarnation=self.incarnation,
            sequence=self.sequence,
            before=self.before,
            version=version,
        )
        fields, shape = fragment.fields, (self.layout.num_envs,)
        for array in fields.values():
            array[...] = 0
        history = self._stack - 1
        fields["observation"][: self._stack] = self._seen().swapaxes(0, 1)
        if history:
            fields["seen"][0] = self._seen()
        for t in range(self.layout.steps):
            fields["mask"][t] = ~self._ended
            fields["reward"][t] = self._rng.integers(-4, 5, shape)
            fields["action"][t] = self._rng.integers(0, 1 << 40, shape)
            ends = ~self._ended & (self._rng.random(shape) < self._end_rate)
            kind = self._rng.integers(1, 4, shape)
            fields["terminated"][t] = ends & (kind & 1 > 0)
            fields["truncated"][t] = ends & (kind & 2 > 0)
            if "priority" in fields:
                fields["priority"][t] = self._rng.random(shape)
            self._observation = self._new_observations()
            fields["observation"][history + t + 1] = self._observation
            for n, frame in enumerate(self._observation):
                self._episodes[n] = [frame] if self._ended[n] else [*self._episodes[n], frame]
            if history:
                fields["seen"][t + 1] = self._seen()
            self._ended = ends
        samples = int(fields["mask"].sum())
        fragment.header["samples"] = samples
        self.sequence += 1
        self.before += samples

    def lose(self) -> None:
        """Make a fragment that is lost."""
        self.fill(memoryview(bytearray(self.layout.nbytes)))

    def restart(self) -> None:
        self.incarnation += 1
        self.sequence = self.before = 0
        self._ended[:] = False
        self._observation = self._new_observations()
        self._episodes = [[frame] for frame in self._observation]

    def _seen(self) -> npt.NDArray[Any]:
        """The last frames of each environment's episode, ``[N, S, ...]``."""
        nothing = [np.zeros_like(self._observation[0])] * self._stack
        return np.stack([np.stack([*nothing, *frames][-self._stack :]) for frames in self._episodes])

    def _new_observations(self) -> npt.NDArray[Any]:
        spec = self.layout.fields[0]
        values = self._rng.integers(0, 250, (self.layout.num_envs, *spec.shape)).astype(spec.dtype)
        return (
            values if spec.dtype.kind == "u" else (values + self._rng.random(values.shape)).astype(spec.dtype)
        )


@dataclass(frozen=True)
class Transition:
    observation: npt.NDArray[Any]
    action: int
    reward: float
    next_observation: npt.NDArray[Any]
    discount: float
    version: int
    age: int


class NaiveReplay:
    """Contents of a replay of ``live`` fragments, as copies in a list."""

    def __init__(self, layout: FragmentLayout, live: int) -> None:
        self.layout, self.live = layout, live
        self.fragments: list[Fragment] = []
        self.accepted = 0
        self._accepted_by: list[int] = []

    def accept(self, memory: memoryview) -> None:
        self.fragments.append(Fragment(self.layout, memoryview(bytearray(memory))))
        self.accepted += int(self.fragments[-1].fields["mask"].sum())
        self._accepted_by.append(self.accepted)

    @property
    def oldest(self) -> int:
        return max(0, len(self.fragments) - self.live)

    def keys(self) -> Iterator[int]:
        """All samples held, the oldest first."""
        each = self.layout.steps * self.layout.num_envs
        for insertion in range(self.oldest, len(self.fragments)):
            for place in np.flatnonzero(self.fragments[insertion].fields["mask"].reshape(-1)):
                yield insertion * each + int(place)

    def transition(self, key: int, n_step: int, gamma: float) -> Transition:
        insertion, place = divmod(key, self.layout.steps * self.layout.num_envs)
        row, n = divmod(place, self.layout.num_envs)
        first = self.fragments[insertion]
        observed = "seen" if "seen" in first.fields else "observation"
        observation, action = first.fields[observed][row, n], int(first.fields["action"][row, n])
        reward, discount = 0.0, 1.0
        fragment: Fragment | None = first
        for _ in range(n_step):
            if fragment is None or not fragment.fields["mask"][row, n]:
                break
            reward += discount * float(fragment.fields["reward"][row, n])
            discount *= gamma
            following = fragment.fields[observed][row + 1, n]
            if fragment.fields["terminated"][row, n]:
                discount = 0.0
                break
            if fragment.fields["truncated"][row, n]:
                break
            row += 1
            if row == self.layout.steps:
                fragment, row = self._next(fragment), 0
        age = self.accepted - self._accepted_by[insertion]
        return Transition(observation, action, reward, following, discount, int(first.header["version"]), age)

    def _next(self, fragment: Fragment) -> Fragment | None:
        for other in self.fragments[self.oldest :]:
            consecutive = int(other.header["sequence"]) == int(fragment.header["sequence"]) + 1
            if other.source == fragment.source and consecutive:
                return other
        return None


def batch_of(replay: Replay, size: int) -> BatchArrays:
    into = BatchArrays(BatchLayout.of(replay.layout, size, replay.agent_fields))
    replay.sample(into)
    return into


def check(into: BatchArrays, naive: NaiveReplay, n_step: int, gamma: float) -> None:
    """Compare every transition of a batch with what it should be."""
    held = set(naive.keys())
    batch = into.batch
    for place, key in enumerate(into.key.tolist()):
        assert key in held
        expected = naive.transition(key, n_step, gamma)
        np.testing.assert_array_equal(batch.observation[place], expected.observation)
        np.testing.assert_array_equal(batch.next_observation[place], expected.next_observation)
        assert batch.fields["action"][place] == expected.action
        np.testing.assert_allclose(batch.reward[place], expected.reward, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(batch.discount[place], expected.discount, rtol=1e-6)
        assert (into.version[place], into.age[place]) == (expected.version, expected.age)
