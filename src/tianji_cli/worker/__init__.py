"""One worker process, from what it is told to the last report; ``build`` connects its roles."""
