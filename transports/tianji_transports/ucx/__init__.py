"""The engine for fast fabrics."""
