"""MADDPG (Lowe et al., 2017, algorithm 1): actors see their own agent's observation, critics everything.

It reads from top to bottom: actions as critics see them, the update rule (targets and losses; ``update``:
gradients and steps), and the agent.

Arrays of an update are agent by agent, ``[M, B, ...]``, as actors compute them; a dead agent's actions are
zeros. Where an agent was cut off, targets let it act once more, for the value of its last observation.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.batch import Batch
from tianji_algos.continuous import DeterministicRule
from tianji_algos.core import Agent, Fields, ReplayEmbryo, Spaces, UpdateResult, require_model
from tianji_algos.device import Exchange
from tianji_algos.fields import FieldSpec
from tianji_algos.maddpg.settings import MADDPGAgentSettings, MADDPGSettings
from tianji_algos.models.teams.deterministic import TeamDeterministic
from tianji_algos.optim import OptimizedEmbryo, TargetNetwork, average_gradients
from tianji_algos.rules import ActionBounds, ActionRule, BestActionRule, Port
from tianji_algos.schedules import falling
from tianji_algos.team import UNAVAILABLE, Records, Team, cut_off

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

DIAGNOSTICS: Final = ("critic_loss", "policy_loss", "mean_q", "td_error", "entropy")


class OneHotActions:
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
        """Draw one-hot actions ``[M, B, A]``, with the gradient of the softmax whose argmax they are.

        Args:
            outputs: the actors', ``[M, B, A]``.
            available: available actions, ``[M, B, A]``.
        """
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


class BoundedActions:
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
        """Return the tanh of the outputs ``[M, B, A]``, and 0 for numbers that an agent's action lacks."""
        return outputs.tanh() * self._exists

    def entropy(self, outputs: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002
        """Return 0 for each agent, ``[M, B]``: these policies are deterministic."""
        return torch.zeros(outputs.shape[:2], device=outputs.device)


TeamActions = OneHotActions | BoundedActions
"""Recorded actions (``done``) and an actor's (``chosen``) as critics see them, ``[M, B, A]``."""


def team_actions(
    spaces: Spaces, temperature: float, rng: np.random.Generator, device: torch.device
) -> TeamActions:
    """Choose how actors' outputs become actions, by the space of the actions.

    Raises:
        UnsupportedSpaceError: an action is not bounded.
    """
    space: gym.Space[Any] = spaces.action
    if isinstance(space, gym.spaces.Box):
        return BoundedActions(ActionBounds(space), device)
    return OneHotActions(Team.of(spaces).most_actions, temperature, rng)


def gumbel(rng: np.random.Generator, into: Floats) -> Floats:
    """Draw from the standard Gumbel distribution, in place.

    The largest of some logits, each with such noise added, is a draw from their softmax.
    """
    rng.standard_exponential(dtype=np.float32, out=into)
    np.maximum(into, np.finfo(np.float32).tiny, out=into)
    return np.negative(np.log(into, out=into), out=into)


def _masked(logits: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
    return logits if available is None else logits.masked_fill(~available, UNAVAILABLE)


class _Seen(NamedTuple):
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


def _joint(actions: torch.Tensor) -> torch.Tensor:
    """Put the actions of all agents, ``[M, B, A]``, side by side: ``[B, M * A]``."""
    return actions.transpose(0, 1).flatten(1)


class MADDPGEmbryo(OptimizedEmbryo, ReplayEmbryo):
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
    contract: ClassVar[type[torch.nn.Module]] = TeamDeterministic
    example: ClassVar[str] = "team_deterministic"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    norms: ClassVar[tuple[str, ...]] = ("critic_gradient_norm", "actor_gradient_norm")
    draws_apart: ClassVar[bool] = True
    settings_type: ClassVar[type[MADDPGSettings]] = MADDPGSettings
    settings: MADDPGSettings
    model: TeamDeterministic
    _rng: np.random.Generator

    def __init__(self, spaces: Spaces, model: TeamDeterministic, settings: MADDPGSettings, seed: int) -> None:
        super().__init__(model, settings, seed)
        actors = model.actor_parameter_count
        self._actors_adam = self._optimize(slice(actors), "actors")
        self._optimizer = self._optimize(slice(actors, None), "critics")
        self._target = TargetNetwork(model, self._flat)
        self._networks["target"] = self._target.model
        self._exchange = Exchange(self._flat.device)
        self._actions = team_actions(spaces, settings.temperature, self._rng, self._flat.device)
        self.schedule(0)

    # The targets, and the losses.

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

    # The gradients of the losses, and the steps of the optimizers.

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
        self._means.add(diagnostics, self._step(self._optimizer), self._step(self._actors_adam))
        self._target.follow(self.settings.target_tau)
        priorities = self._exchange.to_host_if(errors, asked=self.prioritised)
        return UpdateResult(len(batch.reward) * self._learners.number, priorities)

    def _seen(self, records: Records) -> _Seen:
        """Bring records ``[B]`` to the networks' device, agent by agent."""
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


class MADDPGAgent(Agent):
    """Acts for all agents of a team, each by its own observation; records the actions.

    Discrete actions are drawn from the policies, or with probability epsilon any available ones; continuous
    ones have normally distributed noise.

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
        self._rng = np.random.default_rng(seed)
        self._bounds = None if model.team.discrete else ActionBounds(spaces.action)
        self._noise = np.empty((num_envs, model.team.agents, model.team.most_actions), np.float32)
        self._unavailable = np.empty(self._noise.shape, np.bool_)
        self._luck = np.empty(self._noise.shape[:2], np.float32)
        self._is_random = np.empty(self._luck.shape, np.bool_)
        self._action = np.empty(self._luck.shape, np.intp)
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
        if self._bounds is None:
            self._rng.random(dtype=np.float32, out=self._luck)
            np.less(self._luck, self._epsilon, out=self._is_random)
            np.copyto(outputs, np.float32(0.0), where=self._is_random[..., None])  # All are alike then.
            outputs += gumbel(self._rng, self._noise)
        else:
            self._rng.standard_normal(dtype=np.float32, out=self._noise)
            self._noise *= np.float32(self._deviation)
            np.tanh(outputs, out=outputs)
            outputs += self._noise
        actions = self._best(outputs, observation)
        into["action"][...] = actions
        return actions

    def schedule(self, env_steps: int) -> None:
        """Set the share of random actions, and the deviation of the noise."""
        given, steps = self.settings, self.settings.exploration_steps
        self._epsilon = falling(given.epsilon_start, given.epsilon_end, steps, env_steps)
        self._deviation = falling(given.noise_start, given.noise_end, steps, env_steps)

    def act_greedily(self, observation: Records) -> Array:
        """Choose each policy's most probable action, or a continuous policy's action."""
        (outputs,) = self._executor(observation)
        return self._best(outputs if self._bounds is None else np.tanh(outputs, out=outputs), observation)

    def adopt(self, parameters: Floats) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)

    def _best(self, scores: Floats, observation: Records) -> Array:
        """Choose the available actions ``[N, M]`` of the highest scores, or scale numbers to their bounds.

        Args:
            scores: ``[N, M, A]``, overwritten.
        """
        if self._bounds is None:
            np.logical_not(observation["available"], out=self._unavailable)
            np.copyto(scores, UNAVAILABLE, where=self._unavailable)
            return scores.argmax(axis=2, out=self._action)
        np.clip(scores, -1.0, 1.0, out=scores)
        return self._bounds.scale(scores)
