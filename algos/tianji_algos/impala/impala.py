"""IMPALA (Espeholt et al., 2018): agent, V-trace, loss, rollout and update rule.

The targets of V-trace are constants, so the rest of the loss (section 4.2) is simple enough to differentiate
by hand; the network carries the two derivatives backwards. Sequences may have auto-reset steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Fields
from tianji_algos.distributions import Distribution
from tianji_algos.impala.settings import IMPALAAgentSettings, IMPALASettings
from tianji_algos.on_policy import PolicyAgent, PolicyEmbryo, PolicyMinibatch, PolicyRollout
from tianji_algos.rollout_observations import Columns, Indices, Observations

Floats = npt.NDArray[np.float32]

_RECORDED: Final = ("action", "log_prob", "reward", "terminated", "mask")

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "rho", "clip_fraction")


class IMPALAAgent(PolicyAgent):
    """Acts by sampling; records action and log-probability. Values are the learner's to compute."""

    algorithm: ClassVar[str] = "IMPALA"
    settings_type: ClassVar[type[IMPALAAgentSettings]] = IMPALAAgentSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "impala"


@dataclass(frozen=True)
class VTrace:
    """What values and policy are moved towards, given how likely each action is now and was then.

    The step after an episode's end only resets the environment: ``mask`` is False there, and nothing flows
    through it. The observation it starts from is the ended episode's last one, so ``value[t + 1]`` bootstraps
    a truncated step as it does any other; a terminated step has nothing to bootstrap from.

    Attributes:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IMPALAMinibatch(PolicyMinibatch):
    """Sequences of T steps for one gradient update, B of them.

    Attributes:
        observation: of T + 1 rows, the last for what the last step led to: ``[(T + 1) * B, ...]``, time
            first, or ``Sequences``.
        experience: where the samples lie in ``[T, B]``, as flat indices.
        reward: ``[T, B]``.
        terminated: ``[T, B]`` bool.
        mask: ``[T, B]`` bool: the step is experience.
    """

    experience: npt.NDArray[np.intp]
    reward: Floats
    terminated: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class IMPALALoss:
    """The loss on one minibatch.

    Attributes:
        is_corrected: for how likely the actions were; else as if the current policy had acted.
        is_mean: over all learners' samples; else the sum.
    """

    distribution: Distribution
    vtrace: VTrace
    is_corrected: bool
    value_coef: float
    entropy_coef: float
    is_mean: bool

    def gradient(
        self, policy: Floats, value: Floats, batch: IMPALAMinibatch
    ) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the network's outputs.

        Args:
            policy: ``[(T + 1) * B, outputs]``, time first.
            value: ``[(T + 1) * B]``.
            batch: what the outputs are for; it has at least one sample.

        Returns:
            Derivatives by ``policy`` and by ``value``, 0 where there is no experience, and the
            ``DIAGNOSTICS`` in order.
        """
        where, count = batch.experience, np.float32(batch.samples)
        log_prob, entropy = self.distribution.evaluate(np.take(policy.T, where, axis=1).T, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = np.exp(log_ratio)
        rows = np.zeros_like(batch.reward)
        rows.reshape(-1)[where] = ratio if self.is_corrected else np.float32(1.0)
        error, advantage = self.vtrace(
            rows, batch.reward, value.reshape(-1, rows.shape[1]), batch.terminated, batch.mask
        )
        gain = advantage.reshape(-1)[where]
        scale = 1.0 / batch.total if self.is_mean else 1.0
        d_log_prob = gain * np.float32(-scale)
        d_policy = np.zeros((policy.shape[1], len(policy)), np.float32)
        d_policy[:, where] = self.distribution.gradient(d_log_prob, -self.entropy_coef * scale).T
        d_value = np.zeros(len(value), np.float32)
        np.multiply(error.reshape(-1), np.float32(-self.value_coef * scale), out=d_value[: error.size])
        diagnostics = np.array(
            (
                -np.dot(gain, log_prob) / count,
                0.5 * np.square(error).sum() / count,
                entropy.mean(),
                (ratio - 1.0 - log_ratio).mean(),  # Schulman's low-variance estimate of the divergence
                np.minimum(ratio, np.float32(self.vtrace.rho_bar)).mean(),
                np.count_nonzero(ratio > self.vtrace.rho_bar) / count,
            ),
            np.float32,
        )
        return d_policy.T, d_value, diagnostics


class IMPALARollout(PolicyRollout):
    """Sequences of a rollout: the T steps of each environment in each fragment.

    Args:
        is_recurrent: the network remembers, and takes ``Sequences``.
    """

    _columns: Columns
    _widths: npt.NDArray[np.int64]
    """Columns of each learner, ``[learners]``."""

    def __init__(self, settings: IMPALASettings, observations: Observations, *, is_recurrent: bool) -> None:
        super().__init__(observations)
        self._settings = settings
        self._is_recurrent = is_recurrent
        self._recorded: dict[str, npt.NDArray[Any]] = {}

    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the sequences of fragments in."""
        self._observations.gather(fragments)
        self._columns = Columns(fragments)
        shape = self._columns.steps, self._columns.number
        for name in _RECORDED:
            fields = [fragment[name] for fragment in fragments]
            memory = self._recorded.get(name)
            if memory is None or memory.shape[:2] != shape:
                memory = np.empty((*shape, *fields[0].shape[2:]), fields[0].dtype)
                self._recorded[name] = memory
            np.concatenate(fields, axis=1, out=memory)
        reward = self._recorded["reward"]
        reward[...] = self.scaled(reward, self._settings.reward_scale)
        self._widths = self._peers.compare(np.array([self._columns.number]))[:, 0]

    def minibatches(self, rng: np.random.Generator) -> Iterator[IMPALAMinibatch]:
        """Go through all sequences once, in random order, in minibatches of as many (give or take one).

        Those that hold no experience are left out: all learners know of them.
        """
        shares = self._columns.minibatches(rng, self._settings.minibatch_size, self._widths)
        samples = np.array([np.count_nonzero(self._recorded["mask"][:, share]) for share in shares])
        totals = self._peers.compare(samples).sum(axis=0)
        for share, total in zip(shares, totals.tolist(), strict=True):
            if total:
                yield self._minibatch(share, total)

    def _minibatch(self, columns: Indices, total: int) -> IMPALAMinibatch:
        """Put some of the sequences side by side."""
        part = {name: np.take(field, columns, axis=1) for name, field in self._recorded.items()}
        mask = part["mask"].astype(bool)
        experience = np.flatnonzero(mask)
        rows = self._columns.rows(columns, self._columns.steps + 1)
        observation: Any
        if self._is_recurrent:
            observation = self._columns.sequences(columns, self._observations.take(rows))
        else:
            observation = self._observations.take(rows.reshape(-1))
        action, log_prob = (
            part[name].reshape(-1, *part[name].shape[2:])[experience] for name in ("action", "log_prob")
        )
        return IMPALAMinibatch(
            observation=observation,
            experience=experience,
            action=action,
            log_prob=log_prob,
            reward=part["reward"],
            terminated=part["terminated"].astype(bool),
            mask=mask,
            total=total,
        )


class IMPALAEmbryo(PolicyEmbryo):
    """Trains an actor-critic on sequences that older policies may have made.

    One pass of the network over a minibatch gives policy, values and the values to bootstrap from; V-trace
    is computed from them, so that its targets are those of the current parameters at every update.
    """

    algorithm: ClassVar[str] = "IMPALA"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[IMPALASettings]] = IMPALASettings
    settings: IMPALASettings

    def _build_loss(self, distribution: Distribution) -> IMPALALoss:
        """Build the actor-critic loss with V-trace's targets."""
        settings = self.settings
        return IMPALALoss(
            distribution=distribution,
            vtrace=VTrace(
                gamma=settings.gamma,
                rho_bar=settings.rho_bar,
                c_bar=settings.c_bar,
                pg_rho_bar=settings.pg_rho_bar,
                decay=settings.vtrace_lambda,
            ),
            is_corrected=settings.correction == "vtrace",
            value_coef=settings.value_coef,
            entropy_coef=settings.entropy_coef,
            is_mean=settings.reduction == "mean",
        )

    def _build_rollout(self, observations: Observations, *, is_recurrent: bool) -> IMPALARollout:
        """Build what shuffles sequences."""
        return IMPALARollout(self.settings, observations, is_recurrent=is_recurrent)
