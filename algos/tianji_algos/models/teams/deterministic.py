"""Actors of each agent's own observation, and critics of everything (Lowe et al., 2017, section 4.1)."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Executor, Model, Spaces
from tianji_algos.device import part_of_records
from tianji_algos.models.layers import flat_views
from tianji_algos.models.settings import TeamDeterministicSettings
from tianji_algos.models.teams.networks import (
    AgentRows,
    BatchedLayers,
    NumpyBatchedLayers,
    append_identity,
)
from tianji_algos.team import Records, Team

Floats = npt.NDArray[np.float32]

_ACTOR_GAIN: Final = 0.01
"""Gain of an actor's output layer: initial policies are nearly uniform, or in the middle of the bounds."""


class TeamDeterministic(Model):
    """A policy for each agent, and critics of the joint action.

    One call computes the networks of all agents. The actors' parameters come first in the flat array: acting
    needs no others.

    Attributes:
        actors: map observations to logits, or to numbers whose tanh is the action.
        critics: map the state and all actions to values.

    Raises:
        UnsupportedSpaceError: the environment has no team.
    """

    settings_type: ClassVar[type[TeamDeterministicSettings]] = TeamDeterministicSettings

    def __init__(self, spaces: Spaces, settings: TeamDeterministicSettings) -> None:
        super().__init__()
        self.settings = settings
        self.team = team = Team.of(spaces)
        assert spaces.observation.dtype is not None, "Team.of() has seen to it"
        self._dtype = spaces.observation.dtype
        self.has_team_critic = settings.rewards == "team"
        named = team.agents if settings.share_parameters else 0
        self.actors = BatchedLayers(
            1 if settings.share_parameters else team.agents,
            team.observation + named,
            settings.hidden,
            team.most_actions,
            settings.activation,
            _ACTOR_GAIN,
        )
        self.critics = BatchedLayers(
            1 if settings.share_parameters or self.has_team_critic else team.agents,
            team.state + team.agents * team.most_actions + (0 if self.has_team_critic else named),
            settings.critic_hidden,
            1,
            settings.activation,
            1.0,
        )

    @property
    def actor_parameter_count(self) -> int:
        """Number of values of the actors, which come first in the flat array."""
        return sum(parameter.numel() for parameter in self.actors.parameters())

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute the actors' outputs ``[N, M, A]`` of records as bytes ``[N, size]``."""
        seen = part_of_records(observation, self._dtype, "observation")
        return self.act(seen.transpose(0, 1)).transpose(0, 1)

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute the actors' outputs ``[M, B, A]`` for the agents' observations ``[M, B, O]``."""
        agents, batch, _ = observation.shape
        rows = append_identity(observation, 0) if self.settings.share_parameters else observation
        outputs: torch.Tensor = self.actors(rows.reshape(self.actors.networks, -1, self.actors.inputs))
        return outputs.reshape(agents, batch, -1)

    def value(self, state: torch.Tensor, actions: torch.Tensor, *, frozen: bool = False) -> torch.Tensor:
        """Compute the values of joint actions.

        Args:
            state: global state, ``[B, S]``.
            actions: joint actions as the critics see them, ``[B, M * A]``; or ``[M, B, M * A]`` where each
                agent's critic takes different ones.
            frozen: gradients reach the actions alone.

        Returns:
            A value for each agent, ``[M, B]``; ``[1, B]`` for a team's critic of actions ``[B, M * A]``.
        """
        batch, size = actions.shape[-2:]
        valued = actions.shape[0] if actions.ndim == 3 else (1 if self.has_team_critic else self.team.agents)
        rows = torch.cat((state.expand(valued, batch, -1), actions.expand(valued, batch, size)), dim=2)
        if self.settings.share_parameters and not self.has_team_critic:
            rows = append_identity(rows, 0)
        rows = rows.reshape(self.critics.networks, -1, self.critics.inputs)
        values: torch.Tensor = self.critics(rows, frozen=frozen)
        return values.reshape(valued, batch)

    def executor(self, batch_size: int) -> Executor:  # noqa: ARG002 - it takes as many as come
        """Build an executor with a copy of the actors alone, in numpy."""
        return _NumpyActors(self)


class _NumpyActors(Executor):
    """All actors' forward pass over a flat array of their own."""

    def __init__(self, model: TeamDeterministic) -> None:
        self._flat, arrays = flat_views(model.actors, "actors")
        self._rows = AgentRows(model.team, identity=model.settings.share_parameters)
        self._shares = model.actors.networks == 1
        self._layers = NumpyBatchedLayers(arrays, "actors", model.settings.activation)

    def adopt(self, parameters: Floats) -> None:
        """Copy the actors' part of ``parameters [parameter_count]`` in."""
        np.copyto(self._flat, parameters[: len(self._flat)])

    def __call__(self, observation: Records) -> tuple[Floats, ...]:
        """Return the actors' outputs ``[N, M, A]`` of records ``[N]``; they are reused by the next call."""
        rows = self._rows(observation)
        if self._shares:
            outputs = self._layers(rows.reshape(1, -1, rows.shape[2]))
            return (outputs.reshape(*rows.shape[:2], -1),)
        return (self._layers(rows.transpose(1, 0, 2)).transpose(1, 0, 2),)
