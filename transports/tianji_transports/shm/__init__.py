"""The engine for one host, over shared memory."""
