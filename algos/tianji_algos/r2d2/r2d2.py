"""R2D2 (Kapturowski et al., 2019), DQN with a recurrent network.

It reads from top to bottom: rescaled values and targets, the update rule (``update``: values, targets, loss,
priorities, gradient and step), and the agent. The loss is that of ``dqn/dqn.py``.

A replay gives successive steps of one environment, and the network's recorded state before the first. Both
networks go through the burn-in from that state, and the steps to learn from begin with their states after it.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
import torch

from tianji_algos.action_mask import MaskReader
from tianji_algos.batch import UnrollBatch
from tianji_algos.core import Spaces, UnrollEmbryo, UpdateResult
from tianji_algos.device import Exchange
from tianji_algos.dqn.dqn import DIAGNOSTICS, EpsilonGreedyAgent, bootstrap, td_loss
from tianji_algos.models.q_network import count_actions
from tianji_algos.models.recurrent import RecurrentQNetwork
from tianji_algos.normalization import Normalizer
from tianji_algos.optim import OptimizedEmbryo, TargetNetwork, add_gradients
from tianji_algos.r2d2.settings import R2D2AgentSettings, R2D2Settings

LINEAR: Final = 1e-3
"""Factor of the linear part of rescaled values (epsilon of Kapturowski et al., 2019, equation 2)."""


def rescale(value: torch.Tensor) -> torch.Tensor:
    """Compute ``h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x`` (equation 2)."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + LINEAR * value


def restore(rescaled: torch.Tensor) -> torch.Tensor:
    """Compute the inverse of ``rescale`` (Pohlen et al., 2018, proposition A.2)."""
    root = (1.0 + 4.0 * LINEAR * (rescaled.abs() + 1.0 + LINEAR)).sqrt()
    return rescaled.sign() * (((root - 1.0) / (2.0 * LINEAR)).square() - 1.0)


def n_step_targets(
    reward: torch.Tensor, discount: torch.Tensor, value: torch.Tensor, goes_on: torch.Tensor, n_step: int
) -> torch.Tensor:
    """Compute ``r_t + gamma r_t+1 + ... + gamma^n V_t+n``, with fewer rewards where an episode or all ends.

    Args:
        reward: reward of each step, ``[L, B]``.
        discount: ``gamma``, or 0 where the step terminated the episode, ``[L, B]``.
        value: value of the observation that each step led to, ``[L, B]``.
        goes_on: the next step is of the same episode, ``[L - 1, B]`` bool.
    """
    target = reward + discount * value
    for _ in range(min(n_step, len(reward)) - 1):
        later = value.clone()
        later[:-1] = torch.where(goes_on, target[1:], value[:-1])
        target = reward + discount * later
    return target


