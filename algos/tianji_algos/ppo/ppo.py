"""Proximal policy optimisation (Schulman et al., 2017), from a rollout to the step of the optimizer.

It reads from top to bottom: the advantages of a rollout, the loss of a minibatch, the update rule
(``minibatches``: rollout, epochs and minibatches; ``update``: loss, gradient and step), and the agent, which
records log-probabilities and values. This module calls ``rollout_observations`` (observations and the order
of samples), ``normalization`` (running statistics), ``optim`` (the optimizer), and on a CPU
``fast_cpu/ppo.py`` (the derivatives of the loss by hand).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from tianji_algos.core import Fields, Spaces, UpdateResult
from tianji_algos.distributions import Distribution
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.normalization import ValueUnits, normalizer_of
from tianji_algos.on_policy import PolicyAgent, PolicyEmbryo, PolicyMinibatch, Tensors
from tianji_algos.optim import add_gradients
from tianji_algos.ppo.settings import FASTEST, SLOWEST, PPOAgentSettings, PPOSettings
from tianji_algos.registry import kernel
from tianji_algos.rollout_observations import ShuffledSamples, ShuffledSequences
from tianji_algos.schedules import remaining

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
DIVERGENCE: Final = DIAGNOSTICS.index("approx_kl")
FACTOR: Final = 1.5
"""Factor of one change of an adaptive learning rate."""
SMALL: Final = np.float32(1e-8)
"""Keeps a division by a spread of 0 finite."""


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
        reward: ``[T, N, ...]``: a team has a last axis, for its agents; it is 1 long in ``reward``,
            ``terminated`` and ``mask`` where these are the same for all agents.
        value: ``[T + 1, N, ...]``; the last row belongs to the observation after the last step.
        terminated: ``[T, N, ...]``, bool or uint8.
        mask: ``[T, N, ...]``; where it is False the advantage is 0 and nothing flows through.
        gae_lambda: 0 is one-step temporal difference, 1 is Monte Carlo.

    Returns:
        Advantages ``[T, N, ...]``, for every agent that has a value.
    """
    experience = mask.astype(bool)
    delta = np.where(terminated.astype(bool), np.float32(0.0), value[1:])
    delta *= np.float32(gamma)
    delta += reward
    delta -= value[:-1]  # delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
    delta *= experience
    decay = experience * np.float32(gamma * gae_lambda)
    advantage = delta
    carried = np.empty_like(advantage[0])
    for t in range(len(advantage) - 2, -1, -1):
        np.multiply(decay[t], advantage[t + 1], out=carried)
        advantage[t] += carried  # A_t = delta_t + gamma lambda A_{t+1}
    return advantage


def normalize(advantage: Floats) -> None:
    """Shift and scale to mean 0 and standard deviation 1, in place."""
    advantage -= advantage.mean()
    spread = np.sqrt(np.dot(advantage, advantage) / np.float32(len(advantage)))
    advantage /= spread + SMALL


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOMinibatch(PolicyMinibatch):
    """Samples for one gradient update, ``[B, ...]`` each.

    Attributes:
        value: estimate at the time of acting.
        advantage: advantage of the action over ``value``, normalised.
        target: target of the value: advantage (not normalised) plus value.
        uses: env steps of the samples, over all learners.
        outputs: indices of the network's outputs that are samples, ``[B]``; None: all are, in order.
    """

    value: Any
    advantage: Any
    target: Any
    uses: int
    outputs: Any = None


