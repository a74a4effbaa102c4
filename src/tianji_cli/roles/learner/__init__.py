"""One learner: where its batches come from, its updates, and what it publishes."""
