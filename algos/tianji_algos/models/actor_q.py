"""The contract between SAC or TD3 and their networks, an actor and Q functions; MLPs and CNNs for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import torch
from torch import nn

from tianji_algos.core import Executor, Model, Spaces
from tianji_algos.device import is_on_host
from tianji_algos.models.cnn import ImageEncoder, JoinedEncoder, image_encoder
from tianji_algos.models.layers import build_layers
from tianji_algos.models.observations import observation_encoder
from tianji_algos.models.settings import CNNActorQSettings, MLPActorQSettings
from tianji_algos.models.torch_backend import TorchExecutor
from tianji_algos.registry import kernel
from tianji_algos.rules import ActionBounds

_ACTOR_GAIN: Final = 0.01
"""Gain of an actor's output layer, so that initial policies are in the middle between the bounds."""


class ActorQ(Model):
    """A policy over A continuous numbers from -1 to 1, and C Q functions of them.

    A user's subclass sets both parts, which have no parameter in common; acting and training then go through
    torch. It derives from one of the two classes below, which define the actor's outputs.

    Attributes:
        actor: maps ``observation [B, ...]`` to outputs ``[B, ...]``.
        critics: map ``observation [B, ...]`` and ``action [B, A]`` to values ``[C, B]``.
        outputs: outputs of a built-in actor for each number of an action.
    """

    outputs: ClassVar[int] = 1

    actor: nn.Module
    critics: nn.Module

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute the actor's outputs for ``observation [B, ...]`` as it comes."""
        outputs: torch.Tensor = self.actor(observation)
        return outputs

    def executor(self, batch_size: int) -> Executor:  # noqa: ARG002 - torch allocates its outputs itself
        """Build an executor that runs a copy of this network in torch."""
        return TorchExecutor(self)

    def pair_targets(self, actor: nn.Module, critics: nn.Module) -> None:
        """Let a copy of the actor use the parts that a copy of the critics shares; most share none."""


class GaussianActorQ(ActorQ):
    """The actor gives means and logarithms of standard deviations ``[B, 2 A]``; tanh of a draw is the action.

    Attributes:
        log_temperature: logarithm of the entropy's weight; SAC learns it with the rest.
    """

    outputs: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))


class DeterministicActorQ(ActorQ):
    """The actor gives numbers ``[B, A]``, whose tanh is the action."""


