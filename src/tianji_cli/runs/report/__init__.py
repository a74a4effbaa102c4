"""A page on runs, to be read without a network: what they were, what they came to, and why."""
