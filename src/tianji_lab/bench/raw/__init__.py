"""Raw loops: the plainest fast loop over each engine's library, to compare the engine's throughput with."""
