"""The learner: its data source, its updates, and its published policies."""
