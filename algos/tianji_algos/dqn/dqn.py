"""DQN (Mnih et al., 2015, algorithm 1) with double, n-step and weighted updates.

It reads from top to bottom: the value that targets bootstrap from, the loss of a batch, the update rule
(``update``: targets, loss, gradient and step), and the agent. R2D2 shares the loss and the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.action_mask import MaskReader
from tianji_algos.batch import Batch
from tianji_algos.core import Agent, Fields, Model, ReplayEmbryo, Spaces, UpdateResult, require_model
from tianji_algos.device import Exchange, is_on_host
from tianji_algos.dqn.settings import DQNAgentSettings, DQNSettings, EpsilonSettings
from tianji_algos.fields import FieldSpec
from tianji_algos.models.q_network import QNetwork, count_actions
from tianji_algos.normalization import Normalizer, acting_executor
from tianji_algos.optim import Differentiated, OptimizedEmbryo, TargetNetwork, average_gradients
from tianji_algos.registry import kernel
from tianji_algos.rules import ActionRule, BestActionRule, Port
from tianji_algos.schedules import falling

Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("loss", "mean_q", "td_error")


def bootstrap(next_q: torch.Tensor, chooser: torch.Tensor) -> torch.Tensor:
    """Take from ``next_q [B, A]`` the values ``[B]`` of the actions that are best by ``chooser [B, A]``.

    With the online network as chooser this is double Q-learning (van Hasselt et al., 2016, equation 4);
    with ``next_q`` itself it is the maximum (Mnih et al., 2015).
    """
    return next_q.gather(1, chooser.argmax(dim=1, keepdim=True))[:, 0]


def td_loss(
    q: torch.Tensor, action: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, delta: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the mean, over a batch, of the weighted Huber or half squared TD error.

    Args:
        q: ``[B, A]``.
        action: actions taken, ``[B]``.
        target: target values of these actions, ``[B]``.
        weight: importance of each sample, ``[B]``.
        delta: TD error from which the loss is linear; None for half the squared error everywhere.

    Returns:
        Loss, ``DIAGNOSTICS`` in order, and the absolute TD errors ``[B]``.
    """
    taken = q.gather(1, action.long()[:, None])[:, 0]
    if delta is None:
        each = 0.5 * torch.nn.functional.mse_loss(taken, target, reduction="none")
    else:
        each = torch.nn.functional.huber_loss(taken, target, reduction="none", delta=delta)
    loss = (weight * each).mean()
    errors = (taken - target).detach().abs()
    return loss, torch.stack((loss, taken.mean(), errors.mean())).detach(), errors


