"""The engine for several hosts, over TCP."""
