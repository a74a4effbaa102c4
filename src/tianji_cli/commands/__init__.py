"""Subcommands, one module each: takes the parsed options, calls the code that does the work, and prints."""
