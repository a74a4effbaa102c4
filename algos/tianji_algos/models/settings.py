"""Settings of the built-in models. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, Strict, model_validator

from tianji_algos.settings import Settings

Widths = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Strict(False)]


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, int) else value


OneOrMoreWidths = Annotated[
    Widths, Field(min_length=1), BeforeValidator(_several, json_schema_input_type=int | Widths)
]
Precision = Literal["float32", "bfloat16"]
ImageEncoderName = Literal["nature", "impala_small", "impala_large"]
ImageLayout = Literal["auto", "channels_first", "channels_last", "none", "legacy"]
"""Position of an image's channels; "legacy" is the rule of runs that are older than the key."""

_CHANNELS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {"nature": (32, 64, 64), "impala_small": (16, 32), "impala_large": (16, 32, 32)}
)
_KERNELS: Final = (8, 4, 3)
_STRIDES: Final = (4, 2, 1)
_HIDDEN: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {"nature": (512,), "impala_small": (256,), "impala_large": (256,), "mlp": (64,)}
)


class MLPActorCriticSettings(Settings):
    """A policy and a value function as fully connected networks.

    Attributes:
        hidden: widths of the hidden layers.
        activation: activation function after each hidden layer.
        shared: one network with a policy and a value output in place of two networks.
        policy_gain: scale of the policy output's initial weights; small means nearly uniform at first.
        initial_log_std: continuous actions: initial logarithm of the policy's standard deviation.
    """

    hidden: Annotated[Widths, Field(min_length=1)] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    shared: bool = False
    policy_gain: float = Field(0.01, gt=0)
    initial_log_std: float = 0.0


class MLPActorQSettings(Settings):
    """A policy over continuous actions and Q functions of them, as fully connected networks.

    Attributes:
        hidden: widths of the policy's hidden layers.
        critic_hidden: widths of the hidden layers of each Q function.
        activation: activation function after each hidden layer.
        critics: number of Q functions; the smallest of their values counts.
    """

    hidden: Annotated[Widths, Field(min_length=1)] = (256, 256)
    critic_hidden: Annotated[Widths, Field(min_length=1)] = (256, 256)
    activation: Literal["tanh", "relu"] = "relu"
    critics: int = Field(2, ge=1)


class MLPQSettings(Settings):
    """Action values as a fully connected network.

    Attributes:
        hidden: widths of the hidden layers.
        activation: activation function after each hidden layer.
        dueling: value and advantages apart (Wang et al., 2016, equation 9).
        stream_hidden: widths of the hidden layers that each of the two has of its own, after ``hidden``.
    """

    hidden: Annotated[Widths, Field(min_length=1)] = (128, 128)
    activation: Literal["tanh", "relu"] = "relu"
    dueling: bool = False
    stream_hidden: Widths = ()

    @model_validator(mode="after")
    def _streams_are_dueling(self) -> Self:
        if self.stream_hidden and not self.dueling:
            raise ValueError("stream_hidden belongs to a dueling network: set dueling = true or leave it out")
        return self


class EncoderSettings(Settings):
    """The part of a network that turns an observation into features.

    ``encoder`` is one of

    - "nature" (Mnih et al., 2015): convolutions of 32, 64 and 64 channels, 8 x 8, 4 x 4 and 3 x 3, with
      strides 4, 2 and 1, and one layer of 512; with ``channels = [16, 32]`` and ``hidden = 256`` that of A3C.
    - "impala_small" (Espeholt et al., 2018, Figure 3, left): that of A3C, of 16 and 32 channels, and 256.
    - "impala_large" (the same, right): a residual network of 15 convolutions in sections of 16, 32 and 32
      channels, and one layer of 256.

    Attributes:
        encoder: name of the network before the heads.
        channels: channels of each convolution, or section of "impala_large"; the paper's by default.
        kernels: height and width of each convolution.
        strides: stride of each convolution.
        hidden: widths of the fully connected layers after the convolutions; one number is one layer.
        precision: "bfloat16" computes the encoder with half the digits, and all else in float32.
    """

    encoder: Literal["mlp", "nature", "impala_small", "impala_large"]
    channels: Annotated[Widths, Field(min_length=1)] | None = None
    kernels: Widths | None = None
    strides: Widths | None = None
    hidden: OneOrMoreWidths | None = None
    precision: Precision = "float32"

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the fully connected layers: ``hidden``, or the encoder's own."""
        return self.hidden or _HIDDEN[self.encoder]

    @property
    def section_channels(self) -> tuple[int, ...]:
        """Channels of each convolution or section: ``channels``, or the encoder's own."""
        return self.channels or _CHANNELS[self.encoder]

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """Kernel and stride of each convolution of a plain stack: as set, or the encoder's own."""
        number = len(self.section_channels)
        kernels, strides = self.kernels or _KERNELS[:number], self.strides or _STRIDES[:number]
        return tuple(zip(kernels, strides, strict=True))

    @model_validator(mode="after")
    def _convolutions_fit_the_encoder(self) -> Self:
        given = [name for name in ("channels", "kernels", "strides") if getattr(self, name) is not None]
        refused = {"mlp": given, "impala_large": [name for name in given if name != "channels"]}
        if names := refused.get(self.encoder):
            raise ValueError(
                f"encoder = {self.encoder!r} has no {' or '.join(names)} to be set; leave that out, or use "
                "'nature' or 'impala_small'"
            )
        if self.encoder in ("nature", "impala_small"):
            lengths = {
                "channels": len(self.section_channels),
                "kernels": len(self.kernels or _KERNELS[: len(self.section_channels)]),
                "strides": len(self.strides or _STRIDES[: len(self.section_channels)]),
            }
            if len(set(lengths.values())) > 1:
                found = ", ".join(f"{number} {name}" for name, number in lengths.items())
                raise ValueError(
                    f"each convolution has its channels, kernel and stride, but there are {found}"
                )
        return self


