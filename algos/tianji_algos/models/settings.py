"""Settings of the built-in models. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from tianji_algos.settings import Settings


class MLPActorCriticSettings(Settings):
    """A policy and a value function as fully connected networks.

    Attributes:
        hidden: widths of the hidden layers.
        activation: after each hidden layer.
        shared: one network with a policy and a value output in place of two networks.
        policy_gain: scale of the policy output's initial weights; small means nearly uniform at first.
        initial_log_std: of the Gaussian policy, for continuous actions.
    """

    hidden: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Strict(False), Field(min_length=1)] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    shared: bool = False
    policy_gain: float = Field(0.01, gt=0)
    initial_log_std: float = 0.0
