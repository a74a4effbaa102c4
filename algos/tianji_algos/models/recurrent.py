"""Recurrent networks: their contract, and an LSTM or GRU after an encoder."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Executor, Fields, Model, Spaces
from tianji_algos.device import Exchange, device_of
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_critic import ActorCritic, Backprop, TrainingPass
from tianji_algos.models.cnn import ImageEncoder, JoinedEncoder, PolicyValueHead, RowEncoder, image_encoder
from tianji_algos.models.layers import build_layers
from tianji_algos.models.q_network import count_actions
from tianji_algos.models.settings import (
    RecurrentActorCriticSettings,
    RecurrentQSettings,
    RecurrentSettings,
)
from tianji_algos.models.torch_backend import TorchBackprop, TorchPass, acting_copy
from tianji_algos.rollout_observations import Sequences

Floats = npt.NDArray[np.float32]


class RecurrentModel(Model):
    """A recurrent network: its state goes from step to step, and into each fragment.

    A user's subclass needs ``unroll``, ``state_size`` and ``recorded``, which declares the field
    ``state``; acting and training then go through torch.

    Attributes:
        state_size: numbers in the state of one environment.
    """

    state_size: int

    @abstractmethod
    def unroll(
        self, observation: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Compute the outputs of successive steps.

        Args:
            observation: ``[T, B, ...]`` as it comes.
            first: ``[T, B]`` bool: steps that begin an episode; the state is zero before these. It is on the
                host, so that reading it waits for no device.
            state: ``[B, state_size]`` before the first step; zero where an episode begins.

        Returns:
            Each output ``[T * B, ...]``, time first, and the state after the last step.
        """

    def executor(self, batch_size: int) -> Executor:
        """Build an executor that runs a copy of this network in torch, and keeps its state."""
        return RecurrentExecutor(self, batch_size)


class RecurrentQNetwork(RecurrentModel):
    """A recurrent network of action values: ``unroll`` gives ``Q [T * B, A]``."""


class RecurrentActorCritic(RecurrentModel, ActorCritic):
    """A recurrent actor-critic: ``unroll`` gives policy ``[T * B, outputs]`` and value ``[T * B]``."""

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute policy and value of observations ``[N, ...]`` from a state of zero."""
        state = torch.zeros(len(observation), self.state_size, device=observation.device)
        first = torch.zeros(1, len(observation), dtype=torch.bool)
        policy, value, _ = self.unroll(observation[None], first, state)
        return policy, value

    def backprop(self) -> Backprop:
        """Build the backward pass through time, on ``Sequences``, with torch's autograd."""
        return TorchBackprop(self, RecurrentPass(self))

    def training_pass(self) -> TrainingPass:
        """Build the forward pass in torch, on ``Sequences``."""
        return RecurrentPass(self)


class RecurrentExecutor(Executor):
    """Acts with a copy of a recurrent network, and keeps its state."""

    def __init__(self, model: RecurrentModel, num_envs: int) -> None:
        self._model = acting_copy(model)
        device = device_of(model)
        self._exchange = Exchange(device)
        self._state = torch.zeros(num_envs, model.state_size, device=device)
        self._nowhere = torch.zeros(1, num_envs, dtype=torch.bool)

    def adopt(self, parameters: Floats) -> None:
        """Copy new parameters in; the state stays."""
        self._model.read_parameters(parameters)

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Return each output for ``observation [N, ...]``, and move on by one step."""
        return self._run(observation, moves_on=True)

    def preview(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Return each output for ``observation [N, ...]``, without moving on."""
        return self._run(observation, moves_on=False)

    def record(self, fields: Fields) -> None:
        """Write the field ``state``, ``[1, N, state_size]``."""
        fields["state"][0] = self._state.cpu().numpy()

    def resume(self, fields: Fields) -> None:
        """Take the field ``state``, ``[1, N, state_size]``; N may be another than before."""
        self._state = self._exchange.to_device(fields["state"][0])
        self._nowhere = torch.zeros(1, len(self._state), dtype=torch.bool)

    def forget(self, where: npt.NDArray[np.bool_]) -> None:
        """Set the state of the environments ``where [N]`` to zero."""
        self._state.masked_fill_(self._exchange.to_device(where)[:, None], 0.0)

    def _run(self, observation: npt.NDArray[Any], moves_on: bool) -> tuple[Floats, ...]:
        with torch.inference_mode():
            seen = self._exchange.to_device(observation)[None]
            *outputs, state = self._model.unroll(seen, self._nowhere, self._state)
            if moves_on:
                self._state.copy_(state)
            return self._exchange.to_host(outputs)


