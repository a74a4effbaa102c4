"""The actor steps environments and pushes what it saw."""
