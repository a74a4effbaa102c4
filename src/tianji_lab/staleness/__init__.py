"""Experiments on stale samples: Figures 12(a) and 6(d) of the paper."""