class CNNActorCriticSettings(EncoderSettings):
    """A policy and a value function on top of one convolutional network.

    Attributes:
        policy_gain: scale of the policy output's initial weights; small means nearly uniform at first.
        initial_log_std: continuous actions: initial logarithm of the policy's standard deviation.
    """

    encoder: ImageEncoderName = "nature"
    policy_gain: float = Field(0.01, gt=0)
    initial_log_std: float = 0.0


class CNNQSettings(EncoderSettings):
    """Action values on top of a convolutional network.

    Attributes:
        dueling: value and advantages apart, each with its own last hidden layer (Wang et al., 2016).
    """

    encoder: ImageEncoderName = "nature"
    dueling: bool = False


class CNNActorQSettings(EncoderSettings):
    """A policy over continuous actions and Q functions of them, on top of one convolutional network.

    Attributes:
        actor_hidden: widths of the policy's hidden layers, after the encoder's.
        critic_hidden: widths of the hidden layers of each Q function, likewise.
        activation: activation function after each of these layers.
        critics: number of Q functions; the smallest of their values counts.
    """

    encoder: ImageEncoderName = "impala_small"
    actor_hidden: Annotated[Widths, Field(min_length=1)] = (256,)
    critic_hidden: Annotated[Widths, Field(min_length=1)] = (256,)
    activation: Literal["tanh", "relu"] = "relu"
    critics: int = Field(2, ge=1)


class RecurrentSettings(EncoderSettings):
    """An LSTM or a GRU after an encoder of the observation.

    ``encoder = "mlp"`` is for observations that are no images; it is fully connected layers alone.

    Attributes:
        core: the recurrent network.
        width: width of its output; an LSTM's state has twice as many numbers, a GRU's as many.
        activation: activation function after each hidden layer of "mlp"; the others have ReLUs.
    """

    encoder: Literal["mlp", "nature", "impala_small", "impala_large"] = "mlp"
    core: Literal["lstm", "gru"] = "lstm"
    width: int = Field(256, ge=1)
    activation: Literal["tanh", "relu"] = "tanh"


class RecurrentActorCriticSettings(RecurrentSettings):
    """A policy and a value function on top of a recurrent network.

    Attributes:
        policy_gain: scale of the policy output's initial weights; small means nearly uniform at first.
        initial_log_std: continuous actions: initial logarithm of the policy's standard deviation.
    """

    policy_gain: float = Field(0.01, gt=0)
    initial_log_std: float = 0.0


class RecurrentQSettings(RecurrentSettings):
    """Action values on top of a recurrent network.

    Attributes:
        dueling: value and advantages apart (Wang et al., 2016, equation 9).
    """

    width: int = Field(128, ge=1)
    activation: Literal["tanh", "relu"] = "relu"
    dueling: bool = False


class TeamActorCriticSettings(Settings):
    """A policy for each agent, from its own observation, and a value for each, from the global state.

    Attributes:
        hidden: widths of the hidden layers, of policy and value networks.
        activation: activation function after each hidden layer.
        share_parameters: one policy and one value network for all agents, with an agent's identity as input.
        agent_specific_value: a value network also gets the agent's own observation (Yu et al., 2022, section
            5.2: the agent-specific state).
        policy_gain: scale of the policy output's initial weights; small means nearly uniform at first.
        initial_log_std: continuous actions: initial logarithm of the policy's standard deviation.
    """

    hidden: Annotated[Widths, Field(min_length=1)] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    share_parameters: bool = True
    agent_specific_value: bool = False
    policy_gain: float = Field(0.01, gt=0)
    initial_log_std: float = 0.0


class TeamDeterministicSettings(Settings):
    """Actors and critics of a team as fully connected networks; section ``[model]`` of a config.

    Attributes:
        hidden: widths of an actor's hidden layers.
        critic_hidden: widths of a critic's hidden layers.
        activation: activation function after each hidden layer.
        share_parameters: one actor for all agents, with the agent's identity as input, in place of one for
            each; likewise the critics.
        rewards: "individual": each agent has a critic, for its own rewards; "team": all share one, for the
            team's reward.
    """

    hidden: Annotated[Widths, Field(min_length=1)] = (64, 64)
    critic_hidden: Annotated[Widths, Field(min_length=1)] = (64, 64)
    activation: Literal["tanh", "relu"] = "relu"
    share_parameters: bool = False
    rewards: Literal["individual", "team"] = "individual"


class TeamQSettings(Settings):
    """Action values of recurrent agents, and the mixer of the team's value; section ``[model]`` of a config.

    Attributes:
        width: width of an agent's layer before its GRU, and of the GRU.
        share_parameters: one network acts for all agents, in place of one for each.
        agent_id: a shared network gets the agent's identity as input.
        last_action: agents see their last action.
        mixer: "qmix" mixes values by a network whose weights depend on the state (Rashid et al., 2018), "vdn"
            adds them up (Sunehag et al., 2018), "none" lets each agent learn by itself (IQL; Tan, 1993).
        mixer_width: "qmix": width of the mixing network's hidden layer.
        hypernet_width: "qmix": width of the hidden layers of the networks that give the mixing network's
            weights.
    """

    width: int = Field(64, ge=1)
    share_parameters: bool = True
    agent_id: bool = True
    last_action: bool = True
    mixer: Literal["qmix", "vdn", "none"] = "qmix"
    mixer_width: int = Field(32, ge=1)
    hypernet_width: int = Field(64, ge=1)
