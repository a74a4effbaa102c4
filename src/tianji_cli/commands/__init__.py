"""One module a subcommand: each takes what was parsed, calls what does the work, and prints."""
