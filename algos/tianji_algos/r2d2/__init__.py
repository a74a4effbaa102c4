"""R2D2 (Kapturowski et al., 2019): Q-learning with a recurrent network, from a replay of unrolls."""
