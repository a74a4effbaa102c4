"""Settings of IMPALA. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from tianji_algos.settings import PolicyAgentSettings, PolicySettings


class IMPALAAgentSettings(PolicyAgentSettings):
    """IMPALA's agent, which explores by sampling from its policy."""


class IMPALASettings(PolicySettings):
    """Hyperparameters of IMPALA, with those of ``PolicySettings``; section ``[training]`` of a config.

    The defaults are those of the paper's Atari experiments (Espeholt et al., 2018, appendix D), whose losses
    are summed over a batch; but it has 32 sequences of 20 steps there, and of a default ``send_size`` here.

    Attributes:
        minibatch_size: steps per gradient update, about: a rollout is cut into equal minibatches of whole
            sequences, the ``send_size`` steps of one environment in one fragment; they have one at least.
        epochs: passes over each rollout; the targets are computed anew with every update.
        correction: "vtrace"; "none" takes samples as if the current policy had made them.
        rho_bar: truncation of the importance weights that say which policy's value is learned (section 4.1).
        c_bar: truncation of the weights that say how far back a temporal difference reaches.
        pg_rho_bar: truncation of the weights of the policy gradient (section 4.2).
        vtrace_lambda: factor of ``c`` (remark 2); 1 looks as far ahead as the sequence does.
        reduction: losses are the "sum" over the steps of a minibatch, or their "mean". It is the scale that
            ``max_grad_norm`` and ``rmsprop_eps`` are held against.
    """

    adjustable: ClassVar[frozenset[str]] = PolicySettings.adjustable | {"vtrace_lambda"}

    rollout_steps: int = Field(1024, ge=1)
    minibatch_size: int = Field(1024, ge=1)
    correction: Literal["vtrace", "none"] = "vtrace"
    rho_bar: float = Field(1.0, gt=0)
    c_bar: float = Field(1.0, ge=0)
    pg_rho_bar: float = Field(1.0, gt=0)
    vtrace_lambda: float = Field(1.0, ge=0, le=1)
    reduction: Literal["sum", "mean"] = "sum"
    entropy_coef: float = Field(0.01, ge=0)
    optimizer: Literal["adam", "rmsprop"] = "rmsprop"
    learning_rate: float = Field(6e-4, gt=0)
    rmsprop_eps: float = Field(0.1, gt=0)
    max_grad_norm: float = Field(40.0, gt=0)

    @model_validator(mode="after")
    def _converges(self) -> Self:
        if self.c_bar > self.rho_bar:
            raise ValueError(
                f"c_bar ({self.c_bar:g}) is above rho_bar ({self.rho_bar:g}), and V-trace converges only "
                "where it is not (Espeholt et al., 2018, theorem 1)"
            )
        return self
