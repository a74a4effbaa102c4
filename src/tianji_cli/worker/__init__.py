"""A worker process, from its job to its last report; ``build`` connects its roles."""
