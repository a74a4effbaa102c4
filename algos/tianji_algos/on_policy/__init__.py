"""on_policy."""
