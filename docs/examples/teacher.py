"""Example of a teacher: a role that looks for a second policy and publishes it, for teacher.toml.

It plays episodes with policies that are linear in an observation (Mania et al., 2018). Another role takes
something off rewards where the teacher would have acted otherwise, less and less (Schmitt et al., 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from tianji_algos.core import Spaces
from tianji_algos.fields import FieldSpec
from tianji_algos.settings import Settings
from tianji_cli.config.schema import JobConfig
from tianji_cli.roles.records import Fields
from tianji_cli.roles.user_role import RoleContext, UserRole

Array = np.ndarray[Any, Any]
POLICIES, GENERATIONS = 32, 20


class Linear:
    """The teacher's policy: it takes the action whose weights give most."""

    @classmethod
    def fields(cls, spaces: Spaces, _config: JobConfig) -> Sequence[FieldSpec]:
        """Weights of each action, for each number of an observation and for 1."""
        return [FieldSpec("weights", np.dtype("f8"), (int(spaces.action.n), spaces.observation.shape[0] + 1))]

    @staticmethod
    def actions(weights: Array, spaces: Spaces, seen: Array) -> Array:
        """Actions ``[...]`` of policies ``[..., actions, F + 1]`` for observations ``[..., F]``."""
        scaled = seen / np.minimum(spaces.observation.high, 1.0)
        inputs = np.concatenate([scaled, np.ones((*seen.shape[:-1], 1))], axis=-1)
        return np.einsum("...af,...f->...a", weights, inputs).argmax(axis=-1)


class Teacher(UserRole):
    """Plays an episode with each policy of a generation; the best one is the parent of the next."""

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self._environment = self.make_environment(POLICIES)
        self._seen = self._environment.new_observations()
        self._random = np.random.default_rng(context.seed)
        self._generation = 0
        self._begin(np.zeros(Linear.fields(context.spaces, context.config)[0].shape))

    def turn(self) -> bool:
        """Let each policy take a step; returns False when all generations are over."""
        if self._generation == GENERATIONS:
            return False
        reward, flags = np.zeros(POLICIES, np.float32), np.zeros((2, POLICIES), np.bool_)
        actions = Linear.actions(self._policies, self.context.spaces, self._seen)
        self._environment.step(actions, self._seen, reward, *flags)
        self._returns += reward * self._plays
        self._plays &= ~flags.any(axis=0)
        if not self._plays.any():
            if (best := int(self._returns.argmax())) > 0:  # Better than its parent in the same generation.
                self.publish("teacher", weights=self._policies[best])
            self._generation += 1
            self._begin(self._policies[best])
        return True

    def report(self) -> dict[str, Any]:
        """Generations so far; their steps are no env steps of the run."""
        return super().report() | {"generation": self._generation}

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()

    def _begin(self, parent: Array) -> None:
        self._policies = np.stack([parent, *parent + self._random.normal(size=(POLICIES - 1, *parent.shape))])
        self._returns, self._plays = np.zeros(POLICIES), np.ones(POLICIES, np.bool_)
        self._environment.reset(int(self._random.integers(2**31)), self._seen)


class KickstartSettings(Settings):
    """Settings of ``[roles.kickstart]``: what is taken off at first, and steps until nothing is."""

    weight: float = Field(1.0, ge=0)
    steps: int = Field(300_000, ge=1)


class Kickstart(UserRole):
    """Takes something off rewards where the teacher would have acted otherwise, and sends fragments on."""

    settings_type = KickstartSettings
    _version, _weights, _taught, _agreement, _held = 0, None, 0, None, False

    def turn(self) -> bool:
        """Send one fragment on; returns False if there is none, or no room for it."""
        if not self._held and self.probe("fragments") is None:
            return False
        self._held = not self.forward("fragments", self._teach)
        return not self._held

    def stop(self) -> None:
        """Send the rest on: the actors have stopped."""
        self.forward_rest("fragments", self._teach)

    def report(self) -> dict[str, Any]:
        """Share of the last fragment's steps in which the teacher would have done the same."""
        return super().report() | {"agreement": self._agreement}

    def _teach(self, fields: Fields) -> None:
        if (newest := self.latest("teacher", newer_than=self._version)) is not None:
            self._version, self._weights = newest.version, newest.fields["weights"]
        if self._weights is not None:
            advice = Linear.actions(self._weights, self.context.spaces, fields["observation"][:-1])
            differs = (fields["action"] != advice) & fields["mask"]
            weight = self.settings.weight * max(0, 1 - self._taught / self.settings.steps)
            fields["reward"] -= np.float32(weight) * differs
            self._taught += differs.size
            self._agreement = 1 - float(differs.mean())
