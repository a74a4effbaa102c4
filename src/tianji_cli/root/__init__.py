"""Rank 0: a session from its directory to its summary, who is there, how it ends, where every sample went.

It knows roles by what they report, and imports neither torch nor roles.
"""
