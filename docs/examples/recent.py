"""Example of a sampler of one's own: the newer a sample, the more often it is drawn; for recent.toml."""

from __future__ import annotations

import numpy as np

from tianji_cli.roles.buffer.replay.samplers import Keys, Sampler, Weights


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
