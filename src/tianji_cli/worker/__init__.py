"""A worker process, from its job spec to its last report; ``build`` connects its roles."""
