"""MADDPG (Lowe et al., 2017, algorithm 1): actors see their own agent's observation, critics everything.

Arrays of an update are agent by agent, ``[M, B, ...]``, as actors compute them; a dead agent's actions are
zeros. Where an agent was cut off, targets let it act once more, for the value of its last observation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.batch import Batch
from tianji_algos.bounds import ActionBounds
from tianji_algos.continuous import DeterministicRule
from tianji_algos.core import Agent, Fields, ReplayEmbryo, Spaces, UpdateResult, require_model
from tianji_algos.device import Exchange, on_host
from tianji_algos.fields import FieldSpec
from tianji_algos.maddpg.settings import MADDPGAgentSettings, MADDPGSettings
from tianji_algos.models.teams.deterministic import TeamDeterministic
from tianji_algos.optim import (
    ActorEmbryo,
    Means,
    TargetNetwork,
    adam_of,
    average_gradients,
    flatten_parameters,
)
from tianji_algos.rules import ActionRule, BestActionRule, Port
from tianji_algos.schedules import falling
from tianji_algos.team import UNAVAILABLE, Records, Team, cut_off

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("critic_loss", "policy_loss", "mean_q", "td_error", "entropy")


class MADDPGEmbryo(ActorEmbryo, ReplayEmbryo):
    """MADDPG's update rule: trains critics towards bootstrapped targets, and actors to maximise their values.

    An update takes both gradients at the same parameters; an actor's loss gives critics no gradient.

    Args:
        model: trained in place, on its final device; its parameters move into one flat tensor.
        seed: seed of the actions that policies draw in updates.

    Raises:
        UnsupportedSpaceError: the environment has no team, or actions are not bounded.
        UnsuitableModelError: the model is no ``TeamDeterministic``.
    """

    algorithm: ClassVar[str] = "MADDPG"
    settings_type: ClassVar[type[MADDPGSettings]] = MADDPGSettings
    settings: MADDPGSettings

    def __init__(self, spaces: Spaces, model: TeamDeterministic, settings: MADDPGSettings, seed: int) -> None:
        require_model(model, TeamDeterministic, "MADDPG", "team_deterministic")
        flat = flatten_parameters(model)
        actors = model.actor_parameter_count
        means = Means((*DIAGNOSTICS, "critic_gradient_norm", "actor_gradient_norm"))
        critics_adam, actors_adam = (
            adam_of(flat, which, settings) for which in (slice(actors, None), slice(None, actors))
        )
        self.model: TeamDeterministic = model
        self._target = TargetNetwork(model, flat)
        networks, rng = {"model": model, "target": self._target.model}, np.random.default_rng(seed)
        super().__init__(settings, critics_adam, actors_adam, networks, means, rng, actor_name="actors")
        assert flat.grad is not None
        self._gradient = flat.grad
        self._exchange = Exchange(flat.device)
        self._reads_norms = on_host(flat.device)
        self._actions = team_actions(spaces, settings.temperature, self._rng, flat.device)
        self.schedule(0)

    def update(self, batch: Batch) -> UpdateResult:
        """Make one step of critics and one of actors, and update the target networks.

        A sample's priority is a mean over critics.
        """
        to_device = self._exchange.to_device
        seen, weight = self._seen(batch.observation), to_device(batch.weight)
        done = self._actions.done(to_device(batch.fields["action"])) * seen.alive[..., None]
        self._gradient.zero_()
        critic_loss, values, errors = self._critic_loss(seen, done, self._targets(batch), weight)
        policy_loss, entropy = self._policy_loss(seen, done, weight)
        torch.autograd.backward((critic_loss, policy_loss))  # They have no parameter in common.
        diagnostics = torch.stack((critic_loss, policy_loss, values.mean(), errors.mean(), entropy)).detach()
        average_gradients(self._gradient, self._learners)
        self._means.add(diagnostics, self._step(self._optimizer), self._step(self._actor_adam))
        self._target.follow(self.settings.target_tau)
        priorities = self._exchange.to_host_if(errors, asked=self.prioritised)
        return UpdateResult(len(batch.reward) * self._learners.number, priorities)

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; see ``OptimizedEmbryo``."""
        super().load_state(tensors, rest)
        self._actor_adam.steps = self._optimizer.steps

    def _seen(self, records: Records) -> _Seen:
        to_device = self._exchange.to_device
        available = None
        if self.model.team.discrete:
            available = to_device(records["available"]).transpose(0, 1)
        return _Seen(
            observation=to_device(records["observation"]).transpose(0, 1),
            state=to_device(self.model.team.state_of(records)),
            alive=to_device(records["alive"]).T.float(),
            cut=to_device(cut_off(records)).T.float(),
            available=available,
        )

    @torch.no_grad()
    def _targets(self, batch: Batch) -> torch.Tensor:
        """Compute ``reward + discount * Q'(next state, target policies' actions)``: ``[M, B]`` or ``[1, B]``.

        Where agents have rewards of their own, the next value of a dead agent counts as 0.
        """
        to_device, records = self._exchange.to_device, batch.next_observation
        after, networks = self._seen(records), self._target.model
        goes_on = after.alive + after.cut
        chosen = self._actions.chosen(networks.act(after.observation), after.available) * goes_on[..., None]
        target = networks.value(after.state, _joint(chosen)) * to_device(batch.discount)
        if self.model.has_team_critic:
            return target + to_device(batch.reward) * self.settings.reward_scale
        return target * goes_on + to_device(records["reward"]).T * self.settings.reward_scale

    def _critic_loss(
        self, seen: _Seen, done: torch.Tensor, target: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the critics' loss (equation 6), the values ``[M, B]`` and absolute errors ``[B]``.

        An agent's own critic learns only from steps at which the agent is alive, and a team's critic only
        from steps before any agent was cut off.
        """
        values = self.model.value(seen.state, _joint(done))
        counts = 1.0 - seen.cut.amax(dim=0, keepdim=True) if self.model.has_team_critic else seen.alive
        errors = (values - target) * counts
        loss = 0.5 * (errors.square() * weight).sum(dim=0).mean()
        magnitude = errors.detach().abs().sum(dim=0) / counts.sum(dim=0).clamp_min(1.0)
        return loss, values.detach(), magnitude

    def _policy_loss(
        self, seen: _Seen, done: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the actors' loss, whose gradient is that of equation 5, and their mean entropy.

        Each agent's value takes a new action of its own policy and the recorded actions of the others; dead
        agents do not count.
        """
        outputs = self.model.act(seen.observation)
        chosen = self._actions.chosen(outputs, seen.available)
        own = torch.eye(len(done), dtype=torch.bool, device=done.device)[:, None, :, None]
        actions = torch.where(own, chosen[:, :, None], done.transpose(0, 1))
        values = self.model.value(seen.state, actions.flatten(2), frozen=True)
        penalty = self.settings.logits_penalty * outputs.square().mean(dim=2)
        loss = ((penalty - values) * seen.alive * weight).sum(dim=0).mean()
        entropy = (self._actions.entropy(outputs, seen.available) * seen.alive).sum()
        return loss, entropy / seen.alive.sum().clamp_min(1.0)


def _joint(actions: torch.Tensor) -> torch.Tensor:
    """Put the actions of all agents, ``[M, B, A]``, side by side: ``[B, M * A]``."""
    return actions.transpose(0, 1).flatten(1)


@dataclass(frozen=True)
class _Seen:
    """Observations of a batch of records, agent by agent, on the device of the networks.

    Attributes:
        observation: ``[M, B, O]``.
        state: ``[B, S]``.
        alive: 1 or 0, ``[M, B]``.
        cut: 1 or 0, ``[M, B]``.
        available: ``[M, B, A]``; None: actions are continuous.
    """

    observation: torch.Tensor
    state: torch.Tensor
    alive: torch.Tensor
    cut: torch.Tensor
    available: torch.Tensor | None


class MADDPGAgent(Agent):
    """Acts for all agents of a team, each by its own observation; records the actions.

    Raises:
        UnsupportedSpaceError: the environment has no team, or actions are not bounded.
        UnsuitableModelError: the model is no ``TeamDeterministic``.
    """

    settings_type: ClassVar[type[MADDPGAgentSettings]] = MADDPGAgentSettings
    default_model: ClassVar[str] = "team_deterministic"
    default_embryo: ClassVar[str] = "maddpg"
    plays_in_team: ClassVar[bool] = True

    def __init__(
        self,
        spaces: Spaces,
        model: TeamDeterministic,
        settings: MADDPGAgentSettings,
        num_envs: int,
        seed: int,
    ) -> None:
        require_model(model, TeamDeterministic, "MADDPG", "team_deterministic")
        self.settings = settings
        self._executor = model.executor(num_envs)
        self._choice: _Choice = (
            _BoundedChoice(spaces.action, settings, num_envs, seed)
            if isinstance(spaces.action, gym.spaces.Box)
            else _DiscreteChoice(model.team, settings, num_envs, seed)
        )
        self.schedule(0)

    @classmethod
    def fields(cls, spaces: Spaces, settings: MADDPGAgentSettings) -> tuple[FieldSpec, ...]:  # noqa: ARG003
        """Record ``action`` as the environment gets it: ``[M]`` numbers of actions, or ``[M, A]``."""
        return (Team.of(spaces).action_field(),)

    @classmethod
    def rule(cls, spaces: Spaces, settings: MADDPGAgentSettings) -> ActionRule:  # noqa: ARG003
        """Choose each policy's most probable action, or a continuous policy's action."""
        if isinstance(spaces.action, gym.spaces.Box):
            return DeterministicRule(spaces.action)
        team = Team.of(spaces)
        shape, meaning = (team.agents, team.most_actions), "their softmax is the probabilities of actions"
        return BestActionRule(Port("logits", np.dtype(np.float32), shape, meaning))

    def act(self, observation: Records, into: Fields) -> Array:
        """Draw actions from the policies and add exploration; write ``action [N, M, ...]``."""
        (outputs,) = self._executor(observation)
        actions = self._choice.exploring(outputs, observation)
        into["action"][...] = actions
        return actions

    def schedule(self, env_steps: int) -> None:
        """Set the amount of exploration."""
        self._choice.schedule(env_steps)

    def act_greedily(self, observation: Records) -> Array:
        """Choose each policy's most probable action, or a continuous policy's action."""
        (outputs,) = self._executor(observation)
        return self._choice.greedy(outputs, observation)

    def adopt(self, parameters: Floats) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)


