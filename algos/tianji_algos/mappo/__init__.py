"""Multi-agent proximal policy optimisation (Yu et al., 2022) as Agent and Embryo."""
