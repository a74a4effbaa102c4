"""Example of a role that makes fragments beside the actors: a policy by hand, for demonstrations.toml.

Half of each batch are its steps (Ball et al., 2023, "RLPD"), so Q-learning need not find the top by chance.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from tianji_algos.settings import Settings
from tianji_cli.roles.records import Fields
from tianji_cli.roles.user_role import RoleContext, UserRole
from tianji_transports.core import FULL


class DemonstrationsSettings(Settings):
    """Settings of the config's ``[roles.demonstrations]`` beside those of every role."""

    fragments: int = Field(50, ge=1)
    """Fragments that it makes in all."""


class Demonstrations(UserRole):
    """Drives the car of MountainCar-v0 the way that it rolls, and sends what comes of it."""

    settings_type = DemonstrationsSettings

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        num_envs = context.layout.num_envs
        self._environment = self.make_environment(num_envs)
        self._shown = self._environment.new_observations()
        self._environment.reset(context.seed, self._shown)
        self._ended = np.zeros(num_envs, np.bool_)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int32)
        self._made = 0

    def turn(self) -> bool:
        """Make and send a fragment; returns False when all are made, or there is no room for another."""
        if self._made == self.settings.fragments:
            return False
        fragment = self.loan("fragments")
        if fragment is FULL:
            return False
        fields = fragment.fields
        fields["observation"][0] = self._shown
        fields["episode_return"].fill(np.nan)  # No episode ends in such a row.
        fields["episode_steps"].fill(0)
        for step in range(self.context.layout.steps):
            self._step(fields, step)
        self.push("fragments", fragment)
        self._made += 1
        return True

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()

    def _step(self, fields: Fields, step: int) -> None:
        """Step all environments once; the step after an episode's end only begins the next one."""
        fields["mask"][step] = ~self._ended
        action = fields["action"][step] = np.where(self._shown[:, 1] < 0, 0, 2)
        flags = fields["terminated"][step], fields["truncated"][step]
        self._environment.step(action, self._shown, fields["reward"][step], *flags)
        fields["observation"][step + 1] = self._shown
        self._returns += fields["reward"][step]
        self._lengths += fields["mask"][step]
        ended = self._ended = np.logical_or(*flags)
        fields["episode_return"][step, ended] = self._returns[ended]
        fields["episode_steps"][step, ended] = self._lengths[ended]
        self._returns[ended] = self._lengths[ended] = 0