class _Choice(ABC):
    """Turns actors' outputs ``[N, M, A]`` into actions of the environment, which the next call reuses."""

    @abstractmethod
    def schedule(self, env_steps: int) -> None:
        """Set the amount of exploration."""

    @abstractmethod
    def exploring(self, outputs: Floats, seen: Records) -> Array:
        """Choose exploring actions; may overwrite ``outputs``."""

    @abstractmethod
    def greedy(self, outputs: Floats, seen: Records) -> Array:
        """Choose the best actions by the policy; may overwrite ``outputs``."""


class _DiscreteChoice(_Choice):
    """Draws actions ``[N, M]`` from the policies, or with probability epsilon any available one."""

    def __init__(self, team: Team, settings: MADDPGAgentSettings, num_envs: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._settings = settings
        each = (num_envs, team.agents)
        self._luck = np.empty(each, np.float32)
        self._is_random = np.empty(each, np.bool_)
        self._noise = np.empty((*each, team.most_actions), np.float32)
        self._unavailable = np.empty(self._noise.shape, np.bool_)
        self._action = np.empty(each, np.intp)

    def schedule(self, env_steps: int) -> None:
        """Set the share of random actions."""
        settings = self._settings
        self._epsilon = falling(
            settings.epsilon_start, settings.epsilon_end, settings.exploration_steps, env_steps
        )

    def exploring(self, outputs: Floats, seen: Records) -> Array:
        """Draw by the Gumbel-max trick; with every logit 0 all actions are alike."""
        self._rng.random(dtype=np.float32, out=self._luck)
        np.less(self._luck, self._epsilon, out=self._is_random)
        np.copyto(outputs, np.float32(0.0), where=self._is_random[..., None])
        outputs += gumbel(self._rng, self._noise)
        return self.greedy(outputs, seen)

    def greedy(self, outputs: Floats, seen: Records) -> Array:
        """Choose the most probable available action."""
        np.logical_not(seen["available"], out=self._unavailable)
        np.copyto(outputs, UNAVAILABLE, where=self._unavailable)
        return outputs.argmax(axis=2, out=self._action)


class _BoundedChoice(_Choice):
    """Gives actions ``[N, M, A]`` between bounds, with normally distributed noise."""

    def __init__(
        self, space: gym.spaces.Box, settings: MADDPGAgentSettings, num_envs: int, seed: int
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._settings = settings
        self._bounds = ActionBounds(space)
        self._noise = np.empty((num_envs, *space.shape), np.float32)

    def schedule(self, env_steps: int) -> None:
        """Set the deviation of the noise."""
        settings = self._settings
        self._deviation = falling(
            settings.noise_start, settings.noise_end, settings.exploration_steps, env_steps
        )

    def exploring(self, outputs: Floats, seen: Records) -> Array:  # noqa: ARG002 - all numbers are available
        """Add noise before the bounds are applied."""
        self._rng.standard_normal(dtype=np.float32, out=self._noise)
        self._noise *= np.float32(self._deviation)
        np.tanh(outputs, out=outputs)
        outputs += self._noise
        return self._scaled(outputs)

    def greedy(self, outputs: Floats, seen: Records) -> Array:  # noqa: ARG002 - all numbers are available
        """Return the policy's actions, without noise."""
        return self._scaled(np.tanh(outputs, out=outputs))

    def _scaled(self, actions: Floats) -> Array:
        """Clip actions to -1 to 1, and scale them to the bounds."""
        np.clip(actions, -1.0, 1.0, out=actions)
        return self._bounds.scale(actions)


class TeamActions(ABC):
    """Turns recorded actions and actors' outputs into actions as critics see them."""

    @abstractmethod
    def done(self, recorded: torch.Tensor) -> torch.Tensor:
        """Return recorded actions ``[B, M, ...]`` as critics see them, ``[M, B, A]``."""

    @abstractmethod
    def chosen(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
        """Return the actors' actions ``[M, B, A]`` by their outputs ``[M, B, A]``, differentiably.

        Args:
            available: available actions, ``[M, B, A]``; None where actions are continuous.
        """

    @abstractmethod
    def entropy(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
        """Return the entropy of each agent's policy, ``[M, B]``, without gradients."""


class DiscreteActions(TeamActions):
    """Actions are one-hot; their distribution has a Gumbel-softmax for its gradient (Jang et al., 2017).

    Args:
        temperature: temperature of the Gumbel-softmax; the lower, the fewer actions a gradient has.
        rng: random stream of the actions; on the host, so that every device gets the same.
    """

    def __init__(self, actions: int, temperature: float, rng: np.random.Generator) -> None:
        self._actions = actions
        self._temperature = temperature
        self._rng = rng

    def done(self, recorded: torch.Tensor) -> torch.Tensor:
        """Return recorded numbers of actions ``[B, M]`` as one-hot rows ``[M, B, A]``."""
        return torch.nn.functional.one_hot(recorded.T.long(), self._actions).float()

    def chosen(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
        """Draw one-hot actions, with the gradient of the softmax whose argmax they are."""
        noise = torch.from_numpy(gumbel(self._rng, np.empty(outputs.shape, np.float32))).to(outputs.device)
        soft = torch.softmax(_masked((outputs + noise) / self._temperature, available), dim=2)
        hard = torch.zeros_like(soft).scatter_(2, soft.argmax(dim=2, keepdim=True), 1.0)
        return hard + (soft - soft.detach()) if soft.requires_grad else hard

    @torch.no_grad()
    def entropy(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
        """Return the entropy of a softmax of the outputs, ``[M, B]``."""
        probabilities = torch.softmax(_masked(outputs, available), dim=2)
        entropy: torch.Tensor = torch.special.entr(probabilities).sum(dim=2)
        return entropy


class ContinuousActions(TeamActions):
    """Actions are tanh of the outputs, from -1 to 1; the environment gets them scaled to its bounds."""

    def __init__(self, bounds: ActionBounds, device: torch.device) -> None:
        self._middle = torch.from_numpy(bounds.middle).float().to(device)[:, None]
        half = torch.from_numpy(bounds.half).float().to(device)[:, None]
        self._exists = (half > 0).float()
        self._per_half = self._exists / half.clamp_min(torch.finfo().tiny)

    def done(self, recorded: torch.Tensor) -> torch.Tensor:
        """Scale recorded actions ``[B, M, A]`` to between -1 and 1."""
        return (recorded.transpose(0, 1) - self._middle) * self._per_half

    def chosen(
        self,
        outputs: torch.Tensor,
        available: torch.Tensor | None,  # noqa: ARG002 - every number can be chosen
    ) -> torch.Tensor:
        """Return the tanh of the outputs, and 0 for numbers that an agent's action does not have."""
        return outputs.tanh() * self._exists

    def entropy(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002
        """Return 0: these policies are deterministic."""
        return torch.zeros(outputs.shape[:2], device=outputs.device)


def team_actions(
    spaces: Spaces, temperature: float, rng: np.random.Generator, device: torch.device
) -> TeamActions:
    """Choose how actors' outputs become actions, by the space of the actions.

    Raises:
        UnsupportedSpaceError: an action is not bounded.
    """
    space: gym.Space[Any] = spaces.action
    if isinstance(space, gym.spaces.Box):
        return ContinuousActions(ActionBounds(space), device)
    return DiscreteActions(Team.of(spaces).most_actions, temperature, rng)


def gumbel(rng: np.random.Generator, into: Floats) -> Floats:
    """Draw from the standard Gumbel distribution, in place.

    The largest of some logits, each with such noise added, is a draw from their softmax.
    """
    rng.standard_exponential(dtype=np.float32, out=into)
    np.maximum(into, np.finfo(np.float32).tiny, out=into)
    return np.negative(np.log(into, out=into), out=into)


def _masked(logits: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
    return logits if available is None else logits.masked_fill(~available, UNAVAILABLE)
