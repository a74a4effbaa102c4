"""Networks of teams."""