class Actor(nn.Module):
    """Fully connected layers from an encoder's features to the outputs of a policy."""

    def __init__(self, encoder: Any, hidden: Sequence[int], activation: str, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.layers = build_layers(encoder.features, hidden, activation, [_ACTOR_GAIN] * outputs)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute ``[B, outputs]`` of ``observation [B, ...]``."""
        outputs: torch.Tensor = self.layers(self.encoder.in_torch(observation))
        return outputs


class Critics(nn.Module):
    """Q functions as fully connected networks behind an encoder, which is trained with them if it can be."""

    def __init__(self, encoder: Any, spaces: Spaces, settings: MLPActorQSettings | CNNActorQSettings) -> None:
        super().__init__()
        self.encoder = encoder
        inputs = encoder.features + ActionBounds(spaces.action).size
        self.networks = nn.ModuleList(
            build_layers(inputs, settings.critic_hidden, settings.activation, [1.0])
            for _ in range(settings.critics)
        )

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Compute values ``[C, B]`` of ``observation [B, ...]`` and ``action [B, A]``."""
        rows = torch.cat((self.encoder.in_torch(observation), action), dim=1)
        return torch.stack([network(rows)[:, 0] for network in self.networks])


class LentEncoder:
    """The critics' encoder, lent to an actor, whose loss does not train it."""

    def __init__(self, encoder: ImageEncoder | JoinedEncoder) -> None:
        self.encoder, self.features = encoder, encoder.features

    def in_torch(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute features ``[B, features]`` of ``observation [B, ...]``, without gradients."""
        with torch.no_grad():
            features: torch.Tensor = self.encoder(observation)
        return features


class CNNActorQ(ActorQ):
    """Actor and critics on convolutions that belong to the critics (Yarats et al., 2021, section 4.2; DrQ).

    Raises:
        UnsupportedSpaceError: observations without images, or actions without bounds.
    """

    settings_type: ClassVar[type[CNNActorQSettings]] = CNNActorQSettings

    def __init__(self, spaces: Spaces, settings: CNNActorQSettings) -> None:
        super().__init__()
        self.settings = settings
        encoder, numbers = image_encoder(spaces, settings, settings.widths), ActionBounds(spaces.action).size
        self.critics: Critics = Critics(encoder, spaces, settings)
        lent = LentEncoder(encoder)
        self.actor: Actor = Actor(lent, settings.actor_hidden, settings.activation, self.outputs * numbers)

    def pair_targets(self, actor: nn.Module, critics: nn.Module) -> None:
        """Let a copy of the actor use the encoder of a copy of the critics."""
        assert isinstance(actor, Actor)
        assert isinstance(critics, Critics)
        actor.encoder = LentEncoder(critics.encoder)


class CNNGaussianQ(CNNActorQ, GaussianActorQ):
    """SAC's networks for images."""


class CNNDeterministicQ(CNNActorQ, DeterministicActorQ):
    """TD3's networks for images."""


class MLPActorQ(ActorQ):
    """Actor and critics as fully connected layers.

    Raises:
        UnsupportedSpaceError: an observation that it cannot serve, or actions without bounds.
    """

    settings_type: ClassVar[type[MLPActorQSettings]] = MLPActorQSettings

    def __init__(self, spaces: Spaces, settings: MLPActorQSettings) -> None:
        super().__init__()
        self.settings = settings
        encoders = [observation_encoder(spaces.observation, spaces.image_layout) for _ in range(2)]
        numbers = self.outputs * ActionBounds(spaces.action).size
        self.actor: Actor = Actor(encoders[0], settings.hidden, settings.activation, numbers)
        self.critics: Critics = Critics(encoders[1], spaces, settings)

    def executor(self, batch_size: int) -> Executor:
        """Build an executor with a copy of the actor alone, in numpy; on a device, one in torch."""
        if not is_on_host(self):
            return super().executor(batch_size)
        built: Executor = kernel("MLPActorQ.executor")(self)
        return built


class MLPGaussianQ(MLPActorQ, GaussianActorQ):
    """SAC's networks, fully connected."""


class MLPDeterministicQ(MLPActorQ, DeterministicActorQ):
    """TD3's networks, fully connected."""


def parts_of(model: ActorQ) -> tuple[slice, slice]:
    """Find the parameters of actor and critics in the flat array of all of them.

    Raises:
        ValueError: the parameters of one part do not lie together, or both parts have some in common.
    """
    actor, critics = part_of(model, model.actor), part_of(model, model.critics)
    if actor.start < critics.stop and critics.start < actor.stop:
        raise ValueError("actor and critics have parameters in common")
    return actor, critics


def part_of(model: Model, part: nn.Module | nn.Parameter) -> slice:
    """Find the parameters of a part of a network in the flat array of all of them, where they lie together.

    Raises:
        ValueError: the part has no parameters, or they do not lie together.
    """
    wanted = {id(one) for one in (part.parameters() if isinstance(part, nn.Module) else (part,))}
    start, places = 0, []
    for parameter in model.parameters():
        if id(parameter) in wanted:
            places.append((start, start + parameter.numel()))
        start += parameter.numel()
    if not places:
        raise ValueError(f"{type(part).__name__} has no parameters")
    if len(places) != len(wanted) or sum(b - a for a, b in places) != places[-1][1] - places[0][0]:
        raise ValueError(f"the parameters of {type(part).__name__} do not lie together")
    return slice(places[0][0], places[-1][1])
