"""The tianji command."""
