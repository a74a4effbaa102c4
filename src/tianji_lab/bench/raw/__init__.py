"""The plainest fast loop over the library of each engine: what an engine's throughput is compared with."""
