"""Probabilities of actions and their derivatives, by hand and in numpy.

``distributions.py`` says what is computed. This code works on the policy's transpose, as sampling does.

Both classes have ``evaluate``, which returns log-probabilities ``[N]`` and entropies ``[N]``, and
``gradient``, which takes the derivatives of the loss by each log-probability, ``[N]``, and by any row's
entropy, and returns that by the output ``[N, outputs]`` of the policy that was evaluated last.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tianji_algos.distributions import HALF_LOG_2PI, Categorical, Distribution, Gaussian, normal_log_prob

Floats = npt.NDArray[np.float32]
Actions = npt.NDArray[Any]


class CategoricalByHand:
    """Softmax over one or several sets of actions."""

    def __init__(self, distribution: Categorical) -> None:
        self._distribution = distribution
        self._seen: list[tuple[npt.NDArray[np.intp], Floats, Floats, Floats]] = []

    def evaluate(self, policy: Floats, action: Actions) -> tuple[Floats, Floats]:
        """Sum log-probabilities and entropies over the sets."""
        self._seen.clear()
        log_prob = np.zeros(len(policy), np.float32)
        entropy = np.zeros(len(policy), np.float32)
        for column, members in zip(self._distribution.columns(action), self._distribution.sets, strict=True):
            logit = policy.T[members]
            log_p = logit - np.maximum.reduce(logit)
            p = np.exp(log_p)
            total = np.add.reduce(p)
            p /= total
            log_p -= np.log(total)
            set_entropy = -np.add.reduce(p * log_p)
            chosen = column.astype(np.intp, copy=False)
            log_prob += _pick(log_p, chosen)
            entropy += set_entropy
            self._seen.append((chosen, p, log_p, set_entropy))
        return log_prob, entropy

    def gradient(self, d_log_prob: Floats, d_entropy: float) -> Floats:
        """Use d log p(a) / d logit = 1[a] - p and d H / d logit = -p (log p + H)."""
        d_policy = np.empty((self._distribution.outputs, len(d_log_prob)), np.float32)
        rows = np.arange(len(d_log_prob))
        for members, (chosen, p, log_p, entropy) in zip(self._distribution.sets, self._seen, strict=True):
            d_logit = d_policy[members]
            np.multiply(p, -d_log_prob, out=d_logit)
            d_logit[chosen, rows] += d_log_prob
            if d_entropy != 0.0:
                d_logit -= np.float32(d_entropy) * p * (log_p + entropy)
        return d_policy.T


class GaussianByHand:
    """Independent normal distributions."""

    def __init__(self, distribution: Gaussian) -> None:
        self._distribution = distribution
        self._dimensions = distribution.dimensions
        self._seen: tuple[Floats, Floats] | None = None

    def evaluate(self, policy: Floats, action: Actions) -> tuple[Floats, Floats]:
        """Sum over the dimensions of an action."""
        mean, log_std = self._distribution.split(policy)
        inverse_std = np.exp(-log_std)
        noise = (action.reshape(len(policy), -1).T - mean) * inverse_std
        self._seen = (noise, inverse_std)
        entropy = np.add.reduce(log_std) + np.float32(self._dimensions * (0.5 + HALF_LOG_2PI))
        return normal_log_prob(noise, log_std), entropy

    def gradient(self, d_log_prob: Floats, d_entropy: float) -> Floats:
        """Use d log p / d mean = z / std, d log p / d log std = z^2 - 1 and d H / d log std = 1."""
        assert self._seen is not None, "gradient() follows evaluate()"
        noise, inverse_std = self._seen
        d_policy = np.empty((self._distribution.outputs, len(d_log_prob)), np.float32)
        d_mean, d_log_std = d_policy[: self._dimensions], d_policy[self._dimensions :]
        np.multiply(noise, inverse_std, out=d_mean)
        d_mean *= d_log_prob
        np.multiply(noise, noise, out=d_log_std)
        d_log_std -= np.float32(1.0)
        d_log_std *= d_log_prob
        d_log_std += np.float32(d_entropy)
        return d_policy.T


def by_hand(distribution: Distribution) -> CategoricalByHand | GaussianByHand:
    """Return the derivatives of a distribution."""
    if isinstance(distribution, Categorical):
        return CategoricalByHand(distribution)
    assert isinstance(distribution, Gaussian), f"{type(distribution).__name__} has no derivatives by hand"
    return GaussianByHand(distribution)


def _pick(table: Floats, index: npt.NDArray[np.intp]) -> Floats:
    """Take ``table[index[i], i]`` for each column i."""
    columns = table.shape[1]
    flat = index * columns
    flat += np.arange(columns)
    return cast("Floats", table.reshape(-1).take(flat, mode="clip"))
