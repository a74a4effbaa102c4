"""Settings of the built-in models. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from tianji_algos.settings import Settings

Widths = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Strict(False)]


class MLPActorCriticSettings(Settings):
    """A policy and a value function as fully connected networks.

    Attributes:
        hidden: widths of the hidden layers.
        activation: after each hidden layer.
        shared: one network with a policy and a value output in place of two networks.
        policy_gain: scale of the policy output's initial weights; small means nearly uniform at first.
        initial_log_std: of the Gaussian policy, for continuous actions.
    """

    hidden: Annotated[Widths, Field(min_length=1)] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    shared: bool = False
    policy_gain: float = Field(0.01, gt=0)
    initial_log_std: float = 0.0


class MLPQSettings(Settings):
    """Action values as a fully connected network.

    Attributes:
        hidden: widths of the hidden layers.
        activation: after each hidden layer.
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
