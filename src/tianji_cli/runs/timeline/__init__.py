"""Timelines of a run's processes, brought to one clock: as a file and as a picture."""
