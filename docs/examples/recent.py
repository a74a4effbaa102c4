"""Example of samplers of one's own, for recent.toml: one draws new samples often, one admits few of some."""

from __future__ import annotations

import numpy as np

from tianji_cli.roles.buffer.replay.samplers import Keys, Sampler, UniformSampler, Weights
from tianji_cli.wire.fragment import Fragment


class RecentSampler(Sampler):
    """Draws the newest quarter of a replay as often as the rest of it."""

    def draw(self, keys: Keys, weights: Weights) -> None:
        """Write the keys of a batch and their weights, which multiply the loss."""
        each = self.ring.steps_each
        first, past = self.ring.oldest * each, self.ring.next * each
        found = 0
        while found < keys.size:
            back = (past - first) * self.rng.random(2 * keys.size) ** 2
            candidates = past - 1 - back.astype(np.int64)
            begins = self.starts.take(candidates % self.ring.slot_steps) != 0
            drawn = candidates[begins][: keys.size - found]
            keys[found : found + drawn.size] = drawn
            found += drawn.size
        weights[...] = 1.0


class RewardedSampler(UniformSampler):
    """Admits fragments with a reward, and one in five of those without."""

    def admits(self, fragment: Fragment) -> bool:
        """Whether the replay takes a fragment."""
        return bool(fragment.fields["reward"].any()) or self.rng.random() < 0.2
