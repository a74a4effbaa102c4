"""Several runs: side by side on the cores, seeds, comparisons, sweeps. The lab uses it, too."""
