"""The buffer: receives fragments, limits the side that is ahead, and makes rollouts or batches."""
