"""Searches for good values of a config's keys: Optuna draws them and judges, trainings are the trials.

Nothing here but ``study`` and what draws figures imports Optuna, which is of the extra ``sweep``.
"""
