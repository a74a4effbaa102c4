"""Real things to run on: a Slurm with two nodes, and two hosts with a wire between them. As root."""