class PPOLoss:
    """The loss on one minibatch (equation 9).

    Attributes:
        clip_range: epsilon; set anew by its schedule.
    """

    def __init__(self, distribution: Distribution, settings: PPOSettings) -> None:
        self.clip_range = settings.clip_range
        self._distribution = distribution
        self._settings = settings

    def __call__(
        self, policy: torch.Tensor, value: torch.Tensor, batch: PPOMinibatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this learner's part of the mean over all samples, and the ``DIAGNOSTICS`` of its own.

        Args:
            policy: ``[B, outputs]``; more rows where ``batch.outputs`` says which are samples.
            value: ``[B]``, likewise.
            batch: the minibatch that the outputs belong to, with at least one sample.
        """
        settings, epsilon = self._settings, self.clip_range
        if batch.outputs is not None:
            policy, value = policy.index_select(0, batch.outputs), value.index_select(0, batch.outputs)
        log_prob, entropy = self._distribution.evaluate(policy, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = log_ratio.exp()  # r_t(theta), equation 6
        clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon)
        gain = torch.minimum(ratio * batch.advantage, clipped * batch.advantage)  # equation 7

        square = (value - batch.target).square()  # (V(s_t) - V_t^targ)^2
        if settings.clip_value:
            near = batch.value + (value - batch.value).clamp(-epsilon, epsilon)
            square = torch.maximum(square, (near - batch.target).square())

        # On a CPU, ``fast_cpu/ppo.py`` computes the derivatives of these terms in place of autograd: a new
        # term goes there too, or needs backend = "torch".
        each = -gain + settings.value_coef * 0.5 * square - settings.entropy_coef * entropy  # equation 9
        with torch.no_grad():
            divergence = ratio - 1.0 - log_ratio  # Schulman's low-variance estimate
            columns = (-gain, 0.5 * square, entropy, divergence, (clipped != ratio).float())
            diagnostics = torch.stack(columns).mean(dim=1)
        return each.sum() / batch.total, diagnostics


class PPOEmbryo(PolicyEmbryo):
    """PPO's update rule: trains an actor-critic on rollouts with the clipped surrogate loss.

    One epoch of one minibatch, in ``sync`` mode and without normalised advantages, is advantage actor-critic
    (Mnih et al., 2016): all ratios are 1 then, and nothing is clipped.

    The host computes advantages and the order of samples, wherever the network is. For a loss in torch a
    rollout goes to the network's device once, which puts it in order; only advantages, which the host may
    normalise in each epoch, go there with every epoch.
    """

    algorithm: ClassVar[str] = "PPO"
    normalizes: ClassVar[bool] = True
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[PPOSettings]] = PPOSettings
    sums_in_double: ClassVar[bool] = False
    """Whether sums of advantages are in double precision with one learner, too."""
    settings: PPOSettings
    _loss: PPOLoss
    _order: ShuffledSamples | ShuffledSequences

    def __init__(
        self,
        spaces: Spaces,
        model: ActorCritic,
        settings: PPOSettings,
        seed: int,
        distribution: Distribution | None = None,
    ) -> None:
        super().__init__(spaces, model, settings, seed, distribution)
        self._adapts = settings.learning_rate_schedule == "adaptive"
        self._began_at = settings.learning_rate
        self._diverged: float | torch.Tensor = 0.0
        self._diverged_samples = 0
        """Number of samples whose divergences ``_diverged`` sums in this epoch, where the rate adapts."""
        self._order = (ShuffledSequences if self._is_recurrent else ShuffledSamples)(self._observations)
        self._size = 0
        """Samples of this learner in the rollout."""
        self._samples: dict[str, Array] = {}
        self._ordered: dict[str, Array] = {}
        """Samples in the order of an epoch."""
        self._resident: dict[str, Any] = {}
        """Samples on the device."""
        self._epoch: Mapping[str, Any] = {}
        """Samples of this epoch in its order, on the loss's device."""
        self._explained_variance = math.nan

    def _build_loss(self) -> None:
        """Build the clipped surrogate loss."""
        loss = kernel("PPOLoss") if self._by_hand else PPOLoss
        self._loss = loss(self._distribution, self.settings)

    # A rollout, its epochs and their minibatches.

    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[PPOMinibatch]:
        """Yield the minibatches of all epochs; fewer if the policy moves beyond ``target_kl``."""
        limit = self.settings.target_kl
        self._normalizer.update(fragments, self._learners)
        self._gather(fragments)
        self._diverged, self._diverged_samples = 0.0, 0
        for _ in range(self.settings.epochs):
            for minibatch in self._shuffled():
                yield minibatch  # The learner calls `update` here; `_latest` is its result.
                if self._adapts:
                    latest = self._latest[DIVERGENCE]
                    own = latest if isinstance(latest, torch.Tensor) else float(latest)
                    self._diverged += own * minibatch.samples
                    self._diverged_samples += minibatch.samples
                if limit is not None and self._divergence(minibatch) > limit:
                    self._end_epoch()
                    return
            self._end_epoch()

    def _gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the samples of fragments in, with their advantages."""
        self._observations.gather(fragments)
        samples = self._order.hold(fragments, self._learners)
        self._size = sum(len(numbers) for numbers in samples)
        start = 0
        for fragment, numbers in zip(fragments, samples, strict=True):
            stop = start + len(numbers)
            columns = self._columns_of(fragment)
            self._reserve(columns)
            for name, rows in columns.items():
                np.take(rows, numbers, axis=0, out=self._samples[name][start:stop], mode="clip")
            start = stop
        whole = slice(0, self._size)
        target, advantage = self._samples["target"][whole], self._samples["advantage"][whole]
        spread = float(target.var()) if target.size else 0.0
        self._explained_variance = 1.0 - float(advantage.var()) / spread if spread else math.nan
        self._normalize_values()
        if self.settings.normalize_advantage == "rollout":
            self._normalize(advantage, [whole], self._learners.total(np.array([self._size])))
        if isinstance(self._memory, Tensors):
            resident = {name: rows[whole] for name, rows in self._samples.items() if name != "advantage"}
            self._resident = {name: self._memory.put(rows) for name, rows in resident.items()}

    def _columns_of(self, fragment: Fields) -> dict[str, Array]:
        """Compute the minibatch fields of each step, ``[T * N, ...]``; for a team ``[T * N * M, ...]``."""
        settings = self.settings
        reward, value, terminated, mask = self._returns_of(fragment)
        reward = self._normalizer.rewards(reward) * np.float32(settings.reward_scale)
        advantage = estimate_advantages(reward, value, terminated, mask, settings.gamma, settings.gae_lambda)
        columns = {
            "action": fragment["action"],
            "log_prob": fragment["log_prob"],
            "value": value[:-1],
            "advantage": advantage,
            "target": advantage + value[:-1],
        }
        return {name: rows.reshape(-1, *rows.shape[advantage.ndim :]) for name, rows in columns.items()}

    def _returns_of(self, fragment: Fields) -> tuple[Floats, Floats, Array, Array]:
        """Return reward, value, terminated and mask, as ``estimate_advantages`` takes them."""
        return fragment["reward"], fragment["value"], fragment["terminated"], fragment["mask"]

    def _reserve(self, like: dict[str, Array]) -> None:
        """Reserve memory for ``_size`` samples; it grows and is never freed."""
        if self._samples and len(self._samples["log_prob"]) >= self._size:
            return
        for memory in (self._samples, self._ordered):
            for name, rows in like.items():
                memory[name] = np.empty((self._size, *rows.shape[1:]), rows.dtype)

    def _normalize_values(self) -> None:
        """Merge the rollout's targets; bring values, targets and advantages into the network's units."""
        if self._normalizer.values is None:
            return
        whole = slice(0, self._size)
        self._normalizer.update_values(self._samples["target"][whole], self._learners)
        units = ValueUnits.of(self._normalizer)
        for name in ("value", "target"):
            rows = self._samples[name][whole]
            rows[...] = units.normalized(rows)
        self._samples["advantage"][whole] /= np.float32(units.spread)

    def _shuffled(self) -> Iterator[PPOMinibatch]:
        """Go through all samples once, in random order, in minibatches of about equal size.

        Every learner yields equally many: it has a share of each minibatch, which may be empty. All learners
        leave out minibatches without a sample: they have compared their counts.
        """
        order, edges = self._order.shuffle(self._rng, self.settings.minibatch_size)
        for name, rows in self._samples.items():
            if name not in self._resident:
                np.take(rows, order, axis=0, out=self._ordered[name][: self._size], mode="clip")
        own = [slice(*edge) for edge in pairwise(edges[self._learners.index].tolist())]
        totals = np.diff(edges).sum(axis=0)
        advantage = self._ordered["advantage"][: self._size]
        if self.settings.normalize_advantage == "minibatch":
            self._normalize(advantage, own, totals)
        self._epoch = self._ordered
        if self._resident:
            there = self._memory.put(order)
            resident = {name: self._memory.take(rows, there) for name, rows in self._resident.items()}
            self._epoch = {**resident, "advantage": self._memory.put(advantage)}
        for number, (samples, total) in enumerate(zip(own, totals.tolist(), strict=True)):
            if total:
                observation, outputs = self._order.input(number, samples)
                yield PPOMinibatch(
                    observation=observation,
                    total=total,
                    uses=int(self._order.env_steps[number]),
                    outputs=None if outputs is None else self._memory.put(outputs),
                    **{name: rows[samples] for name, rows in self._epoch.items()},
                )

    def _normalize(self, advantage: Floats, own: Sequence[slice], totals: Integers) -> None:
        """Shift and scale advantages to mean 0 and standard deviation 1, in place.

        Args:
            own: this learner's part of each minibatch.
            totals: samples of each minibatch over all learners.
        """
        if self._learners.number == 1 and not self.sums_in_double:
            for part in own:
                if part.start < part.stop:
                    normalize(advantage[part])
            return
        sums = np.array(
            [
                (advantage[part].sum(dtype=np.float64), np.square(advantage[part], dtype=np.float64).sum())
                for part in own
            ]
        )
        self._learners.add_up(torch.from_numpy(sums))
        mean, mean_square = sums.T / np.maximum(totals, 1)
        spread = np.sqrt(np.maximum(mean_square - mean * mean, 0.0)) + SMALL
        for part, shift, scale in zip(own, mean.tolist(), spread.tolist(), strict=True):
            advantage[part] -= shift
            advantage[part] /= scale

    # The loss of a minibatch, its gradient, and the step of the optimizer.

    def update(self, batch: PPOMinibatch) -> UpdateResult:
        """Make one step of the optimizer; each env step is a use."""
        self._latest = self._differentiate(batch)
        add_gradients(self._gradient, self._learners)
        self._means.add(self._latest, self._step(self._optimizer))
        return UpdateResult(batch.uses)

    def _divergence(self, batch: PPOMinibatch) -> float:
        """Estimate how far the policy has moved, over the samples of all learners in the last minibatch."""
        own = float(self._latest[DIVERGENCE])
        if self._learners.number == 1:
            return own
        divergence = torch.tensor([own * batch.samples / batch.total], dtype=torch.float64)
        self._learners.add_up(divergence)
        return float(divergence)

    # Learning rate and clip range, what is reported, and what is saved.

    def _end_epoch(self) -> None:
        """Adapt an adaptive learning rate to the divergence between the policy and the one that acted."""
        if not self._adapts:
            return
        sums = torch.tensor([float(self._diverged), self._diverged_samples], dtype=torch.float64)
        self._learners.add_up(sums)
        total, samples = sums.tolist()
        divergence, wanted = total / max(samples, 1.0), self.settings.adaptive_kl
        optimizer = self._optimizer
        if divergence > 2.0 * wanted:
            optimizer.learning_rate = max(optimizer.learning_rate / FACTOR, SLOWEST)
        elif divergence < 0.5 * wanted:
            optimizer.learning_rate = min(optimizer.learning_rate * FACTOR, FASTEST)
        self._diverged, self._diverged_samples = 0.0, 0

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state of every update rule, and an adaptive learning rate."""
        tensors, rest = super().state()
        if self._adapts:
            rest["learning_rate"] = self._optimizer.learning_rate
            rest["began_at"] = self._began_at
        return tensors, rest

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, at the learning rate that was reached."""
        super().load_state(tensors, rest)
        if self._adapts:
            self._optimizer.learning_rate = rest.get("learning_rate", self.settings.learning_rate)
            self._began_at = rest.get("began_at", self.settings.learning_rate)

    def adopt_settings(self, settings: PPOSettings) -> None:  # type: ignore[override]
        """Train by these settings from now on; a new ``learning_rate`` restarts an adaptive one.

        It is new if the current rate began at another value, also before a resume: see ``load_state``.
        """
        if self._adapts and settings.learning_rate != self._began_at:
            self._optimizer.learning_rate = self._began_at = settings.learning_rate
        super().adopt_settings(settings)

    def metrics(self) -> dict[str, float]:
        """Mean losses and diagnostics over the updates since the last call; empty if there were none.

        ``explained_variance`` is 1 - Var(target - value) / Var(target) of this learner's samples of the last
        rollout; NaN where all targets are alike.
        """
        means, clip_range = super().metrics(), self._loss.clip_range
        return means and {**means, "clip_range": clip_range, "explained_variance": self._explained_variance}

    def schedule(self, env_steps: int) -> None:
        """Set learning rate and clip range for so many env steps seen."""
        if not self._adapts:
            super().schedule(env_steps)
        settings = self.settings
        share = remaining(settings.clip_range_schedule, settings.schedule_steps, env_steps)
        self._loss.clip_range = settings.clip_range * share


class PPOAgent(PolicyAgent):
    """Acts by sampling; records action, log-probability and value.

    Values are recorded here because an actor's core has time to spare and the learner's has not.
    """

    algorithm: ClassVar[str] = "PPO"
    normalizes: ClassVar[bool] = True
    settings_type: ClassVar[type[PPOAgentSettings]] = PPOAgentSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "ppo"

    def __init__(
        self, spaces: Spaces, model: ActorCritic, settings: BaseModel, num_envs: int, seed: int
    ) -> None:
        super().__init__(spaces, model, settings, num_envs, seed)
        self._units: ValueUnits | None = None
        """Units of the network's values; None if they are returns."""
        normalizer = normalizer_of(model)
        if normalizer is not None and normalizer.values is not None:
            self._units, self._place = ValueUnits.of(normalizer), normalizer.place(normalizer.values)

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:
        """Record ``action`` as drawn, ``log_prob`` and, with a bootstrap row, ``value``."""
        agents = cls.distribution(spaces, settings).agents
        value = FieldSpec("value", np.dtype(np.float32), agents, bootstrap=True)
        return (*super().fields(spaces, settings), value)

    def record_value(self, value: npt.NDArray[np.float32], into: Fields) -> None:
        """Write ``value [N]``, restored to returns where the network's values are normalised."""
        into["value"][...] = value.reshape(into["value"].shape)
        if self._units is not None:
            into["value"][...] = self._units.restored(into["value"])

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        """Act with these parameters from now on, and with the statistics of values among them."""
        super().adopt(parameters)
        if self._units is not None:
            self._units = ValueUnits.from_moments(*parameters[self._place].tolist())

    def finish(self, fields: Fields, observation: npt.NDArray[Any]) -> None:
        """Write the value of the observation after the last step."""
        super().finish(fields, observation)
        _, value = self._executor.preview(observation)
        self.record_value(value, {"value": fields["value"][-1]})
