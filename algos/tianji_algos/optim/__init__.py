"""Optimizers and what update rules keep."""
