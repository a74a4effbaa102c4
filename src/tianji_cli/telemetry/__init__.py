"""What a run shows and leaves behind: run directory, metrics, displays, plots, summary.

The root process owns it, so nothing here imports torch or gymnasium; what is slow to import
(protobuf, matplotlib) is imported when it is first needed.
"""
