"""How processes start and are watched: here, on hosts that joined, under MPI, under Slurm."""
