"""How fast a job can go: the paper's Equations 1, 3 and 4 as arithmetic. Knows no processes and no config."""
