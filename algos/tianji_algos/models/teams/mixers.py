"""How the values of agents' actions become those of the team's."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from tianji_algos.qmix.settings import TeamQSettings
from tianji_algos.team import Team


class Mixer(nn.Module, ABC):
    """Gives what is learnt from the agents' values: one value for the team, or one for each agent.

    The best actions of all agents are the best of the team: no value falls as an agent's rises.
    """

    @abstractmethod
    def forward(self, values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Mix.

        Args:
            values: of what each agent does, ``[R, M]``.
            state: of the whole, ``[R, S]``.

        Returns:
            ``[R, V]``, V = 1 or M.
        """


class NoMixer(Mixer):
    """Agents learn independently (IQL; Tan, 1993)."""

    def forward(self, values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - not needed
        """Give each agent's own value, ``[R, M]``."""
        return values


class SumMixer(Mixer):
    """Value decomposition network (Sunehag et al., 2018, equation 2)."""

    def forward(self, values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - not needed
        """Give the sum, ``[R, 1]``."""
        return values.sum(dim=1, keepdim=True)


class MonotonicMixer(Mixer):
    """QMIX's mixing network (Rashid et al., 2018, Figure 2).

    Its weights are absolute values of what hypernetworks make of the state, so that the team's value rises
    with each agent's (equation 5). Biases may be negative; the last comes from a network of two layers.
    Unlike the paper's, the hypernetworks of weights have a hidden layer, too, and all get a state of mean 0
    and standard deviation 1, with the logarithms of what these were: where a state has coordinates on a map,
    values would begin far above all returns.

    Args:
        agents: M.
        state: S, width of the state.
        width: of the mixing network's hidden layer.
        hypernet_width: of the hypernetworks' hidden layers.
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
        """Give the team's value, ``[R, 1]``."""
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
    """Bring states ``[R, S]`` to mean 0 and standard deviation 1, and append what that takes from them.

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
    return SumMixer() if settings.mixer == "vdn" else NoMixer()
