"""atari."""
