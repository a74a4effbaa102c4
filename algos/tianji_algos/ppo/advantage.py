"""Generalised advantage estimation over fragments with auto-reset steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def estimate_advantages(
    reward: Floats,
    value: Floats,
    terminated: npt.NDArray[Any],
    mask: npt.NDArray[Any],
    gamma: float,
    gae_lambda: float,
) -> Floats:
    """Estimate advantages (Schulman et al., 2016, equation 16).

    The step after an episode's end only resets the environment: ``mask`` is False there, which keeps the
    next episode apart. The observation it starts from is the ended episode's last one, so ``value[t + 1]``
    bootstraps a truncated step as it does any other; a terminated step has nothing to bootstrap from.

    Args:
        reward: ``[T, N, ...]``: a team has a last axis, of its agents; it is 1 long in ``reward``,
            ``terminated`` and ``mask`` where these are the same for all of them.
        value: ``[T + 1, N, ...]``; the last row belongs to the observation after the last step.
        terminated: ``[T, N, ...]``, bool or uint8.
        mask: ``[T, N, ...]``; where it is False the advantage is 0 and nothing flows through.
        gamma: discount.
        gae_lambda: 0 is one-step temporal difference, 1 is Monte Carlo.

    Returns:
        Advantages ``[T, N, ...]``, for every agent that there is a value of.
    """
    experience = mask.astype(bool)
    delta = np.where(terminated.astype(bool), np.float32(0.0), value[1:])
    delta *= np.float32(gamma)
    delta += reward
    delta -= value[:-1]
    delta *= experience
    decay = experience * np.float32(gamma * gae_lambda)
    advantage = delta
    carried = np.empty_like(advantage[0])
    for t in range(len(advantage) - 2, -1, -1):
        np.multiply(decay[t], advantage[t + 1], out=carried)
        advantage[t] += carried
    return advantage
