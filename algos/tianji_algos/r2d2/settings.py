"""Settings of R2D2. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from tianji_algos.dqn.settings import DQNSettings, EpsilonSettings
from tianji_algos.settings import TorchAlone


class R2D2AgentSettings(EpsilonSettings):
    """Exploration of R2D2's agent, as DQN's; section ``[agent]`` of a config."""


class R2D2Settings(DQNSettings):
    """Hyperparameters of R2D2: DQN's, and those of its samples; section ``[training]`` of a config.

    An unroll is ``burn_in + unroll_steps`` successive steps of one environment, across the ends of its
    episodes. It begins with a fragment, which records the network's state there. Both numbers are
    multiples of ``distribution.actor.send_size``: another unroll begins with every fragment, and overlaps
    with the one before unless that was a single fragment.

    Attributes:
        batch_size: unrolls per gradient update.
        burn_in: first steps of an unroll, which only update the state: the recorded state is that of an older
            network.
        unroll_steps: L, steps after the burn-in that are learnt from together.
        n_step: steps until the return is bootstrapped; fewer towards the end of an unroll.
        value_rescaling: learn values rescaled by ``sign(x) (sqrt(|x| + 1) - 1) + x / 1000``, so that large
            returns need not be clipped (Pohlen et al., 2018, proposition A.2).
        priority_mix: eta, share of the largest TD error of an unroll in its priority; the mean has the rest.
    """

    batch_size: int = Field(64, ge=1)
    burn_in: int = Field(32, ge=0)
    unroll_steps: int = Field(32, ge=1)
    warmup_steps: int = Field(4000, ge=1)
    n_step: int = Field(5, ge=1)
    value_rescaling: bool = False
    priority_mix: float = Field(0.9, ge=0, le=1)
    backend: TorchAlone = "auto"
