"""What networks see of each agent of a team: its observation and, as asked, who it is, and the state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.team import Records, Team

Floats = npt.NDArray[np.float32]


class AgentRows:
    """Puts it together in numpy.

    Args:
        team: sizes.
        identity: say who the agent is.
        state: give the state, too.
    """

    def __init__(self, team: Team, *, identity: bool, state: bool) -> None:
        self._team = team
        self._is_observation = not identity and not state
        self._state = team.observation + (team.agents if identity else 0) if state else None
        self._identity = np.eye(team.agents, dtype=np.float32) if identity else None
        self._width = team.observation + identity * team.agents + state * team.state
        self._rows = np.empty((0, team.agents, self._width), np.float32)

    def __call__(self, seen: Records) -> Floats:
        """Give ``[N, M, inputs]`` of records ``[N]``; reused by the next call."""
        own: Floats = seen["observation"]
        if self._is_observation:
            return own
        team = self._team
        if len(self._rows) < len(seen):
            self._rows = np.empty((len(seen), team.agents, self._width), np.float32)
            if self._identity is not None:
                self._rows[:, :, team.observation : team.observation + team.agents] = self._identity
        rows = self._rows[: len(seen)]
        rows[:, :, : team.observation] = own
        if self._state is not None:
            rows[:, :, self._state :] = team.state_of(seen)[:, None]
        return rows


def append_identity(rows: torch.Tensor, agents_axis: int) -> torch.Tensor:
    """Append to rows ``[M, B, ...]`` or ``[B, M, ...]`` which agent they are of, one-hot.

    Args:
        rows: of all agents.
        agents_axis: 0 or 1, which axis the agents are.
    """
    agents = rows.shape[agents_axis]
    identity = torch.eye(agents, dtype=rows.dtype, device=rows.device).unsqueeze(1 - agents_axis)
    return torch.cat((rows, identity.expand(*rows.shape[:2], agents)), dim=2)
