"""Measurements of transports, profiles, scaling and staleness, and a model of a job's speed.

Only the commands `bench` and `profile` of ``tianji_cli`` use this package, and import it when they run.
"""
