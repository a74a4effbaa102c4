"""IMPALA (Espeholt et al., 2018): V-trace, loss, update rule and agent. ``rollout.py`` has the minibatches.

Sequences may have auto-reset steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

import torch

from tianji_algos.core import Fields
from tianji_algos.distributions import Distribution
from tianji_algos.impala.rollout import IMPALAMinibatch, IMPALARollout
from tianji_algos.impala.settings import IMPALAAgentSettings, IMPALASettings, VTrace
from tianji_algos.normalized_values import LearntValues
from tianji_algos.on_policy import Arrays, PolicyAgent, PolicyEmbryo
from tianji_algos.optim import Diagnostics
from tianji_algos.registry import kernel
from tianji_algos.rollout_observations import Observations

DIAGNOSTICS: Final = ("policy_loss", "value_loss", "entropy", "approx_kl", "rho", "clip_fraction")


@torch.no_grad()
def v_trace(
    how: VTrace,
    ratio: torch.Tensor,
    reward: torch.Tensor,
    value: torch.Tensor,
    terminated: torch.Tensor,
    mask: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute what values and policy are moved towards, given how likely each action is now and was then.

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
        mask: ``[T, N]`` bool; where it is False, both results mean nothing and are 0.

    Returns:
        ``v_s - V(x_s)`` (equation 1), and ``rho_s (r_s + gamma v_{s+1} - V(x_s))``, the weight of the
        policy gradient (section 4.2); ``[T, N]`` each.
    """
    ratio = ratio.where(mask, torch.zeros_like(ratio))
    discount = how.gamma * (mask & ~terminated)
    delta = ratio.clamp(max=how.rho_bar) * (reward + discount * value[1:] - value[:-1])
    trace = discount * how.decay * ratio.clamp(max=how.c_bar)  # gamma c_t
    error = delta
    for t in range(len(delta) - 2, -1, -1):  # remark 1
        error[t].addcmul_(trace[t], error[t + 1])
    following = value[1:].clone()
    following[:-1] += error[1:]  # v_{s+1}
    advantage = ratio.clamp(max=how.pg_rho_bar) * (reward + discount * following - value[:-1])
    return error, advantage


class IMPALALoss:
    """The loss on one minibatch (section 4.2).

    Args:
        values: the network's are normalised; V-trace takes what they stand for.
    """

    def __init__(
        self, distribution: Distribution, settings: IMPALASettings, values: LearntValues | None = None
    ) -> None:
        self._distribution = distribution
        self._settings = settings
        self._how = settings.vtrace
        self._values = values

    def __call__(
        self, policy: torch.Tensor, value: torch.Tensor, batch: IMPALAMinibatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum over the samples, or this learner's part of the mean, and the ``DIAGNOSTICS``.

        Args:
            policy: ``[(T + 1) * B, outputs]``, time first.
            value: ``[(T + 1) * B]``.
            batch: what the outputs are for; it has at least one sample.
        """
        settings, where = self._settings, batch.experience
        log_prob, entropy = self._distribution.evaluate(policy.index_select(0, where), batch.action)
        log_ratio = log_prob.detach() - batch.log_prob
        ratio = log_ratio.exp()
        is_corrected = settings.correction == "vtrace"  # Else as if the current policy had acted.
        ratios = torch.zeros_like(batch.reward)
        ratios.view(-1).index_copy_(0, where, ratio if is_corrected else torch.ones_like(ratio))
        values = value.view(-1, ratios.shape[1])
        returns = values.detach() if self._values is None else self._values.units.restored(values.detach())
        error, advantage = v_trace(self._how, ratios, batch.reward, returns, batch.terminated, batch.mask)
        if self._values is not None:
            self._values.note((returns[:-1] + error).view(-1).index_select(0, where))
            error, advantage = (found / self._values.units.spread for found in (error, advantage))
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
                ratio.clamp(max=self._how.rho_bar).mean(),
                (ratio > self._how.rho_bar).float().mean(),
            )
            diagnostics = torch.stack(means)
        return loss, diagnostics


class IMPALAEmbryo(PolicyEmbryo):
    """Trains an actor-critic on sequences that older policies may have made.

    One pass of the network over a minibatch gives policy, values and the values to bootstrap from; V-trace
    is computed from them, so that its targets are those of the current parameters at every update.
    """

    algorithm: ClassVar[str] = "IMPALA"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[IMPALASettings]] = IMPALASettings
    settings: IMPALASettings

    def _build_derivatives(self, distribution: Distribution) -> Callable[[Any], Diagnostics]:
        """Build the actor-critic loss with V-trace's targets."""
        self._values = LearntValues.of(self.model)
        if self._by_hand:
            return self._from_hand(kernel("IMPALALoss")(distribution, self.settings, self._values))
        return self._in_torch(IMPALALoss(distribution, self.settings, self._values))

    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[IMPALAMinibatch]:
        """Yield the minibatches of all epochs, each in the units of values that the last ended with."""
        if self._values is not None:
            self._values.begin()
        yield from super().minibatches(fragments)

    def _end_epoch(self) -> None:
        """Take in the targets of this pass."""
        if self._values is not None:
            self._values.end_pass(self._learners)

    def _build_rollout(
        self, observations: Observations, memory: Arrays, *, is_recurrent: bool
    ) -> IMPALARollout:
        """Build what shuffles sequences."""
        return IMPALARollout(self.settings, observations, memory, is_recurrent=is_recurrent)


class IMPALAAgent(PolicyAgent):
    """Acts by sampling; records action and log-probability. Values are the learner's to compute."""

    algorithm: ClassVar[str] = "IMPALA"
    settings_type: ClassVar[type[IMPALAAgentSettings]] = IMPALAAgentSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "impala"
