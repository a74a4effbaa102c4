"""Deep Q-learning (Mnih et al., 2015) and its usual refinements as Agent and Embryo."""
