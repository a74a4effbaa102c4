"""All that stays on disk: run directory, checkpoints and their places, links, locks, counters of actors."""