class DQNEmbryo(OptimizedEmbryo, ReplayEmbryo):
    """DQN's update rule: trains a Q network towards targets that a target network bootstraps.

    Raises:
        UnsupportedSpaceError: the action space is not Discrete.
        UnsuitableModelError: the model is no ``QNetwork``.
    """

    algorithm: ClassVar[str] = "DQN"
    contract: ClassVar[type[torch.nn.Module]] = QNetwork
    example: ClassVar[str] = "mlp_q"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    normalizes: ClassVar[bool] = True
    settings_type: ClassVar[type[DQNSettings]] = DQNSettings
    settings: DQNSettings
    model: QNetwork

    def __init__(self, spaces: Spaces, model: QNetwork, settings: DQNSettings, seed: int) -> None:  # noqa: ARG002
        count_actions(spaces.action)
        super().__init__(model, settings)
        self._optimizer = self._optimize()
        self._target = TargetNetwork(model, self._flat)
        self._networks["target"] = self._target.model
        self._exchange = Exchange(self._flat.device)
        self._mask = MaskReader.of(spaces)
        self._normalizer = Normalizer.of(model, spaces)
        self._choose_derivatives(fits=is_on_host(model), what_fits="a network on a CPU")
        self._differentiate: Callable[[Batch], Differentiated] = self._differentiate_in_torch
        if self._by_hand:
            self._differentiate = kernel("DQN.derivatives")(model, self._target.model, settings, self._mask)

    def update(self, batch: Batch) -> UpdateResult:
        """Make one step of Adam, and update the target network when it is time."""
        self._normalizer.update_drawn(batch.observation, self._learners)
        if self._by_hand:
            batch = self._normalizer.seen_batch(batch)
        diagnostics, errors = self._differentiate(batch)
        average_gradients(self._gradient, self._learners)
        self._means.add(diagnostics, self._step(self._optimizer))
        self._target.keep_up(self.settings, self._optimizer.steps)
        priorities = self._exchange.to_host_if(errors, asked=self.prioritised)
        return UpdateResult(len(errors) * self._learners.number, priorities)

    def _differentiate_in_torch(self, batch: Batch) -> Differentiated:
        """Differentiate the loss with autograd."""
        to_device, settings = self._exchange.to_device, self.settings
        action, weight = to_device(batch.fields["action"]), to_device(batch.weight)
        reward, discount = to_device(batch.reward) * settings.reward_scale, to_device(batch.discount)
        next_observation = self._exchange.begin(batch.next_observation)
        observation = self._exchange.begin(batch.observation)  # Copied while networks run on the other.
        with torch.no_grad():
            seen = self._normalizer.seen(next_observation())
            next_q = self._target.model(seen)
            chooser = self.model(seen) if settings.double else next_q
            if self._mask is not None:
                chooser = self._mask.forbidding(chooser, seen)
            target = reward + discount * bootstrap(next_q, chooser)
        self._gradient.zero_()
        loss, diagnostics, errors = td_loss(
            self.model(self._normalizer.seen(observation())), action, target, weight, settings.linear_from
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return diagnostics, errors


class EpsilonGreedyAgent(Agent):
    """Acts epsilon-greedily by the values of actions; records the action.

    Raises:
        UnsupportedSpaceError: the action space is not Discrete.
        UnsuitableModelError: the algorithm does not work with this kind of model.
    """

    algorithm: ClassVar[str]
    """Name in error messages."""
    contract: ClassVar[type[torch.nn.Module]]
    """Class that its networks derive from."""

    def __init__(
        self, spaces: Spaces, model: Model, settings: EpsilonSettings, num_envs: int, seed: int
    ) -> None:
        self.settings = settings
        self._actions = np.float32(count_actions(spaces.action))
        assert isinstance(spaces.action, gym.spaces.Discrete)
        require_model(model, self.contract, self.algorithm, self.default_model)
        self._first = int(spaces.action.start)
        self._executor = acting_executor(model, num_envs)
        self._mask = MaskReader.of(spaces)
        self._rng = np.random.default_rng(seed)
        self._draws = np.empty((2, num_envs), np.float32)
        self._is_random = np.empty(num_envs, np.bool_)
        self._action = np.empty(num_envs, np.int64)
        self._epsilon = np.empty(num_envs, np.float32)
        self._place = (0, num_envs)
        if settings.epsilon_schedule == "linear":
            self.schedule(0)
        else:
            self.explore_as(*self._place)

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:  # noqa: ARG003 - for subclasses
        """Record ``action``, counted from 0."""
        return (FieldSpec("action", np.min_scalar_type(count_actions(spaces.action) - 1)),)

    @classmethod
    def rule(cls, spaces: Spaces, settings: Any) -> ActionRule:  # noqa: ARG003 - always the same
        """Choose the best action; random actions need no network."""
        assert isinstance(spaces.action, gym.spaces.Discrete)
        values = (count_actions(spaces.action),)
        return BestActionRule(
            Port("action_values", np.dtype(np.float32), values, "of each action, as the network gives them"),
            int(spaces.action.start),
        )

    def act(self, observation: npt.NDArray[Any], into: Fields) -> npt.NDArray[Any]:
        """Choose the best action, or with probability epsilon any; write ``action [N]``."""
        q = self._q(observation)
        np.argmax(q.T, axis=0, out=self._action)
        self._explore(self._action, self._epsilon, observation)
        into["action"][...] = self._action
        self._note(q)
        if self._first != 0:
            self._action += self._first
        return self._action

    def _note(self, q: Floats) -> None:
        """Note the action values ``[N, A]`` of a step; ``_action`` still counts from 0."""

    def begin(self, fields: Fields) -> None:
        """Write the network's state."""
        self._executor.record(fields)

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Clear the network's state of earlier episodes."""
        self._executor.forget(where)

    def schedule(self, env_steps: int) -> None:
        """Set epsilon, where it falls over training."""
        settings = self.settings
        if settings.epsilon_schedule == "linear":
            self._epsilon[:] = falling(
                settings.epsilon_start, settings.epsilon_end, settings.epsilon_steps, env_steps
            )

    def explore_as(self, first: int, of: int) -> None:
        """Set the epsilon of each environment, where they differ."""
        settings, self._place = self.settings, (first, of)
        if settings.epsilon_schedule == "per_actor":
            share = np.arange(first, first + len(self._epsilon)) / max(1, of - 1)
            self._epsilon[:] = settings.epsilon_base ** (1.0 + settings.epsilon_alpha * share)

    def adopt_settings(self, settings: EpsilonSettings) -> None:
        """Explore by these settings from now on; where epsilon falls, from the next policy on."""
        super().adopt_settings(settings)
        self.explore_as(*self._place)

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Choose the best actions, or with probability ``eval_epsilon`` any."""
        q = self._q(observation)
        best: npt.NDArray[np.int64] = q.T.argmax(axis=0)
        if self.settings.eval_epsilon:
            self._explore(best, self.settings.eval_epsilon, observation)
        best += self._first
        return best

    def adopt(self, parameters: Floats) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)

    def _q(self, observation: npt.NDArray[Any]) -> Floats:
        """Compute the values ``[N, A]``; those of forbidden actions are the lowest."""
        (q,) = self._executor(observation)
        if self._mask is not None:
            self._mask.forbid(q, observation)
        return q

    def _explore(
        self, actions: npt.NDArray[np.int64], epsilon: Floats | float, observation: npt.NDArray[Any]
    ) -> None:
        """Replace actions ``[N]`` by random available ones, each with probability epsilon."""
        self._rng.random(dtype=np.float32, out=self._draws)
        luck, choice = self._draws
        np.less(luck, epsilon, out=self._is_random)
        if self._mask is None:
            choice *= self._actions
        else:
            choice[:] = draw_available(~self._mask.forbidden(observation), choice)
        np.copyto(actions, choice, where=self._is_random, casting="unsafe")


class DQNAgent(EpsilonGreedyAgent):
    """Acts epsilon-greedily; records the action, and on demand its TD error as a priority."""

    algorithm: ClassVar[str] = "DQN"
    contract: ClassVar[type[torch.nn.Module]] = QNetwork
    settings_type: ClassVar[type[DQNAgentSettings]] = DQNAgentSettings
    default_model: ClassVar[str] = "mlp_q"
    default_embryo: ClassVar[str] = "dqn"
    settings: DQNAgentSettings

    def __init__(
        self, spaces: Spaces, model: QNetwork, settings: DQNAgentSettings, num_envs: int, seed: int
    ) -> None:
        super().__init__(spaces, model, settings, num_envs, seed)
        self._seen = _SeenValues(num_envs) if settings.priorities else None

    @classmethod
    def fields(cls, spaces: Spaces, settings: DQNAgentSettings) -> tuple[FieldSpec, ...]:
        """Record ``action``, counted from 0, and ``priority`` if the settings ask for it."""
        recorded = super().fields(spaces, settings)
        return (*recorded, FieldSpec("priority", np.dtype(np.float32))) if settings.priorities else recorded

    def _note(self, q: Floats) -> None:
        if self._seen is not None:
            self._seen.append(q, self._action)

    def finish(self, fields: Fields, observation: npt.NDArray[Any]) -> None:
        """Write the priority of each step, ``[T, N]``; 0 for steps that are no experience."""
        if self._seen is None:
            return
        q = self._q(observation)
        settings = self.settings
        fields["priority"][...] = self._seen.td_error(
            fields, q, settings.priority_gamma, settings.priority_reward_scale
        )


class _SeenValues:
    """Action values from acting, kept so that a fragment's TD errors cost no second pass of the network."""

    def __init__(self, num_envs: int) -> None:
        self._taken = np.empty((0, num_envs), np.float32)
        self._best = np.empty((1, num_envs), np.float32)
        self._steps = 0

    def append(self, q: Floats, action: npt.NDArray[Any]) -> None:
        """Record the values of one time step."""
        if self._steps == len(self._taken):
            longer = max(32, 2 * self._steps)
            self._taken = np.resize(self._taken, (longer, len(action)))
            self._best = np.resize(self._best, (longer + 1, len(action)))
        self._taken[self._steps] = pick(q, action)[0]
        np.maximum.reduce(q.T, out=self._best[self._steps])
        self._steps += 1

    def td_error(self, fields: Fields, last_q: Floats, gamma: float, reward_scale: float) -> Floats:
        """Return ``|r + gamma max Q' - Q|`` of each of a fragment's steps ``[T, N]``, and clear the record.

        Args:
            fields: fields of a fragment, whose T steps are the last ones noted.
            last_q: values of the observation after the last step, ``[N, A]``.
        """
        steps = len(fields["reward"])
        first, stop = self._steps - steps, self._steps
        np.maximum.reduce(last_q.T, out=self._best[stop])
        error: Floats = self._best[first + 1 : stop + 1] * np.float32(gamma)
        error *= 1 - fields["terminated"]
        error += fields["reward"] * np.float32(reward_scale)
        error -= self._taken[first:stop]
        np.abs(error, out=error)
        error *= fields["mask"]
        self._steps = 0
        return error


def pick(q: Floats, action: npt.NDArray[Any]) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Take ``q[i, action[i]]`` of each row i of ``q [B, A]``.

    Returns:
        The values ``[B]``, and their indices in the flat ``q.T``.
    """
    where = action.astype(np.intp)
    where *= len(q)
    where += np.arange(len(q))
    return q.T.reshape(-1).take(where, mode="clip"), where


def draw_available(available: npt.NDArray[np.bool_], luck: Floats) -> npt.NDArray[np.intp]:
    """Draw one available action for each row.

    Args:
        available: ``[N, A]``.
        luck: uniform from 0 to 1, ``[N]``.
    """
    so_far = available.cumsum(axis=1)
    wanted = (luck * so_far[:, -1]).astype(np.intp)
    drawn: npt.NDArray[np.intp] = (so_far <= wanted[:, None]).sum(axis=1)
    return drawn
