"""QMIX: a team's values from those of its agents, learnt from whole episodes; with VDN and IQL."""
