"""Files of runs: run directory, checkpoints and their places, links, locks, counters of actors."""
