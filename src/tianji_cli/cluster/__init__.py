"""Processes: the plan of a job, the control channel between them, and what starts and ends them."""
