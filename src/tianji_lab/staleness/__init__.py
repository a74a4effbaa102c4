"""staleness."""