class R2D2Embryo(OptimizedEmbryo, UnrollEmbryo):
    """R2D2's update rule: trains a recurrent Q network towards targets that a target network bootstraps.

    Raises:
        UnsupportedSpaceError: the action space is not Discrete.
        UnsuitableModelError: the model is no ``RecurrentQNetwork``.
    """

    algorithm: ClassVar[str] = "R2D2"
    contract: ClassVar[type[torch.nn.Module]] = RecurrentQNetwork
    example: ClassVar[str] = "recurrent_q"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    normalizes: ClassVar[bool] = True
    settings_type: ClassVar[type[R2D2Settings]] = R2D2Settings
    settings: R2D2Settings
    model: RecurrentQNetwork

    def __init__(self, spaces: Spaces, model: RecurrentQNetwork, settings: R2D2Settings, seed: int) -> None:  # noqa: ARG002
        count_actions(spaces.action)
        super().__init__(model, settings)
        self._optimizer = self._optimize()
        self._target = TargetNetwork(model, self._flat)
        self._networks["target"] = self._target.model
        self._exchange = Exchange(self._flat.device)
        self._mask = MaskReader.of(spaces)
        self._normalizer = Normalizer.of(model, spaces)
        self._nothing = torch.zeros(len(DIAGNOSTICS), device=self._flat.device)

    def update(self, batch: UnrollBatch) -> UpdateResult:
        """Make one step of Adam, and update the target network when it is time."""
        observed = batch.observation.reshape(-1, *batch.observation.shape[2:])
        self._normalizer.update_drawn(observed, self._learners)
        own = np.count_nonzero(batch.mask[:, self.settings.burn_in :])
        total = int(self._learners.total(np.array([own]))[0])
        self._gradient.zero_()
        if own:
            diagnostics, priorities = self._differentiate(batch, own / total)
        else:  # One of several learners may have no step to learn from.
            diagnostics, priorities = self._nothing, self._nothing.new_zeros(len(batch.mask))
        add_gradients(self._gradient, self._learners)
        self._means.add(diagnostics, self._step(self._optimizer))
        self._target.keep_up(self.settings, self._optimizer.steps)
        return UpdateResult(total, self._exchange.to_host_if(priorities, asked=self.prioritised))

    def _differentiate(self, batch: UnrollBatch, share: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the gradient of the loss; return the diagnostics and the priorities ``[B]``.

        Args:
            share: this learner's share of all learners' steps: the gradients of all add up.
        """
        to_device, burn_in = self._exchange.to_device, self.settings.burn_in
        mask = batch.mask[:, burn_in:].T  # [L, B], as all that follows
        q, target_q, observation = self._values(batch)
        with torch.no_grad():
            target = self._targets(batch, q.detach(), target_q, observation)
        learnt = to_device(np.flatnonzero(mask))
        action = to_device(np.ascontiguousarray(batch.fields["action"][:, burn_in:].T)).long()
        weight = to_device(batch.weight).expand(mask.shape)
        action, target, weight = (
            rows.reshape(-1).index_select(0, learnt) for rows in (action, target, weight)
        )
        taken_from = q[:-1].flatten(0, 1).index_select(0, learnt)
        loss, diagnostics, errors = td_loss(taken_from, action, target, weight, self.settings.linear_from)
        torch.autograd.backward(loss * share)
        of_steps = torch.zeros(mask.size, device=errors.device).index_copy_(0, learnt, errors)
        return diagnostics, self._priorities(of_steps.view(mask.shape), to_device(mask.sum(axis=0)))

    def _values(self, batch: UnrollBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Go through all unrolls with both networks.

        Returns:
            Action values after the burn-in, up to the observation that the last step led to, by the online
            and by the target network, ``[L + 1, B, A]``; and the observations ``[L + 1, B, ...]``.
        """
        burn_in = self.settings.burn_in
        seen = self._exchange.to_device(batch.observation)
        observation = self._normalizer.seen(seen.flatten(0, 1)).view(seen.shape).transpose(0, 1)
        state = self._exchange.to_device(batch.fields["state"])
        first = torch.zeros(observation.shape[:2], dtype=torch.bool)
        first[1:] = torch.from_numpy(~batch.mask.T)
        past, now = (observation[:burn_in], first[:burn_in]), (observation[burn_in:], first[burn_in:])

        def remember(model: RecurrentQNetwork) -> torch.Tensor:
            return model.unroll(*past, state)[-1] if burn_in else state

        with torch.no_grad():
            of_online, of_target = remember(self.model), remember(self._target.model)
            target_q, _ = self._target.model.unroll(*now, of_target)
        q, _ = self.model.unroll(*now, of_online)
        rows = now[1].shape
        return q.view(*rows, -1), target_q.view(*rows, -1), now[0]

    def _targets(
        self, batch: UnrollBatch, q: torch.Tensor, target_q: torch.Tensor, observation: torch.Tensor
    ) -> torch.Tensor:
        """Compute the targets of the actions' values, ``[L, B]``."""
        settings, to_device = self.settings, self._exchange.to_device
        chooser = (q if settings.double else target_q)[1:].flatten(0, 1)
        if self._mask is not None:
            chooser = self._mask.forbidding(chooser, observation[1:])
        value = bootstrap(target_q[1:].flatten(0, 1), chooser).view(len(q) - 1, -1)
        if settings.value_rescaling:
            value = restore(value)
        reward, terminated, mask = (
            to_device(np.ascontiguousarray(field[:, settings.burn_in :].T))
            for field in (batch.reward, batch.terminated, batch.mask)
        )
        discount = settings.gamma * ~terminated
        target = n_step_targets(reward * settings.reward_scale, discount, value, mask[1:], settings.n_step)
        return rescale(target) if settings.value_rescaling else target

    def _priorities(self, errors: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Mix the largest and the mean of TD errors ``[L, B]``, 0 where nothing is learnt (section 2.3).

        Args:
            steps: number of learnt steps of each unroll, ``[B]``.
        """
        mix = self.settings.priority_mix
        return mix * errors.amax(dim=0) + (1.0 - mix) * errors.sum(dim=0) / steps.clamp(min=1)


class R2D2Agent(EpsilonGreedyAgent):
    """Acts epsilon-greedily with a recurrent network."""

    algorithm: ClassVar[str] = "R2D2"
    contract: ClassVar[type[torch.nn.Module]] = RecurrentQNetwork
    settings_type: ClassVar[type[R2D2AgentSettings]] = R2D2AgentSettings
    default_model: ClassVar[str] = "recurrent_q"
    default_embryo: ClassVar[str] = "r2d2"
