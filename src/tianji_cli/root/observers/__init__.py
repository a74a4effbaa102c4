"""Observers of a running job, a file each: they hear every message, and may end the job."""
