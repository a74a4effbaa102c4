"""Statistics over runs, their learning curves, and the comparison of any runs."""
