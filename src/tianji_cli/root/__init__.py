"""Rank 0: runs a session, tracks its processes, ends the job and accounts for every sample.

The root knows roles by their reports, and imports neither torch nor roles.
"""
