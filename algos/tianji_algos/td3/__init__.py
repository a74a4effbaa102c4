"""TD3 (Fujimoto et al., 2018), and DDPG (Lillicrap et al., 2016) by its settings, as Agent and Embryo."""
