"""Action values of a team's recurrent agents, and mixers that turn them into the team's value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Executor, Model, Spaces
from tianji_algos.device import part_of_records
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.layers import flat_views
from tianji_algos.models.settings import TeamQSettings
from tianji_algos.models.teams.networks import (
    AgentRows,
    BatchedGRU,
    BatchedLayers,
    NumpyBatchedGRU,
    NumpyBatchedLayers,
    append_identity,
)
from tianji_algos.team import Records, Team

Floats = npt.NDArray[np.float32]


Mixer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Mixes the values of the agents' actions, ``[R, M]``, by the global state, ``[R, S]``.

The result is one learnt value for the team, ``[R, 1]``, or one for each agent, ``[R, M]``. None falls as an
agent's value rises, so the agents' best actions are the team's best.
"""


def separate(values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 - not needed
    """Return each agent's own value, ``[R, M]``: agents learn independently (IQL; Tan, 1993)."""
    return values


def summed(values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 - not needed
    """Return the sum, ``[R, 1]``: a value decomposition network (Sunehag et al., 2018, equation 2)."""
    return values.sum(dim=1, keepdim=True)


class MonotonicMixer(nn.Module):
    """QMIX's mixing network (Rashid et al., 2018, Figure 2).

    Its weights are absolute values of hypernetworks' outputs for the state, so that the team's value rises
    with each agent's (equation 5). Biases may be negative; the last comes from a network of two layers.
    Unlike the paper's, the hypernetworks of weights have a hidden layer, too, and all get the state scaled to
    mean 0 and standard deviation 1, with the logarithms of its own mean and deviation: with coordinates on a
    map in the state, values would otherwise begin far above all returns.
    """

    def __init__(self, agents: int, state: int, width: int, hypernet_width: int) -> None:
        super().__init__()
        self._agents, self._width = agents, width
        self._widths = [hypernet_width, hypernet_width, width]
        # The first layers of all hypernetworks, of both weights and the last bias, and the first bias.
        self.first = nn.Linear(state + 2, sum(self._widths) + width)
        self.hidden_weight = nn.Linear(hypernet_width, agents * width)
        self.output_weight = nn.Linear(hypernet_width, width)
        self.output_bias = nn.Linear(width, 1)

    def forward(self, values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the team's value, ``[R, 1]``."""
        features, hidden_bias = torch.split(
            self.first(_tamed(state)), [sum(self._widths), self._width], dim=1
        )
        of_hidden, of_output, of_bias = torch.split(torch.relu(features), self._widths, dim=1)
        hidden_weight = self.hidden_weight(of_hidden).abs().view(-1, self._agents, self._width)
        hidden = nn.functional.elu((values[:, :, None] * hidden_weight).sum(dim=1) + hidden_bias)
        mixed: torch.Tensor = (hidden * self.output_weight(of_output).abs()).sum(dim=1, keepdim=True)
        mixed += self.output_bias(of_bias)
        return mixed


def _tamed(state: torch.Tensor) -> torch.Tensor:
    """Bring states ``[R, S]`` to mean 0 and standard deviation 1, and append their mean and deviation.

    Returns:
        ``[R, S + 2]``: the state so normalised, the logarithm of 1 + the size of its mean with the mean's
        sign, and the logarithm of 1 + its standard deviation.
    """
    deviation, mean = torch.std_mean(state, dim=1, correction=0, keepdim=True)
    normal = nn.functional.layer_norm(state, state.shape[1:])
    return torch.cat((normal, torch.copysign(mean.abs().log1p(), mean), deviation.log1p()), dim=1)


def build_mixer(team: Team, settings: TeamQSettings) -> Mixer:
    """Build the mixer that settings ask for."""
    if settings.mixer == "qmix":
        return MonotonicMixer(team.agents, team.state, settings.mixer_width, settings.hypernet_width)
    return summed if settings.mixer == "vdn" else separate


NO_ACTION: Final = -1
"""An agent's last action before its first step."""


class TeamQ(Model):
    """A layer, a GRU and a layer for each agent (DRQN; Hausknecht & Stone, 2015), and a mixer.

    Attributes:
        networks: G, number of networks: one, or one for each agent.

    Raises:
        UnsupportedSpaceError: the environment has no team, or actions are continuous.
    """

    settings_type: ClassVar[type[TeamQSettings]] = TeamQSettings

    def __init__(self, spaces: Spaces, settings: TeamQSettings) -> None:
        super().__init__()
        self.settings = settings
        self.team = team = team_that_chooses(spaces)
        assert spaces.observation.dtype is not None, "Team.of() has seen to it"
        self._dtype = spaces.observation.dtype
        self.networks = 1 if settings.share_parameters else team.agents
        width = settings.width
        inputs = self.rows().width
        self.encoder = BatchedLayers(self.networks, inputs, (), width, "relu", math.sqrt(2.0))
        self.core = BatchedGRU(self.networks, width, width)
        self.head = BatchedLayers(self.networks, width, (), team.most_actions, "relu", 1.0)
        self.mixer = build_mixer(team, settings)

    def rows(self) -> AgentRows:
        """Build the input rows of the agents' networks."""
        settings = self.settings
        named = settings.agent_id and settings.share_parameters
        return AgentRows(self.team, last_action=settings.last_action, identity=named)

    def forward(self, inputs: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Compute the values of all actions along sequences that begin with a state of zero.

        Args:
            inputs: ``[R, M, I]`` as ``rows`` builds them: first of all sequences at step 0, then at
                step 1, and so on.
            sizes: number of sequences that have each step; those that end are the last.

        Returns:
            ``Q [R, M, A]``, also of actions that are not available.
        """
        rows, agents, width = inputs.shape
        if self.networks == 1:
            inputs, sizes = inputs.reshape(1, rows * agents, width), [agents * size for size in sizes]
        else:
            inputs = inputs.transpose(0, 1)
        q: torch.Tensor = self.head(self.core(torch.relu(self.encoder(inputs)), sizes))
        return q.view(rows, agents, -1) if self.networks == 1 else q.transpose(0, 1)

    def step(
        self, records: torch.Tensor, last_action: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute one step, as ``TeamQExecutor`` does.

        Args:
            records: as bytes ``[N, size]``.
            last_action: ``[N, M]``; ``NO_ACTION`` where there was none.
            state: each agent's state, ``[N, M, width]``; zeros where an episode begins.

        Returns:
            ``Q [N, M, A]``, also of actions that are not available, and the state after the step.
        """
        inputs = part_of_records(records, self._dtype, "observation")
        if self.settings.last_action:
            done = last_action[:, :, None] == torch.arange(self.team.most_actions, device=inputs.device)
            inputs = torch.cat((inputs, done.float()), dim=2)
        if self.settings.agent_id and self.settings.share_parameters:
            inputs = append_identity(inputs, 1)
        features = torch.relu(self.encoder(self._by_network(inputs)))
        after = self.core(features, [features.shape[1]], self._by_network(state))
        q = self.head(after)
        if self.networks > 1:
            return q.transpose(0, 1), after.transpose(0, 1)
        agents = self.team.agents
        return q.reshape(-1, agents, q.shape[2]), after.reshape(-1, agents, after.shape[2])

    def _by_network(self, rows: torch.Tensor) -> torch.Tensor:
        """View ``[N, M, ...]`` as ``[G, N * M / G, ...]``."""
        return rows.reshape(1, -1, rows.shape[2]) if self.networks == 1 else rows.transpose(0, 1)

    def executor(self, batch_size: int) -> TeamQExecutor:
        """Build an executor with a copy of the parameters, in numpy."""
        return TeamQExecutor(self, batch_size)


class TeamQExecutor(Executor):
    """Runs agents' networks in numpy, over views of one flat array, and keeps their states."""

    def __init__(self, model: TeamQ, num_envs: int) -> None:
        self._flat, arrays = flat_views(model)
        self._networks, self._shape = model.networks, (num_envs, model.team.agents)
        self._rows = model.rows()
        self._encoder = NumpyBatchedLayers(arrays, "encoder", "relu")
        self._core = NumpyBatchedGRU(arrays, "core", num_envs * model.team.agents // model.networks)
        self._head = NumpyBatchedLayers(arrays, "head", "relu")
        self._last_action = np.full(self._shape, NO_ACTION, np.int64)

    def adopt(self, parameters: Floats) -> None:
        """Copy new parameters ``[parameter_count]`` in; states stay."""
        np.copyto(self._flat, parameters)

    def __call__(self, observation: Records) -> tuple[Floats, ...]:
        """Return ``Q [N, M, A]`` of records ``[N]``, and move on by one step; reused by the next call."""
        features = self._encoder(self._by_network(self._rows(observation, self._last_action)))
        np.maximum(features, np.float32(0.0), out=features)
        q = self._head(self._core(features))
        return (self._by_environment(q),)

    def preview(self, observation: Records) -> tuple[Floats, ...]:
        """Return ``Q [N, M, A]`` of records ``[N]``, without moving on."""
        state = self._core.state.copy()
        q = self(observation)
        self._core.state[...] = state
        return q

    def note(self, action: npt.NDArray[Any]) -> None:
        """Remember the actions ``[N, M]`` that were taken after the last call."""
        self._last_action[...] = action

    def forget(self, where: npt.NDArray[np.bool_]) -> None:
        """Clear states and last actions of the environments ``where [N]``."""
        self._last_action[where] = NO_ACTION
        self._by_environment(self._core.state)[where] = 0.0

    def _by_network(self, rows: Floats) -> Floats:
        """View ``[N, M, ...]`` as ``[G, N * M / G, ...]``."""
        return rows.reshape(1, -1, rows.shape[2]) if self._networks == 1 else rows.transpose(1, 0, 2)

    def _by_environment(self, rows: Floats) -> Floats:
        """View ``[G, N * M / G, ...]`` as ``[N, M, ...]``."""
        return rows.reshape(*self._shape, -1) if self._networks == 1 else rows.transpose(1, 0, 2)


def team_that_chooses(spaces: Spaces) -> Team:
    """Read the sizes of a team whose agents have single actions.

    Raises:
        UnsupportedSpaceError: the environment has no team, or actions are continuous.
    """
    team = Team.of(spaces)
    if not team.discrete:
        raise UnsupportedSpaceError(
            f"QMIX compares the values of single actions, so {spaces.action} is nothing that its agents can "
            "choose from; discrete actions, or an agent for this space such as 'maddpg', would be right"
        )
    return team
