"""Registers MinAtar's games with gymnasium, which its package leaves to a hook that gymnasium no longer has.

As an id: ``minatar_games:MinAtar/Breakout-v1``.
"""

from minatar.gym import register_envs

register_envs()
