"""Proximal policy optimisation (Schulman et al., 2017) as Agent and Embryo."""
