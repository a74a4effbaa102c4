"""A page on runs, to be read without a network: configs, results, and causes."""
