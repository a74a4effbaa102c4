"""Many trainings: as many side by side as the cores carry, and what they say together."""
