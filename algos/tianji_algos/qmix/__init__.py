"""QMIX: a team's value mixed from its agents' values, learnt from whole episodes; with VDN and IQL."""
