"""Searches for good values of a config's keys: Optuna draws and judges them, trainings are the trials.

Only ``study`` and the modules that draw figures import Optuna, which is of the extra ``sweep``.
"""
