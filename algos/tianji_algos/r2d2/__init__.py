"""R2D2 (Kapturowski et al., 2019): Q-learning with a network that remembers, from a replay of unrolls."""
