"""The actor: steps environments and pushes fragments of experience."""
