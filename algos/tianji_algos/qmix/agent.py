"""QMIX in an environment: each agent takes its best available action, or a random one now and then."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Agent, Fields, Spaces, require_model
from tianji_algos.fields import FieldSpec
from tianji_algos.models.teams.q_network import TeamQ, team_that_chooses
from tianji_algos.qmix.settings import QMIXAgentSettings
from tianji_algos.settings import falling
from tianji_algos.team import UNAVAILABLE, Records

Actions = npt.NDArray[np.int64]


class QMIXAgent(Agent):
    """Acts epsilon-greedily for all agents of a team; records what each does.

    Args:
        spaces: of one environment.
        model: the networks to act with.
        settings: of the exploration.
        num_envs: N, how many environments ``act`` serves at once.
        seed: of the exploration.

    Raises:
        UnsupportedSpaceError: the environment has no team, or actions are continuous.
        UnsuitableModelError: the model is no ``TeamQ``.
    """

    settings_type: ClassVar[type[QMIXAgentSettings]] = QMIXAgentSettings
    default_model: ClassVar[str] = "team_q"
    default_embryo: ClassVar[str] = "qmix"
    plays_in_team: ClassVar[bool] = True

    def __init__(
        self, spaces: Spaces, model: TeamQ, settings: QMIXAgentSettings, num_envs: int, seed: int
    ) -> None:
        require_model(model, TeamQ, "QMIX", "team_q")
        self.settings = settings
        team = team_that_chooses(spaces)
        self._executor = model.executor(num_envs)
        self._rng = np.random.default_rng(seed)
        self._draws = np.empty((2, num_envs, team.agents), np.float32)
        self._masked = np.empty((num_envs, team.agents, team.most_actions), np.float32)
        self._number = np.empty(self._masked.shape, np.int32)
        self._beyond = np.empty(self._masked.shape, np.bool_)
        self._action = np.empty((num_envs, team.agents), np.int64)
        self.schedule(0)

    @classmethod
    def fields(cls, spaces: Spaces, settings: QMIXAgentSettings) -> tuple[FieldSpec, ...]:  # noqa: ARG003 - always the same
        """Record ``action [M]``, counted from 0."""
        return (team_that_chooses(spaces).action_field(),)

    def act(self, observation: Records, into: Fields) -> Actions:
        """Choose the best available actions, each with probability epsilon any; write ``action [N, M]``."""
        actions = self._act(observation, self._epsilon)
        into["action"][...] = actions
        return actions

    def act_greedily(self, observation: Records) -> Actions:
        """Choose the best available actions, or each with probability ``eval_epsilon`` any."""
        return self._act(observation, self.settings.eval_epsilon)

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Forget what was seen and done before."""
        self._executor.forget(where)

    def schedule(self, env_steps: int) -> None:
        """Set epsilon."""
        settings = self.settings
        self._epsilon = falling(
            settings.epsilon_start, settings.epsilon_end, settings.epsilon_steps, env_steps
        )

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)

    def reseed(self, seed: int) -> None:
        """Begin the exploration's random stream anew."""
        self._rng = np.random.default_rng(seed)

    def _act(self, observation: Records, epsilon: float) -> Actions:
        available: npt.NDArray[np.bool_] = observation["available"]
        (q,) = self._executor(observation)
        self._masked.fill(UNAVAILABLE)
        np.copyto(self._masked, q, where=available)
        self._masked.argmax(axis=2, out=self._action)
        if epsilon > 0.0:
            self._explore(available, epsilon)
        self._executor.note(self._action)
        return self._action

    def _explore(self, available: npt.NDArray[np.bool_], epsilon: float) -> None:
        """Replace actions by random available ones, each with probability epsilon."""
        self._rng.random(dtype=np.float32, out=self._draws)
        luck, choice = self._draws
        np.cumsum(available, axis=2, dtype=np.int32, out=self._number)  # of each available action, from 1
        choice *= self._number[..., -1]
        np.greater(self._number, choice[..., None], out=self._beyond)
        np.copyto(self._action, self._beyond.argmax(axis=2), where=luck < epsilon)
