"""What flows and what is counted: fragments, rollouts, episodes, staleness, accounting, checkpoints."""
