"""The engine for MPI jobs."""
