"""Soft actor-critic (Haarnoja et al., 2018) as Agent and Embryo."""
