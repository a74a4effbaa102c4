"""The roles of a job: each loops by itself, takes turns in its process, and never waits for another."""
