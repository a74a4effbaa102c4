"""IMPALA (Espeholt et al., 2018), from a rollout to the step of the optimizer.

It reads from top to bottom: V-trace, the loss of a minibatch, the update rule (``minibatches``: rollout,
epochs and minibatches of whole sequences; ``update``: loss, gradient and step), and the agent. Sequences may
have auto-reset steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Fields, Spaces, UpdateResult
from tianji_algos.distributions import Distribution
from tianji_algos.impala.settings import IMPALAAgentSettings, IMPALASettings
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.normalization import ValueUnits
from tianji_algos.on_policy import PolicyAgent, PolicyEmbryo, PolicyMinibatch
from tianji_algos.optim import add_gradients
from tianji_algos.registry import kernel
from tianji_algos.rollout_observations import Columns, Indices

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "rho", "clip_fraction")
Floats = npt.NDArray[np.float32]
_RECORDED: Final = ("action", "log_prob", "reward", "terminated", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class IMPALAMinibatch(PolicyMinibatch):
    """Sequences of T steps for one gradient update, B of them.

    Attributes:
        observation: T + 1 rows, the last for the observation that the last step led to:
            ``[(T + 1) * B, ...]``, time first, or ``Sequences``.
        experience: where the samples lie in ``[T, B]``, as flat indices.
        reward: ``[T, B]``.
        terminated: ``[T, B]`` bool.
        mask: ``[T, B]`` bool: the step is experience.
    """

    experience: Any
    reward: Any
    terminated: Any
    mask: Any


@torch.no_grad()
def v_trace(
    settings: IMPALASettings,
    ratio: torch.Tensor,
    reward: torch.Tensor,
    value: torch.Tensor,
    terminated: torch.Tensor,
    mask: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute V-trace's value errors and policy-gradient weights from the actions' probability ratios.

    The step after an episode's end only resets the environment: ``mask`` is False there, and nothing flows
    through it. The observation it starts from is the ended episode's last one, so ``value[t + 1]`` bootstraps
    a truncated step as it does any other; a terminated step has nothing to bootstrap from.

    Args:
        ratio: ``[T, N]``, probability of each action under the current policy over that under the policy
            that acted.
        reward: ``[T, N]``.
        value: ``[T + 1, N]`` of the current network; the last row belongs to the observation after the
            last step.
        terminated: ``[T, N]`` bool.
        mask: ``[T, N]`` bool; where it is False, both results are 0 and mean nothing.

    Returns:
        ``v_s - V(x_s)`` (equation 1), and ``rho_s (r_s + gamma v_{s+1} - V(x_s))``, the weight of the
        policy gradient (section 4.2); ``[T, N]`` each.
    """
    ratio = ratio.where(mask, torch.zeros_like(ratio))
    discount = settings.gamma * (mask & ~terminated)
    delta = ratio.clamp(max=settings.rho_bar) * (reward + discount * value[1:] - value[:-1])
    trace = discount * settings.vtrace_lambda * ratio.clamp(max=settings.c_bar)  # gamma c_t
    error = delta
    for t in range(len(delta) - 2, -1, -1):  # remark 1
        error[t].addcmul_(trace[t], error[t + 1])
    following = value[1:].clone()
    following[:-1] += error[1:]  # v_{s+1}
    advantage = ratio.clamp(max=settings.pg_rho_bar) * (reward + discount * following - value[:-1])
    return error, advantage


