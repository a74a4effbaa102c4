"""Output of a run, on screen and on disk: run directory, metrics, displays, plots, summary.

The root process owns it, so nothing here imports torch or gymnasium; slow imports (protobuf, matplotlib)
happen at their first use.
"""
