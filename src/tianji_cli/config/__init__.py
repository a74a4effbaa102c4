"""TOML to a validated, frozen config, before any process starts. Imports no torch."""