class IMPALALoss:
    """The loss on one minibatch (section 4.2).

    Where values are normalised, V-trace restores returns from the network's values. Each call then notes its
    targets, on the network's device: an update reads nothing to the host, and learners all-reduce once in a
    pass over a rollout.

    Args:
        units: units of the network's values in this pass; None if they are returns.
    """

    def __init__(
        self, distribution: Distribution, settings: IMPALASettings, units: ValueUnits | None = None
    ) -> None:
        self._distribution = distribution
        self._settings = settings
        self.begin_pass(units)

    def begin_pass(self, units: ValueUnits | None) -> None:
        """Restore returns by these units from now on, and forget the targets."""
        self._units = units
        self._noted: list[Floats | torch.Tensor] = []

    def targets(self) -> Floats:
        """Collect the targets of this pass so far on the host, as returns, ``[K]``."""
        if not self._noted:
            return np.empty(0, np.float32)
        return torch.cat([torch.as_tensor(target) for target in self._noted]).cpu().numpy()

    def __call__(
        self, policy: torch.Tensor, value: torch.Tensor, batch: IMPALAMinibatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum over the samples, or this learner's part of the mean, and the ``DIAGNOSTICS``.

        Args:
            policy: ``[(T + 1) * B, outputs]``, time first.
            value: ``[(T + 1) * B]``.
            batch: the minibatch that the outputs belong to, with at least one sample.
        """
        settings, where, units = self._settings, batch.experience, self._units
        log_prob, entropy = self._distribution.evaluate(policy.index_select(0, where), batch.action)
        log_ratio = log_prob.detach() - batch.log_prob
        ratio = log_ratio.exp()
        is_corrected = settings.correction == "vtrace"  # Else as if the current policy had acted.
        ratios = torch.zeros_like(batch.reward)
        ratios.view(-1).index_copy_(0, where, ratio if is_corrected else torch.ones_like(ratio))
        values = value.view(-1, ratios.shape[1])
        returns = values.detach() if units is None else units.restored(values.detach())
        error, advantage = v_trace(settings, ratios, batch.reward, returns, batch.terminated, batch.mask)
        if units is not None:
            self._noted.append((returns[:-1] + error).view(-1).index_select(0, where))
            error, advantage = error / units.spread, advantage / units.spread
        target = values[:-1].detach() + error  # v_s
        policy_loss = -(advantage.view(-1).index_select(0, where) * log_prob).sum()
        value_loss = 0.5 * (target - values[:-1]).square().sum()
        loss = policy_loss + settings.value_coef * value_loss - settings.entropy_coef * entropy.sum()
        if settings.reduction == "mean":
            loss = loss / batch.total
        with torch.no_grad():
            means = (
                policy_loss / batch.samples,
                value_loss / batch.samples,
                entropy.mean(),
                (ratio - 1.0 - log_ratio).mean(),  # Schulman's low-variance estimate of the divergence
                ratio.clamp(max=settings.rho_bar).mean(),
                (ratio > settings.rho_bar).float().mean(),
            )
            diagnostics = torch.stack(means)
        return loss, diagnostics


class IMPALAEmbryo(PolicyEmbryo):
    """IMPALA's update rule: trains an actor-critic on sequences that older policies may have made.

    One pass of the network over a minibatch gives policy, values and the values to bootstrap from. V-trace
    uses them, so that its targets are those of the current parameters at every update. Sequences are the T
    steps of each environment in each fragment; their recorded fields go to the network's device once.
    """

    algorithm: ClassVar[str] = "IMPALA"
    normalizes: ClassVar[bool] = True
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[IMPALASettings]] = IMPALASettings
    settings: IMPALASettings
    _loss: IMPALALoss
    _columns: Columns
    _widths: npt.NDArray[np.int64]
    """Columns of each learner, ``[learners]``."""

    def __init__(self, spaces: Spaces, model: ActorCritic, settings: IMPALASettings, seed: int) -> None:
        super().__init__(spaces, model, settings, seed)
        self._recorded: dict[str, npt.NDArray[Any]] = {}
        self._held: dict[str, Any] = {}
        """The recorded fields as minibatches take them: arrays, or tensors on the network's device."""

    def _build_loss(self) -> None:
        """Build the actor-critic loss with V-trace's targets."""
        loss = kernel("IMPALALoss") if self._by_hand else IMPALALoss
        self._loss = loss(self._distribution, self.settings, self._units())

    def _units(self) -> ValueUnits | None:
        """Read the units of values from the statistics, which a checkpoint or other groups may change."""
        return None if self._normalizer.values is None else ValueUnits.of(self._normalizer)

    # A rollout, its epochs and their minibatches.

    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[IMPALAMinibatch]:
        """Yield the minibatches of all epochs; each epoch uses the value units at the end of the last."""
        self._normalizer.update(fragments, self._learners)
        self._gather(fragments)
        for _ in range(self.settings.epochs):
            self._loss.begin_pass(self._units())
            yield from self._shuffled()
            self._normalizer.update_values(self._loss.targets(), self._learners)

    def _gather(self, fragments: Sequence[Fields]) -> None:
        """Copy the sequences of fragments in."""
        self._observations.gather(fragments)
        self._columns = Columns(fragments)
        shape = self._columns.steps, self._columns.number
        for name in _RECORDED:
            fields = [fragment[name] for fragment in fragments]
            memory = self._recorded.get(name)
            if memory is None or memory.shape[:2] != shape:
                dtype = np.dtype(np.bool_) if name in ("terminated", "mask") else fields[0].dtype
                memory = np.empty((*shape, *fields[0].shape[2:]), dtype)
                self._recorded[name] = memory
            np.concatenate(fields, axis=1, out=memory, casting="unsafe")
        reward = self._recorded["reward"]
        reward[...] = self._normalizer.rewards(reward) * np.float32(self.settings.reward_scale)
        self._held = {name: self._memory.put(field) for name, field in self._recorded.items()}
        self._widths = self._learners.compare(np.array([self._columns.number]))[:, 0]

    def _shuffled(self) -> Iterator[IMPALAMinibatch]:
        """Go through all sequences once, in random order, in minibatches of equal size (give or take one).

        Every learner yields equally many: it has a share of each minibatch, which may be empty. All learners
        leave out minibatches without experience: they have compared their counts.
        """
        shares = self._columns.minibatches(self._rng, self.settings.minibatch_size, self._widths)
        samples = np.array([np.count_nonzero(self._recorded["mask"][:, share]) for share in shares])
        totals = self._learners.total(samples)
        for share, total in zip(shares, totals.tolist(), strict=True):
            if total:
                yield self._minibatch(share, total)

    def _minibatch(self, columns: Indices, total: int) -> IMPALAMinibatch:
        """Build a minibatch of some of the sequences, side by side."""
        memory = self._memory
        chosen = memory.put(columns)
        part = {name: memory.take(field, chosen, axis=1) for name, field in self._held.items()}
        experience = memory.put(np.flatnonzero(self._recorded["mask"][:, columns]))
        rows = self._columns.rows(columns, self._columns.steps + 1)
        observation: Any
        if self._is_recurrent:
            observation = self._columns.sequences(columns, self._observations.take(rows))
        else:
            observation = self._observations.take(rows.reshape(-1))
        action, log_prob = (
            memory.take(part[name].reshape(-1, *part[name].shape[2:]), experience)
            for name in ("action", "log_prob")
        )
        return IMPALAMinibatch(
            observation=observation,
            experience=experience,
            action=action,
            log_prob=log_prob,
            reward=part["reward"],
            terminated=part["terminated"],
            mask=part["mask"],
            total=total,
        )

    # The loss of a minibatch, its gradient, and the step of the optimizer.

    def update(self, batch: IMPALAMinibatch) -> UpdateResult:
        """Make one step of the optimizer."""
        self._latest = self._differentiate(batch)
        add_gradients(self._gradient, self._learners)
        self._means.add(self._latest, self._step(self._optimizer))
        return UpdateResult(batch.total)


class IMPALAAgent(PolicyAgent):
    """Acts by sampling; records action and log-probability. The learner computes values."""

    algorithm: ClassVar[str] = "IMPALA"
    normalizes: ClassVar[bool] = True
    settings_type: ClassVar[type[IMPALAAgentSettings]] = IMPALAAgentSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "impala"
