"""Environments of several agents that act at once."""
