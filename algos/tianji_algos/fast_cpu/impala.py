"""V-trace in numpy, and IMPALA's loss differentiated by hand by the outputs of a network on a CPU.

``impala/impala.py`` says what is computed, and why.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.distributions import Distribution
from tianji_algos.fast_cpu.distributions import by_hand
from tianji_algos.impala.impala import IMPALALoss, IMPALAMinibatch
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.normalization import ValueUnits

Floats = npt.NDArray[np.float32]


def v_trace(
    settings: IMPALASettings,
    ratio: Floats,
    reward: Floats,
    value: Floats,
    terminated: npt.NDArray[Any],
    mask: npt.NDArray[Any],
) -> tuple[Floats, Floats]:
    """Compute targets and advantages, ``[T, N]`` each, as the function of this name in torch does.

    Args:
        terminated: ``[T, N]``, bool or uint8.
        mask: likewise.
    """
    experience = mask.astype(bool)
    weight = np.where(experience, ratio, np.float32(0.0))
    discount = np.where(experience & ~terminated.astype(bool), np.float32(settings.gamma), np.float32(0.0))
    gain = discount * value[1:]
    gain += reward
    gain -= value[:-1]  # r_t + gamma V(x_{t+1}) - V(x_t)
    trace = np.minimum(weight, np.float32(settings.c_bar))
    trace *= np.float32(settings.vtrace_lambda)
    trace *= discount  # gamma c_t
    error = np.minimum(weight, np.float32(settings.rho_bar))
    error *= gain  # delta_t V
    carried = np.empty_like(error[0])
    for t in range(len(error) - 2, -1, -1):  # remark 1
        np.multiply(trace[t], error[t + 1], out=carried)
        error[t] += carried
    gain[:-1] += discount[:-1] * error[1:]  # v_{t+1} in the place of V(x_{t+1})
    gain *= np.minimum(weight, np.float32(settings.pg_rho_bar))
    return error, gain


class IMPALALossByHand(IMPALALoss):
    """IMPALA's loss on one minibatch, with its derivatives."""

    def __init__(
        self, distribution: Distribution, settings: IMPALASettings, units: ValueUnits | None = None
    ) -> None:
        super().__init__(distribution, settings, units)
        self._probabilities = by_hand(distribution)

    def gradient(
        self, policy: Floats, value: Floats, batch: IMPALAMinibatch
    ) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the network's outputs.

        Args:
            policy: ``[(T + 1) * B, outputs]``, time first.
            value: ``[(T + 1) * B]``.
            batch: the minibatch that the outputs belong to, with at least one sample.

        Returns:
            Derivatives by ``policy`` and by ``value``, 0 where there is no experience, and the
            ``DIAGNOSTICS`` in order.
        """
        settings, where, units = self._settings, batch.experience, self._units
        count = np.float32(batch.samples)
        log_prob, entropy = self._probabilities.evaluate(np.take(policy.T, where, axis=1).T, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = np.exp(log_ratio)
        rows = np.zeros_like(batch.reward)
        rows.reshape(-1)[where] = ratio if settings.correction == "vtrace" else np.float32(1.0)
        returns = value.reshape(-1, rows.shape[1])
        if units is not None:
            returns = units.restored(returns)
        error, advantage = v_trace(settings, rows, batch.reward, returns, batch.terminated, batch.mask)
        if units is not None:
            self._noted.append((returns[:-1] + error).reshape(-1)[where])
            error, advantage = (found / np.float32(units.spread) for found in (error, advantage))
        gain = advantage.reshape(-1)[where]
        scale = 1.0 / batch.total if settings.reduction == "mean" else 1.0
        d_log_prob = gain * np.float32(-scale)
        d_policy = np.zeros((policy.shape[1], len(policy)), np.float32)
        d_policy[:, where] = self._probabilities.gradient(d_log_prob, -settings.entropy_coef * scale).T
        d_value = np.zeros(len(value), np.float32)
        np.multiply(error.reshape(-1), np.float32(-settings.value_coef * scale), out=d_value[: error.size])
        diagnostics = np.array(
            (
                -np.dot(gain, log_prob) / count,
                0.5 * np.square(error).sum() / count,
                entropy.mean(),
                (ratio - 1.0 - log_ratio).mean(),  # Schulman's low-variance estimate of the divergence
                np.minimum(ratio, np.float32(settings.rho_bar)).mean(),
                np.count_nonzero(ratio > settings.rho_bar) / count,
            ),
            np.float32,
        )
        return d_policy.T, d_value, diagnostics
