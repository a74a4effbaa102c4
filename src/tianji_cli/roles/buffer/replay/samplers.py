"""Samplers of a replay: they draw uniformly, by priority, or samples without a use first.

The *key* of a sample is insertion index x (T x N) + t x N + n of its first step; its place in per-step arrays
is the key modulo the number of steps in all slots. A step that begins no sample has 0 in ``starts`` and is
never drawn. Each sampler has a generator of its own: its draws depend on the seed, and on the samples
accepted and drawn before, on nothing else.

Prioritised draws use a wide, shallow tree of numpy arrays. Every operation takes many leaves at once, as a
numpy call costs as much as dozens of additions. So a node has many children, and a search looks at all
children of a node together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.errors import DivergedError
from tianji_cli.config.schema import SAMPLERS
from tianji_cli.roles.buffer.replay.memory import ReplayRing
from tianji_cli.roles.buffer.replay.samples import SampleIndex, Sequences, Transitions
from tianji_cli.roles.buffer.replay.unrolls import Unrolls
from tianji_cli.wire.fragment import Fragment

FANOUT: Final = 16
"""Children of a node: fewer would mean more levels, more would make each level slower."""

TOP: Final = 4096
"""Most nodes of the uppermost level, which a search looks at as a whole."""

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


class SumTree:
    """Non-negative numbers and the sums of groups of them.

    A node is always the sum of its children, computed anew when one of them changes, so that sums do not
    drift. Leaves are float32: a priority needs no more, and float32 halves the memory and its traffic.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a sum tree needs leaves, not {size}")
        self._levels: list[npt.NDArray[np.float32 | np.float64]] = [
            np.zeros((nodes, FANOUT), np.float64 if level else np.float32)
            for level, nodes in enumerate(_groups(size))
        ]
        self._flat = [level.reshape(-1) for level in self._levels]
        self._top = self._flat[-1]

    @staticmethod
    def bytes_for(size: int) -> int:
        """Return the bytes of a tree with so many leaves."""
        return sum(nodes * FANOUT * (8 if level else 4) for level, nodes in enumerate(_groups(size)))

    @property
    def leaves(self) -> npt.NDArray[np.float32]:
        """All leaves, and zeros up to the end of the last group."""
        return self._flat[0].view(np.float32)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._top.sum(dtype=np.float64))

    def set(self, indices: Indices, values: npt.ArrayLike) -> None:
        """Set leaves to new values; if a leaf occurs several times, the last value counts."""
        self._flat[0][indices] = values
        self._add_up(indices // FANOUT)

    def set_range(self, first: int, values: Floats) -> None:
        """Set the leaves from ``first`` on to new values."""
        past = first + values.size
        self._flat[0][first:past] = values
        self._add_up(np.arange(first // FANOUT, -(-past // FANOUT)))

    def add_up(self) -> None:
        """Compute all sums from leaves that were written directly."""
        self._add_up(np.arange(len(self._levels[0])))

    def find(self, prefixes: Floats) -> tuple[Indices, Floats]:
        """Find the leaf in which each prefix of the total ends: the first with a larger sum up to its end.

        Args:
            prefixes: ``[B]``, from 0 to less than ``total``; overwritten.

        Returns:
            The leaves, none of which is 0, and their values. The total of the tree must not be 0.
        """
        sums = np.cumsum(self._top, dtype=np.float64)
        np.minimum(prefixes, np.nextafter(sums[-1], 0.0), out=prefixes)
        nodes = np.searchsorted(sums, prefixes, side="right")
        prefixes -= sums[nodes] - self._top[nodes]
        rows = np.arange(prefixes.size)
        for level in reversed(self._levels[:-1]):
            sums = np.cumsum(level.take(nodes, axis=0), axis=1, dtype=np.float64)
            # Rounding may leave a prefix outside its node by a little.
            np.minimum(prefixes, np.nextafter(sums[:, -1], 0.0), out=prefixes)
            np.maximum(prefixes, 0.0, out=prefixes)
            child = np.count_nonzero(sums <= prefixes[:, None], axis=1)
            before = np.where(child > 0, sums[rows, child - 1], 0.0)
            prefixes -= before
            nodes = nodes * FANOUT + child
        return nodes, self._flat[0][nodes].astype(np.float64)

    def _add_up(self, nodes: Indices) -> None:
        """Recompute nodes of the level above the leaves, and all nodes above these."""
        for children, sums in zip(self._levels, self._flat[1:], strict=False):
            sums[nodes] = children.take(nodes, axis=0).sum(axis=1, dtype=np.float64)
            nodes = nodes // FANOUT


def _groups(size: int) -> list[int]:
    """Return the number of groups of ``FANOUT`` nodes in each level, from the leaves up."""
    groups = [-(-size // FANOUT)]
    while groups[-1] * FANOUT > TOP:
        groups.append(-(-groups[-1] // FANOUT))
    return groups


SMALLEST_PRIORITY: Final = 1e-6
"""Summand of every priority, so that a sample without error is drawn again some day (Schaul's epsilon)."""

MOST_ATTEMPTS: Final = 1 << 13
"""Further candidate steps of one attempt, for samples that few steps begin, such as sequences."""

Keys = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]
Priorities = npt.NDArray[np.float32]
Starts = npt.NDArray[np.uint8]


class Sampler(ABC):
    """Admits fragments to a replay, and draws from its samples; base class of samplers of one's own.

    Attributes:
        has_priorities: updates give samples new priorities.
        settings: settings of the replay that the sampler takes as further arguments.
        decisive: settings that decide the meaning of a saved replay.
        draws_from: kinds of samples that the sampler can draw.
        ring: the fragments held, from ``ring.oldest`` to ``ring.next``, with ``ring.steps_each`` steps each.
        starts: a number for each step in all slots; 0 if no sample begins with the step.
        rng: generator of the sampler's own, which is saved with the replay.
    """

    has_priorities: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()
    decisive: ClassVar[tuple[str, ...]] = ()
    draws_from: ClassVar[tuple[type[SampleIndex], ...]] = (Transitions,)

    def __init__(self, ring: ReplayRing, starts: Starts, seed: int) -> None:
        self.ring = ring
        self.starts = starts
        self.rng = np.random.default_rng(seed)

    @staticmethod
    def bytes_for(size: int) -> int:  # noqa: ARG004 - most keep none
        """Return the bytes of a sampler's per-step numbers for ``size`` steps."""
        return 0

    @property
    def priorities(self) -> Priorities | None:
        """Priority of each step in all slots; None if the sampler keeps none."""
        return None

    def admits(self, fragment: Fragment) -> bool:  # noqa: ARG002 - most admit all
        """Whether the replay takes a fragment; the samples of one that it does not take are dropped."""
        return True

    def accept(self, insertion: int, priorities: Priorities | None) -> None:  # noqa: B027 - most need not
        """Make a fragment's samples drawable, with the priorities that its actor computed, if any."""

    def evict(self, insertion: int) -> None:  # noqa: B027 - most need not
        """Stop drawing a fragment's steps, whose ``starts`` are still set."""

    def update(self, places: Indices, priorities: Priorities) -> None:  # noqa: B027 - most need not
        """Set new priorities; if a sample occurs several times, the last priority counts."""

    @abstractmethod
    def draw(self, keys: Keys, weights: Weights) -> None:
        """Write ``[B]`` keys and their importance weights; the replay must have a sample."""

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs to continue the same draws, as JSON values."""
        return {"rng": self.rng.bit_generator.state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, whose fragments and priorities are in their places already."""
        self.rng.bit_generator.state = state["rng"]

    def draw_uniformly(self, keys: Keys) -> None:
        """Draw among all held steps and reject steps that begin no sample: the result is exactly uniform."""
        each, slot_steps = self.ring.steps_each, self.ring.slot_steps
        first, past = self.ring.oldest * each, self.ring.next * each
        found = 0
        while found < keys.size:
            missing = keys.size - found
            # Enough more that a second round is the exception.
            attempts = int(missing * 1.05 * (past - first) / self.ring.drawable) + 8
            candidates = self.rng.integers(first, past, min(attempts, 4 * missing + MOST_ATTEMPTS))
            drawn = candidates[self.starts.take(candidates % slot_steps) != 0][:missing]
            keys[found : found + drawn.size] = drawn
            found += drawn.size


class UniformSampler(Sampler):
    """Draws every sample with the same probability."""

    draws_from = (Transitions, Sequences, Unrolls)

    def draw(self, keys: Keys, weights: Weights) -> None:
        """See ``Sampler.draw``."""
        self.draw_uniformly(keys)
        weights[...] = 1.0


class FreshSampler(Sampler):
    """Draws samples without a use first, the oldest before the others; then draws uniformly.

    The sampler uses fresh samples in their order, so all samples from one key on are fresh, and none before
    it.
    """

    def __init__(self, ring: ReplayRing, starts: Starts, seed: int) -> None:
        super().__init__(ring, starts, seed)
        self._fresh_from = 0

    def draw(self, keys: Keys, weights: Weights) -> None:
        """See ``Sampler.draw``."""
        found = self._draw_fresh(keys)
        self.draw_uniformly(keys[found:])
        weights[...] = 1.0

    def _draw_fresh(self, keys: Keys) -> int:
        each, found = self.ring.steps_each, 0
        self._fresh_from = max(self._fresh_from, self.ring.oldest * each)
        while found < keys.size and self._fresh_from < self.ring.next * each:
            insertion, first = divmod(self._fresh_from, each)
            steps = self.starts[self.ring.steps(insertion)][first:]
            fresh = np.flatnonzero(steps)[: keys.size - found]
            keys[found : found + fresh.size] = fresh + self._fresh_from
            found += fresh.size
            self._fresh_from += int(fresh[-1]) + 1 if found == keys.size else steps.size
        return found

    def state(self) -> dict[str, Any]:
        """See ``Sampler.state``."""
        return {**super().state(), "fresh_from": self._fresh_from}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See ``Sampler.load_state``."""
        super().load_state(state)
        self._fresh_from = int(state["fresh_from"])


class PrioritisedSampler(Sampler):
    """Proportional prioritisation (Schaul et al. 2016, section 3.3, Equation 1, and Appendix B.2.1).

    P(i) = p_i^alpha / sum_k p_k^alpha; a batch takes one sample from each of B equal parts of the sum; its
    weights are (N P(i))^-beta over the largest of the batch (section 3.4).

    Args:
        priority_exponent: alpha.
        importance_exponent: initial beta.
        importance_steps: env steps over which beta rises to 1; None keeps it constant.
    """

    has_priorities = True
    draws_from = (Transitions, Unrolls)
    settings = ("priority_exponent", "importance_exponent", "importance_steps")
    decisive = ("priority_exponent",)  # The tree holds priorities raised to it.
    bytes_for = staticmethod(SumTree.bytes_for)

    def __init__(
        self,
        ring: ReplayRing,
        starts: Starts,
        seed: int,
        *,
        priority_exponent: float,
        importance_exponent: float,
        importance_steps: int | None,
    ) -> None:
        super().__init__(ring, starts, seed)
        self.tree = SumTree(ring.slot_steps)
        self._alpha = priority_exponent
        self._beta = importance_exponent
        self._importance_steps = importance_steps
        self._largest = 1.0  # p^alpha of samples whose error is not known yet: the largest so far.
        self._parts = np.zeros(0)

    @property
    def priorities(self) -> Priorities:
        """See ``Sampler.priorities``: p^alpha."""
        return self.tree.leaves

    def accept(self, insertion: int, priorities: Priorities | None) -> None:
        """See ``Sampler.accept``; a sample without a finite priority gets the largest so far."""
        steps = self.ring.steps(insertion)
        values = np.full(self.ring.steps_each, self._largest)
        if priorities is not None:
            finite = np.isfinite(priorities)
            values[finite] = self._powered(priorities[finite])
        values[self.starts[steps] == 0] = 0.0
        self.tree.set_range(steps.start, values)
        self._largest = max(self._largest, float(values.max()))

    def evict(self, insertion: int) -> None:
        """See ``Sampler.evict``."""
        self.tree.set_range(self.ring.steps(insertion).start, np.zeros(self.ring.steps_each))

    def update(self, places: Indices, priorities: Priorities) -> None:
        """See ``Sampler.update``.

        Raises:
            DivergedError: a priority is not finite.
        """
        if not np.isfinite(priorities).all():
            raise DivergedError(
                "a sample's new priority is not finite: the loss has diverged; "
                "a smaller learning_rate, or a smaller reward_scale, would be right"
            )
        values = np.where(self.starts.take(places) == 0, 0.0, self._powered(priorities))
        self.tree.set(places, values)
        self._largest = max(self._largest, float(values.max(initial=0.0)))

    def draw(self, keys: Keys, weights: Weights) -> None:
        """See ``Sampler.draw``."""
        if self._parts.size != keys.size:
            self._parts = np.arange(keys.size, dtype=np.float64)
        prefixes = self.rng.random(keys.size)
        prefixes += self._parts
        prefixes *= self.tree.total / keys.size
        places, values = self.tree.find(prefixes)
        # N and the sum cancel out as the largest weight is 1, so the smallest probability decides.
        np.power(values.min() / values, self._beta_now(), out=values)
        weights[...] = values
        past = self.ring.next * self.ring.steps_each
        keys[...] = (past - 1) - (past - 1 - places) % self.ring.slot_steps

    def state(self) -> dict[str, Any]:
        """See ``Sampler.state``."""
        return {**super().state(), "largest": self._largest}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See ``Sampler.load_state``."""
        super().load_state(state)
        self._largest = float(state["largest"])
        self.tree.add_up()

    def _beta_now(self) -> float:
        if self._importance_steps is None:
            return self._beta
        return self._beta + (1.0 - self._beta) * min(1.0, self.ring.env_steps / self._importance_steps)

    def _powered(self, priorities: Priorities) -> npt.NDArray[np.float64]:
        return np.power(np.abs(priorities, dtype=np.float64) + SMALLEST_PRIORITY, self._alpha)


BUILT_IN: Final[Mapping[str, type[Sampler]]] = {
    "uniform": UniformSampler,
    "prioritised": PrioritisedSampler,
    "fresh": FreshSampler,
}


def find_sampler(name: str) -> type[Sampler]:
    """Return a sampler's class: built in, or imported.

    Raises:
        ValueError: the class does not exist, does not import, or is no sampler.
    """
    found = BUILT_IN.get(name) or SAMPLERS.load(name)
    if not (isinstance(found, type) and issubclass(found, Sampler)):
        raise ValueError(f"sampler {name!r} is {found!r}, not a subclass of Sampler")
    return found
