"""Start and supervision of processes: here, on hosts that joined, under MPI, under Slurm."""