class RecurrentPass(TorchPass):
    """Runs a network through time differentiably, on the device where it is now."""

    _model: RecurrentActorCritic

    def __call__(self, observation: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
        """Return policy and value of sequences, time first."""
        sequences = observation
        to_device = self._exchange.to_device
        first = torch.tensor(sequences.first)  # a copy: torch knows no read-only memory
        policy, value, _ = self._model.unroll(
            to_device(sequences.observation), first, to_device(sequences.state)
        )
        return policy, value


class RecurrentCore(nn.Module):
    """One layer of LSTM (Hochreiter & Schmidhuber, 1997) or GRU (Cho et al., 2014) cells, in float32.

    Attributes:
        state_size: numbers in the state: an LSTM's output and cell side by side, or a GRU's output.
    """

    def __init__(self, inputs: int, width: int, kind: Literal["lstm", "gru"]) -> None:
        super().__init__()
        # The network's flat tensor holds these parameters, in another layout than cuDNN's.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        self.cells = nn.LSTM(inputs, width) if kind == "lstm" else nn.GRU(inputs, width)
        self.state_size = state_size(width, kind)
        for name, parameter in self.cells.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                continue
            for gate in parameter.detach().view(-1, width, parameter.shape[1]):
                nn.init.orthogonal_(gate)
        if kind == "lstm":  # The forget gate begins open (Jozefowicz et al., 2015).
            nn.init.ones_(self.cells.get_parameter("bias_ih_l0").detach()[width : 2 * width])

    def forward(
        self, features: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the outputs of successive steps.

        Each call of the cells takes all columns from one step at which an episode begins, in any column, to
        the next, in a third of the time of a call for each step. More columns have more such steps; if every
        step is one, the time is that of a call for each step.

        Args:
            features: ``[T, B, inputs]``.
            first: ``[T, B]`` bool, on the host; the state is zero before these.
            state: ``[B, state_size]`` before the first step.

        Returns:
            ``[T, B, width]``, and the state after the last step.
        """
        begins = first.any(dim=1).tolist()
        bounds = [0, *(t for t in range(1, len(begins)) if begins[t]), len(begins)]
        outputs: list[torch.Tensor] = []
        for start, stop in pairwise(bounds):
            if begins[start]:
                state = state.masked_fill(first[start, :, None].to(state.device), 0.0)
            output, state = self._without_beginnings(features[start:stop], state)
            outputs.append(output)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), state

    def _without_beginnings(
        self, features: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(self.cells, nn.GRU):
            output, after = self.cells(features, state[None].contiguous())
            return output, after[0]
        hidden, cell = (half.contiguous() for half in state.chunk(2, dim=1))
        if len(features) == 1:  # a single cell is faster: it prepares no weights for more steps
            parameters = self.cells.parameters()
            hidden, cell = torch.lstm_cell(features[0], (hidden, cell), *parameters)
            return hidden[None], torch.cat((hidden, cell), dim=1)
        output, (hiddens, cells) = self.cells(features, (hidden[None], cell[None]))
        return output, torch.cat((hiddens[0], cells[0]), dim=1)


def state_size(width: int, kind: Literal["lstm", "gru"]) -> int:
    """Return the size of a core's state of one environment."""
    return 2 * width if kind == "lstm" else width


class GatedModel(RecurrentModel):
    """An LSTM or GRU after an encoder of the observation; subclasses add heads.

    Raises:
        UnsupportedSpaceError: an observation space that the encoder cannot serve.
    """

    settings_type: ClassVar[type[RecurrentSettings]]

    def __init__(self, spaces: Spaces, settings: RecurrentSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder: ImageEncoder | JoinedEncoder | RowEncoder
        if settings.encoder == "mlp":
            self.encoder = RowEncoder(spaces, settings)
        else:
            self.encoder = image_encoder(spaces, settings, settings.widths)
        self.core = RecurrentCore(self.encoder.features, settings.width, settings.core)
        self.state_size = self.core.state_size

    @classmethod
    def recorded(
        cls,
        spaces: Spaces,  # noqa: ARG003 - the same for all
        settings: RecurrentSettings,
    ) -> tuple[FieldSpec, ...]:
        """Declare ``state``, recorded once a fragment: the state before its first step."""
        shape = (state_size(settings.width, settings.core),)
        return (FieldSpec("state", np.dtype(np.float32), shape, once=True),)

    def run_core(
        self, observation: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Go through steps in their order; the encoder sees all of them at once.

        Returns:
            ``[T * B, width]``, time first, and the state after the last step.
        """
        features = self.encoder(observation.flatten(0, 1)).view(*first.shape, -1)
        outputs, state = self.core(features, first, state)
        return outputs.flatten(0, 1), state


class GatedActorCritic(GatedModel, RecurrentActorCritic):
    """Policy and value on top of an LSTM or GRU (Mnih et al., 2016; Espeholt et al., 2018).

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[RecurrentActorCriticSettings]] = RecurrentActorCriticSettings

    def __init__(self, spaces: Spaces, settings: RecurrentActorCriticSettings) -> None:
        super().__init__(spaces, settings)
        self.head = PolicyValueHead(
            settings.width, spaces.action, settings.policy_gain, settings.initial_log_std
        )

    def unroll(
        self, observation: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """See ``RecurrentActorCritic``."""
        outputs, state = self.run_core(observation, first, state)
        return (*self.head(outputs), state)


class GatedQ(GatedModel, RecurrentQNetwork):
    """Action values on top of an LSTM or GRU (Hausknecht & Stone, 2015; Kapturowski et al., 2019).

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[RecurrentQSettings]] = RecurrentQSettings

    def __init__(self, spaces: Spaces, settings: RecurrentQSettings) -> None:
        super().__init__(spaces, settings)
        actions = count_actions(spaces.action)
        self.value = build_layers(settings.width, (), "relu", [1.0]) if settings.dueling else None
        self.actions = build_layers(settings.width, (), "relu", [1.0] * actions)

    def unroll(
        self, observation: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """See ``RecurrentQNetwork``; dueling: V + A - mean(A)."""
        outputs, state = self.run_core(observation, first, state)
        q = self.actions(outputs)
        if self.value is not None:
            q = self.value(outputs) + q - q.mean(dim=1, keepdim=True)
        return q, state
