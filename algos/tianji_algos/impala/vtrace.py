"""V-trace (Espeholt et al., 2018, section 4) over sequences with auto-reset steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class VTrace:
    """What values and policy are moved towards, given how likely each action is now and was then.

    The step after an episode's end only resets the environment: ``mask`` is False there, and nothing flows
    through it. The observation it starts from is the ended episode's last one, so ``value[t + 1]`` bootstraps
    a truncated step as it does any other; a terminated step has nothing to bootstrap from.

    Attributes:
        gamma: discount.
        rho_bar: truncation of ``rho`` in the values' targets; it decides which policy's value they are.
        c_bar: truncation of ``c``; it decides how far back a temporal difference is felt.
        pg_rho_bar: truncation of ``rho`` in the policy gradient.
        decay: lambda, a factor of ``c`` (remark 2).
    """

    gamma: float
    rho_bar: float
    c_bar: float
    pg_rho_bar: float
    decay: float

    def __call__(
        self,
        ratio: Floats,
        reward: Floats,
        value: Floats,
        terminated: npt.NDArray[Any],
        mask: npt.NDArray[Any],
    ) -> tuple[Floats, Floats]:
        """Compute targets and advantages.

        Args:
            ratio: ``[T, N]``, probability of each action under the current policy over that under the policy
                that acted.
            reward: ``[T, N]``.
            value: ``[T + 1, N]`` of the current network; the last row belongs to the observation after the
                last step.
            terminated: ``[T, N]``, bool or uint8.
            mask: ``[T, N]``, bool or uint8; where it is False, both results mean nothing and are 0.

        Returns:
            ``v_s - V(x_s)`` (equation 1), and ``rho_s (r_s + gamma v_{s+1} - V(x_s))``, the weight of the
            policy gradient (section 4.2); ``[T, N]`` each.
        """
        experience = mask.astype(bool)
        weight = np.where(experience, ratio, np.float32(0.0))
        discount = np.where(experience & ~terminated.astype(bool), np.float32(self.gamma), np.float32(0.0))
        gain = discount * value[1:]
        gain += reward
        gain -= value[:-1]  # r_t + gamma V(x_{t+1}) - V(x_t)
        trace = np.minimum(weight, np.float32(self.c_bar))
        trace *= np.float32(self.decay)
        trace *= discount  # gamma c_t
        error = np.minimum(weight, np.float32(self.rho_bar))
        error *= gain  # delta_t V
        carried = np.empty_like(error[0])
        for t in range(len(error) - 2, -1, -1):  # remark 1
            np.multiply(trace[t], error[t + 1], out=carried)
            error[t] += carried
        gain[:-1] += discount[:-1] * error[1:]  # v_{t+1} in the place of V(x_{t+1})
        gain *= np.minimum(weight, np.float32(self.pg_rho_bar))
        return error, gain
