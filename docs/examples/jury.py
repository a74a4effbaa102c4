"""Example of roles of your own that are connected with one another: players and a judge, for jury.toml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from tianji_algos.core import Spaces
from tianji_algos.fields import FieldSpec
from tianji_algos.settings import Settings
from tianji_cli.config.schema import JobConfig
from tianji_cli.roles.episodes import EpisodePlayer
from tianji_cli.roles.user_role import RoleContext, UserRole
from tianji_transports.core import FULL


class Score:
    """A player's result in a round."""

    @classmethod
    def fields(cls, _spaces: Spaces, _config: JobConfig) -> Sequence[FieldSpec]:
        """Round, version of the policy, and mean return."""
        whole, real = np.dtype(np.int64), np.dtype(np.float64)
        return (FieldSpec("round", whole), FieldSpec("version", whole), FieldSpec("mean", real))


class Round:
    """The round that all players play now."""

    @classmethod
    def fields(cls, _spaces: Spaces, _config: JobConfig) -> Sequence[FieldSpec]:
        """Seed of its episodes, so that all policies are judged by the same ones."""
        return (FieldSpec("seed", np.dtype(np.int64)),)


class PlayerSettings(Settings):
    """Settings of a player."""

    episodes: int = Field(4, ge=1)


class Player(UserRole):
    """Plays some greedy episodes with the newest policy in each round, and sends the judge their mean."""

    settings_type = PlayerSettings

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self._agent = self.make_agent(self.settings.episodes)
        self._environment = self.make_environment(self.settings.episodes, evaluation=True)
        self._playing: EpisodePlayer | None = None
        self._round = 0
        self._version = -1

    def turn(self) -> bool:
        """Step every environment once, or send a result; returns False without a round or a policy."""
        if self._playing is None:
            return self._begin()
        if self._playing.finished is None:
            return self._playing.turn()
        return self._send(float(np.mean(self._playing.returns)))

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()

    def _begin(self) -> bool:
        announced = self.latest("round", newer_than=self._round)
        if announced is None:
            return False
        policy = self.policy(newer_than=self._version)
        if policy is not None:  # Else the last one is still the newest.
            self._version = policy.version
            self._agent.adopt(policy.parameters)
        if self._version < 0:
            return False
        self._round = announced.version
        seed = int(announced.fields["seed"]) + self.context.number
        self._playing = EpisodePlayer(self._agent, self._environment, self.settings.episodes, seed)
        return True

    def _send(self, mean: float) -> bool:
        score = self.loan("scores")
        if score is FULL:  # The judge is behind; the process sleeps until it has claimed one.
            return False
        score.fields["round"][...] = self._round
        score.fields["version"][...] = self._version
        score.fields["mean"][...] = mean
        self.push("scores", score)
        self._playing = None
        return True


class JudgeSettings(Settings):
    """Settings of the judge."""

    goal: float


class Judge(UserRole):
    """Begins a round when all players have played the last one; ends the run when their mean is the goal."""

    settings_type = JudgeSettings

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self._players = context.config.roles["player"].num
        self._scores: list[float] = []
        self._rounds = 0
        self._mean: float | None = None
        self._finished: str | None = None

    def turn(self) -> bool:
        """Take the scores that have come; returns whether there was one, or a round began."""
        worked = False
        while (score := self.probe("scores")) is not None:
            self._scores.append(float(score.fields["mean"]))
            worked = True
        if len(self._scores) == self._players:
            self._mean = float(np.mean(self._scores))
            self._scores.clear()
            if self._mean >= self.settings.goal:
                self._finished = f"the jury's mean is {self._mean:g}"
            else:
                worked = self._begin_round()
        return worked or (self._rounds == 0 and self._begin_round())

    @property
    def finished(self) -> str | None:
        """The reason once the goal is reached."""
        return self._finished

    def report(self) -> dict[str, Any]:
        """Rounds so far, and the mean return of the last one."""
        return super().report() | {"rounds": self._rounds, "mean": self._mean}

    def _begin_round(self) -> bool:
        self._rounds = self.publish("round", seed=self.context.seed + self._rounds)
        return True
