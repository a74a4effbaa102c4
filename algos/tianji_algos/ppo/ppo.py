"""Proximal policy optimisation (Schulman et al., 2017): agent, advantages, rollout, loss and update rule.

The clipped surrogate (equation 7) and half the squared error of the value are simple enough to differentiate
by hand; the network carries the two derivatives backwards. The minibatches of a network that remembers are
whole sequences.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, Spaces
from tianji_algos.distributions import Distribution
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.on_policy import PolicyAgent, PolicyEmbryo, PolicyMinibatch, PolicyRollout
from tianji_algos.optim import remaining
from tianji_algos.ppo.settings import FASTEST, SLOWEST, PPOAgentSettings, PPOSettings
from tianji_algos.rollout_observations import Columns, Indices, Observations, Sequences

Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
DIVERGENCE: Final = DIAGNOSTICS.index("approx_kl")
FACTOR: Final = 1.5
"""How much an adaptive learning rate changes at a time."""
SMALL: Final = np.float32(1e-8)
"""Keeps a division by a spread of 0 finite."""


class PPOAgent(PolicyAgent):
    """Acts by sampling; records action, log-probability and value.

    Values are recorded here because an actor's core has time to spare and the learner's has not.
    """

    algorithm: ClassVar[str] = "PPO"
    settings_type: ClassVar[type[PPOAgentSettings]] = PPOAgentSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "ppo"

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:
        """Record ``action`` as drawn (not clipped), ``log_prob`` and, with a bootstrap row, ``value``."""
        agents = cls.distribution(spaces).agents
        value = FieldSpec("value", np.dtype(np.float32), agents, bootstrap=True)
        return (*super().fields(spaces, settings), value)

    def record_value(self, value: npt.NDArray[np.float32], into: Fields) -> None:
        """Write ``value [N]``."""
        into["value"][...] = value.reshape(into["value"].shape)

    def finish(self, fields: Fields, observation: npt.NDArray[Any]) -> None:
        """Write the value of the observation after the last step."""
        super().finish(fields, observation)
        _, value = self._executor.preview(observation)
        self.record_value(value, {"value": fields["value"][-1]})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOMinibatch(PolicyMinibatch):
    """Samples for one gradient update, ``[B, ...]`` each.

    Attributes:
        value: estimate at the time of acting.
        advantage: how much better than ``value`` the action turned out, normalised.
        target: what the value should have been: advantage (not normalised) plus value.
        outputs: which of the network's outputs are the samples, ``[B]``; None says that all are, in order.
    """

    value: Floats
    advantage: Floats
    target: Floats
    outputs: npt.NDArray[np.intp] | None = None


class PPORollout(PolicyRollout):
    """Samples of a rollout, and the same samples in the order of an epoch."""

    def __init__(self, settings: PPOSettings, observations: Observations) -> None:
        super().__init__(observations)
        self._settings = settings
        self._samples: dict[str, npt.NDArray[Any]] = {}
        self._ordered: dict[str, npt.NDArray[Any]] = {}
        self._size = 0
        self._sizes = np.zeros(1, np.int64)

    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the experience of fragments in, with its advantages."""
        self._observations.gather(fragments)
        experience = [np.flatnonzero(fragment["mask"]) for fragment in fragments]
        self._hold(fragments, experience)
        self._size = sum(len(steps) for steps in experience)
        self._sizes = self._peers.compare(np.array([self._size]))[:, 0]
        start = 0
        for fragment, steps in zip(fragments, experience, strict=True):
            stop = start + len(steps)
            fields = self._fields(fragment)
            self._reserve(fields)
            for name, rows in fields.items():
                np.take(rows, steps, axis=0, out=self._samples[name][start:stop], mode="clip")
            start = stop
        if self._settings.normalize_advantage == "rollout":
            edges = np.array([[0, size] for size in self._sizes])
            self._normalize(self._samples, edges, self._count(self._samples, edges))

    def minibatches(self, rng: np.random.Generator) -> Iterator[PPOMinibatch]:
        """Go through all samples once, in random order, in minibatches of about equal size.

        Those without a sample are left out: all learners know of them.
        """
        order, edges = self._shuffle(rng)
        for name, rows in self._samples.items():
            np.take(rows, order, axis=0, out=self._ordered[name][: self._size], mode="clip")
        totals = self._count(self._ordered, edges)
        if self._settings.normalize_advantage == "minibatch":
            self._normalize(self._ordered, edges, totals)
        for number, (samples, total) in enumerate(zip(self._own(edges), totals.tolist(), strict=True)):
            if total:
                yield self._minibatch(number, samples, total)

    def _minibatch(self, number: int, samples: slice, total: int) -> PPOMinibatch:
        """Put a minibatch together.

        Args:
            number: of the minibatch in its epoch.
            samples: where it is in that order.
            total: its samples over all learners.
        """
        observation, outputs = self._input(number, samples)
        parts = {name: rows[samples] for name, rows in self._ordered.items()}
        return PPOMinibatch(observation=observation, total=total, outputs=outputs, **parts)

    @abstractmethod
    def _hold(self, fragments: Sequence[Fields], experience: Sequence[Indices]) -> None:
        """Copy what the network's input takes beside the observations.

        Args:
            experience: numbers of the steps of each that are samples, of ``T * N``.
        """

    @abstractmethod
    def _shuffle(self, rng: np.random.Generator) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Put the samples in an order and cut it into minibatches.

        Returns:
            Numbers of this learner's samples, all of them; and where in that order each minibatch begins and
            the last ends, of each learner: ``[learners, minibatches + 1]``.
        """

    @abstractmethod
    def _input(self, number: int, samples: slice) -> tuple[Any, Indices | None]:
        """Return the network's input for a minibatch, and which outputs are samples (None: all)."""

    def _own(self, edges: npt.NDArray[np.int64]) -> list[slice]:
        """Return where this learner's part of each minibatch is."""
        return [slice(*edge) for edge in pairwise(edges[self._peers.index].tolist())]

    def _count(
        self,
        columns: Mapping[str, npt.NDArray[Any]],  # noqa: ARG002 - all that is in them are samples here
        edges: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Count the samples of each minibatch over all learners.

        Args:
            edges: where each minibatch begins and the last ends, ``[learners, minibatches + 1]``.
        """
        counts: npt.NDArray[np.int64] = np.diff(edges).sum(axis=0)
        return counts

    def _normalize(
        self,
        columns: Mapping[str, npt.NDArray[Any]],
        edges: npt.NDArray[np.int64],
        totals: npt.NDArray[np.int64],
    ) -> None:
        """Shift and scale advantages to mean 0 and standard deviation 1, each minibatch over all learners.

        Args:
            columns: of this learner's samples; ``advantage`` is written in place. Where there is ``alive``,
                those that are not are no samples, and their advantages come as zeros.
        """
        advantage, slices = columns["advantage"], self._own(edges)
        if self._peers.number == 1 and "alive" not in columns:
            for own in slices:
                if own.start < own.stop:
                    normalize(advantage[own])
            return
        sums = np.array(
            [
                (advantage[own].sum(dtype=np.float64), np.square(advantage[own], dtype=np.float64).sum())
                for own in slices
            ]
        )
        self._peers.add_up(torch.from_numpy(sums))
        mean, mean_square = sums.T / np.maximum(totals, 1)
        spread = np.sqrt(np.maximum(mean_square - mean * mean, 0.0)) + SMALL
        for own, shift, scale in zip(slices, mean.tolist(), spread.tolist(), strict=True):
            advantage[own] -= shift
            advantage[own] /= scale

    def _fields(self, fragment: Fields) -> dict[str, npt.NDArray[Any]]:
        """Compute what a minibatch has of each step, ``[T * N, ...]``."""
        settings = self._settings
        reward, value, terminated, mask = self._returns_of(fragment)
        reward = self.scaled(reward, settings.reward_scale)
        advantage = estimate_advantages(reward, value, terminated, mask, settings.gamma, settings.gae_lambda)
        columns = {
            "action": fragment["action"],
            "log_prob": fragment["log_prob"],
            "value": value[:-1],
            "advantage": advantage,
            "target": advantage + value[:-1],
        }
        return {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in columns.items()}

    def _returns_of(self, fragment: Fields) -> tuple[Floats, Floats, npt.NDArray[Any], npt.NDArray[Any]]:
        """Return reward, value, where nothing follows, and what is experience, as GAE takes them."""
        return fragment["reward"], fragment["value"], fragment["terminated"], fragment["mask"]

    def _reserve(self, like: dict[str, npt.NDArray[Any]]) -> None:
        """Reserve memory for ``_size`` samples; it grows and is never freed."""
        if self._samples and len(self._samples["log_prob"]) >= self._size:
            return
        for memory in (self._samples, self._ordered):
            for name, rows in like.items():
                memory[name] = np.empty((self._size, *rows.shape[1:]), rows.dtype)


class SampleRollout(PPORollout):
    """A rollout whose samples are shuffled one by one: for networks that remember nothing."""

    _rows: Indices
    """Of ``Observations``, one for each sample."""
    _ordered_rows: Indices

    def _hold(self, fragments: Sequence[Fields], experience: Sequence[Indices]) -> None:
        """Record where the observation of each sample is."""
        steps, num_envs = fragments[0]["mask"].shape
        each = (steps + 1) * num_envs
        self._rows = np.concatenate([numbers + k * each for k, numbers in enumerate(experience)])

    def _shuffle(self, rng: np.random.Generator) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Shuffle; minibatches are of equal size, give or take one.

        From each minibatch a learner has a share that is as large as its share of the rollout.
        """
        count = max(1, round(self._sizes.sum() / self._settings.minibatch_size))
        count = min(count, max(1, self._sizes.max()))  # No minibatch is empty.
        order = rng.permutation(self._size)
        self._ordered_rows = np.take(self._rows, order, mode="clip")
        return order, np.linspace(0, self._sizes, count + 1, axis=1).astype(np.int64)

    def _input(self, number: int, samples: slice) -> tuple[Any, None]:  # noqa: ARG002 - where it is will do
        """Return the observations of the samples."""
        return self._observations.take(self._ordered_rows[samples]), None


def normalize(advantage: Floats) -> None:
    """Shift and scale to mean 0 and standard deviation 1, in place."""
    advantage -= advantage.mean()
    spread = np.sqrt(np.dot(advantage, advantage) / np.float32(len(advantage)))
    advantage /= spread + SMALL


class SequenceRollout(PPORollout):
    """A rollout of which columns are shuffled: what one environment did in one fragment.

    Steps that only reset an environment go through the network with the others, and are no samples.
    """

    _columns: Columns
    _widths: npt.NDArray[np.int64]
    """Columns of each learner, ``[learners]``."""
    _is_sample: npt.NDArray[np.bool_]
    _sample: Indices
    """Number of each step's sample, ``[fragments * T * N]``; what it says of the others means nothing."""
    _minibatches: list[tuple[Indices, Indices]]
    """Of this epoch: columns, and which of the network's outputs are samples."""

    def _hold(self, fragments: Sequence[Fields], experience: Sequence[Indices]) -> None:
        """Record what was remembered, and where episodes begin."""
        self._columns = Columns(fragments)
        self._widths = self._peers.compare(np.array([self._columns.number]))[:, 0]
        each = fragments[0]["mask"].size
        self._is_sample = np.zeros(len(fragments) * each, np.bool_)
        for k, steps in enumerate(experience):
            self._is_sample[k * each + steps] = True
        self._sample = np.cumsum(self._is_sample) - 1

    def _shuffle(self, rng: np.random.Generator) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Shuffle the columns; minibatches have equally many of them, give or take one."""
        self._minibatches = []
        samples = []
        for columns in self._columns.minibatches(rng, self._settings.minibatch_size, self._widths):
            steps = self._columns.samples(columns).reshape(-1)
            outputs = np.flatnonzero(self._is_sample[steps])
            samples.append(self._sample[steps[outputs]])
            self._minibatches.append((columns, outputs))
        sizes = self._peers.compare(np.array([len(numbers) for numbers in samples]))
        edges = np.zeros((len(sizes), len(samples) + 1), np.int64)
        np.cumsum(sizes, axis=1, out=edges[:, 1:])
        return np.concatenate(samples), edges

    def _input(self, number: int, samples: slice) -> tuple[Sequences, Indices]:  # noqa: ARG002 - the number will do
        """Return all steps of the columns, and those that are samples."""
        columns, outputs = self._minibatches[number]
        observation = self._observations.take(self._columns.rows(columns, self._columns.steps))
        return self._columns.sequences(columns, observation), outputs


@dataclass
class PPOLoss:
    """The loss on one minibatch.

    Attributes:
        clip_range: epsilon of the clipped surrogate; set anew by its schedule.
        clip_value: clip the value's change by ``clip_range``, too.
    """

    distribution: Distribution
    clip_range: float
    clip_value: bool
    value_coef: float
    entropy_coef: float

    def gradient(self, policy: Floats, value: Floats, batch: PPOMinibatch) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the network's outputs.

        Args:
            policy: ``[B, outputs]``; more rows where ``batch.outputs`` says which are samples.
            value: ``[B]``, likewise.
            batch: what the outputs are for; it has at least one sample.

        Returns:
            Derivatives of the mean over all learners' samples by ``policy`` and by ``value``, 0 where there
            is no sample, and the ``DIAGNOSTICS`` of these samples in order.
        """
        chosen = batch.outputs
        if chosen is None:
            return self._of_samples(policy, value, batch)
        d_policy, d_value = np.zeros_like(policy), np.zeros_like(value)
        d_policy[chosen], d_value[chosen], diagnostics = self._of_samples(
            policy[chosen], value[chosen], batch
        )
        return d_policy, d_value, diagnostics

    def _of_samples(
        self, policy: Floats, value: Floats, batch: PPOMinibatch
    ) -> tuple[Floats, Floats, Floats]:
        """Differentiate by the outputs ``[B, ...]`` that are samples."""
        size = np.float32(len(value))
        log_prob, entropy = self.distribution.evaluate(policy, batch.action)
        log_prob -= batch.log_prob
        ratio = np.exp(log_prob)
        gain = ratio * batch.advantage
        clipped_gain = np.clip(ratio, 1.0 - self.clip_range, 1.0 + self.clip_range)
        is_clipped = clipped_gain != ratio
        clipped_gain *= batch.advantage
        is_active = gain <= clipped_gain  # the minimum is the term that depends on the policy
        d_log_prob = np.where(is_active, gain, np.float32(0.0))
        d_log_prob /= np.float32(-batch.total)
        d_policy = self.distribution.gradient(d_log_prob, -self.entropy_coef / batch.total)

        error, value_loss = self._value_error(value, batch)
        diagnostics = np.array(
            (
                -np.minimum(gain, clipped_gain).mean(),
                value_loss,
                entropy.mean(),
                (ratio - 1.0 - log_prob).mean(),  # Schulman's low-variance estimate of the divergence
                np.count_nonzero(is_clipped) / size,
            ),
            np.float32,
        )
        error *= np.float32(self.value_coef) / np.float32(batch.total)
        return d_policy, error, diagnostics

    def _value_error(self, value: Floats, batch: PPOMinibatch) -> tuple[Floats, float]:
        """Return the error that flows back, ``[B]``, and the mean of half its square."""
        error = value - batch.target
        if not self.clip_value:
            return error, 0.5 * float(np.dot(error, error)) / len(error)
        change = value - batch.value
        clipped_error = batch.value + np.clip(change, -self.clip_range, self.clip_range) - batch.target
        is_worse = np.square(clipped_error) > np.square(error)  # then the clipped, constant, term counts
        loss = 0.5 * float(np.maximum(np.square(clipped_error), np.square(error)).mean())
        error[is_worse] = 0.0
        return error, loss


class PPOEmbryo(PolicyEmbryo):
    """Trains an actor-critic on rollouts with the clipped surrogate loss.

    One epoch of one minibatch, in ``sync`` mode and without normalised advantages, is advantage actor-critic
    (Mnih et al., 2016): all ratios are 1 then, and nothing is clipped.
    """

    algorithm: ClassVar[str] = "PPO"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[PPOSettings]] = PPOSettings
    settings: PPOSettings
    _loss: PPOLoss

    def __init__(self, spaces: Spaces, model: ActorCritic, settings: PPOSettings, seed: int) -> None:
        super().__init__(spaces, model, settings, seed)
        self._adapts = settings.learning_rate_schedule == "adaptive"
        self._diverged = np.zeros(2)
        """Of this epoch, where the learning rate adapts: divergence summed over samples, and their number."""

    def _build_loss(self, distribution: Distribution) -> PPOLoss:
        """Build the clipped surrogate loss."""
        return PPOLoss(
            distribution,
            self.settings.clip_range,
            self.settings.clip_value,
            self.settings.value_coef,
            self.settings.entropy_coef,
        )

    def _build_rollout(self, observations: Observations, *, is_recurrent: bool) -> PPORollout:
        """Build what shuffles samples, or sequences."""
        rollout: type[PPORollout] = SequenceRollout if is_recurrent else SampleRollout
        return rollout(self.settings, observations)

    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[PPOMinibatch]:
        """Yield the minibatches of all epochs; fewer if the policy moves beyond ``target_kl``."""
        limit = self.settings.target_kl
        self._diverged[:] = 0.0
        for minibatch in super().minibatches(fragments):
            yield minibatch
            if self._adapts:
                self._diverged += float(self._latest[DIVERGENCE]) * minibatch.samples, minibatch.samples
            if limit is not None and self._divergence(minibatch) > limit:
                self._end_epoch()
                return

    def _end_epoch(self) -> None:
        """Let an adaptive learning rate follow how far the policy is now from the one that acted."""
        if not self._adapts:
            return
        self._peers.add_up(torch.from_numpy(self._diverged))
        total, samples = self._diverged.tolist()
        divergence, wanted = total / max(samples, 1.0), self.settings.adaptive_kl
        optimizer = self._optimizer
        if divergence > 2.0 * wanted:
            optimizer.learning_rate = max(optimizer.learning_rate / FACTOR, SLOWEST)
        elif divergence < 0.5 * wanted:
            optimizer.learning_rate = min(optimizer.learning_rate * FACTOR, FASTEST)
        self._diverged[:] = 0.0

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return what every update rule does, and an adaptive learning rate."""
        tensors, rest = super().state()
        if self._adapts:
            rest["learning_rate"] = self._optimizer.learning_rate
        return tensors, rest

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, at the learning rate that was reached."""
        super().load_state(tensors, rest)
        if self._adapts:
            self._optimizer.learning_rate = rest.get("learning_rate", self.settings.learning_rate)

    def metrics(self) -> dict[str, float]:
        """Mean losses and diagnostics over the updates since the last call; empty if there were none."""
        means = super().metrics()
        return means and {**means, "clip_range": self._loss.clip_range}

    def schedule(self, env_steps: int) -> None:
        """Set learning rate and clip range for so many env steps seen."""
        if not self._adapts:
            super().schedule(env_steps)
        share = remaining(self.settings, self.settings.clip_range_schedule, env_steps)
        self._loss.clip_range = self.settings.clip_range * share

    def _divergence(self, batch: PPOMinibatch) -> float:
        """Estimate how far the policy has moved, over the samples of all learners in the last minibatch."""
        own = float(self._latest[DIVERGENCE])
        if self._peers.number == 1:
            return own
        divergence = torch.tensor([own * batch.samples / batch.total], dtype=torch.float64)
        self._peers.add_up(divergence)
        return float(divergence)
