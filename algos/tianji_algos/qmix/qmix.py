"""QMIX (Rashid et al., 2018, section 4), and with other mixers VDN and IQL.

It reads from top to bottom: a batch of episodes, packed step by step without padding; the values that
targets bootstrap from, and the targets; the update rule (``update``: targets, loss, gradient and step), and
the agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.batch import SequenceBatch
from tianji_algos.core import Agent, Fields, SequenceEmbryo, Spaces, UpdateResult, require_model
from tianji_algos.device import Exchange
from tianji_algos.fields import FieldSpec
from tianji_algos.models.teams.q_network import NO_ACTION, TeamQ, team_that_chooses
from tianji_algos.optim import OptimizedEmbryo, TargetNetwork, add_gradients
from tianji_algos.qmix.settings import QMIXAgentSettings, QMIXSettings
from tianji_algos.rules import ActionRule, BestActionRule, Port
from tianji_algos.schedules import falling
from tianji_algos.team import UNAVAILABLE, Records, cut_off

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]
Counts = npt.NDArray[np.bool_]
Actions = npt.NDArray[np.int64]

DIAGNOSTICS: Final = ("loss", "td_error", "mean_q", "mean_target")


class PackedEpisodes:
    """Rows and steps of a batch, in the order of time; at each time the longest episodes come first.

    A row is a team's record, R in all; a step leads from one row to another, U in all, in the order of the
    rows. Episodes have the same order at every time, so the first B rows are first observations, and step i
    leads to row B + i.

    Attributes:
        sizes: number of episodes that have a row at each time, from 0 to the longest episode's length.
        seen: records ``[R]``.
        last_action: actions before each row, ``[R, M]``; ``NO_ACTION`` in an episode's first row.
        origin: the row in which each step begins, ``[U]``.
        action: actions of the step that begins in each row, ``[R, M]``; 0 where none does.
        reward: the team's reward for each step, ``[U, 1]``.
        goes_on: 0 for steps that terminated an episode, else 1; ``[U, 1]``.
    """

    def __init__(self, batch: SequenceBatch) -> None:
        episodes, most = batch.reward.shape
        order = np.argsort(-batch.length, kind="stable")
        length = batch.length[order]
        times = np.arange(length[0] + 1)[:, None]
        time, place = np.nonzero(times <= length)
        leads_on = time < length[place]
        self.sizes: list[int] = np.count_nonzero(times <= length, axis=1).tolist()
        self.seen: Records = batch.observation.reshape(-1).take(order[place] * (most + 1) + time, mode="clip")
        self.origin: Indices = np.flatnonzero(leads_on)
        time, place = time[self.origin], place[self.origin]
        steps = order[place] * most + time
        action = _steps_of(batch.fields["action"], steps)
        self.action = np.zeros((len(self.seen), *action.shape[1:]), np.int64)
        self.action[self.origin] = action
        self.reward: Floats = _steps_of(batch.reward, steps)[:, None]
        is_last = time == length[place] - 1
        self.goes_on: Floats = np.where(is_last & batch.terminated[order][place], 0.0, 1.0)[:, None].astype(
            np.float32
        )
        self.last_action = np.full_like(self.action, NO_ACTION)
        self.last_action[episodes:] = action


def _steps_of(field: npt.NDArray[Any], steps: Indices) -> npt.NDArray[Any]:
    """Take steps from a field ``[B, L, ...]``."""
    return field.reshape(-1, *field.shape[2:]).take(steps, axis=0, mode="clip")


def value_of(q: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Take the values ``[R, M]`` of actions ``[R, M]`` from those of all, ``q [R, M, A]``."""
    return q.gather(2, action[:, :, None])[:, :, 0]


def best_values(q: torch.Tensor, chooser: torch.Tensor, available: torch.Tensor) -> torch.Tensor:
    """Return the values ``[R, M]`` of each agent's best action.

    With the online network as chooser this is double Q-learning (van Hasselt et al., 2016, equation 4); with
    ``q`` itself it is the maximum.

    Args:
        q: values of all actions, by the target network, ``[R, M, A]``.
        chooser: values that decide which actions are best, ``[R, M, A]``.
    """
    return value_of(q, chooser.masked_fill(~available, UNAVAILABLE).argmax(dim=2))


def lambda_targets(
    reward: torch.Tensor,
    discount: torch.Tensor,
    value: torch.Tensor,
    td_lambda: float,
    sizes: Sequence[int],
    is_cut: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute ``y_t = r_t + discount_t ((1 - lambda) V_t+1 + lambda y_t+1)``, without importance weights.

    The target is Peng's Q(lambda) (Peng & Williams, 1994); lambda = 0 gives Q-learning's target. Beyond an
    episode's last step there is no ``y``, and ``V`` stands in for it.

    Args:
        reward: reward of each step, ``[U, 1]`` or ``[U, V]``, time first; the longest episodes come first.
        discount: ``gamma``, or 0 for steps after which nothing counts, ``[U, 1]`` or ``[U, V]``.
        value: value of the record that each step led to, ``[U, V]``.
        sizes: number of episodes that have a step at each time.
        is_cut: further steps after which ``V`` stands in for ``y``, ``[U, V]``; None: there are none.

    Returns:
        ``[U, V]``.
    """
    target = reward + discount * value
    trace = discount if is_cut is None else discount * ~is_cut
    if td_lambda == 0.0:
        return target
    stop = len(target)
    for now, later in zip(reversed(sizes[:-1]), reversed(sizes[1:]), strict=True):
        begin = stop - later
        steps = slice(begin - now, begin - now + later)  # This time's steps that are no episode's last.
        gain = target[begin:stop] - value[steps]
        target[steps].addcmul_(gain, trace[steps], value=td_lambda)
        stop = begin
    return target


class QMIXEmbryo(OptimizedEmbryo, SequenceEmbryo):
    """QMIX's update rule: trains a team's value towards targets that target networks bootstrap.

    Every step of every episode counts alike, up to the terminal one. A mixer treats a dead agent's action,
    its only available one, as any other, and so do agents that learn from the team's rewards: a dead agent's
    value is that of the team's later rewards. Where each agent learns from its own rewards, every step of
    every living agent counts alike, and dead agents have no further value and learn nothing.

    Where an agent is cut off and others go on, the value of that record is as if the agent went on, too. No
    target looks beyond that record, and no value of the step that begins there is learnt, since the agent has
    no part in that step. Without a mixer this holds for that agent alone. Later the agent is like a dead one.

    Args:
        model: trained in place, on its final device; its parameters move into one flat tensor.

    Raises:
        UnsupportedSpaceError: the environment has no team, or actions are continuous.
        UnsuitableModelError: the model is no ``TeamQ``.
    """

    algorithm: ClassVar[str] = "QMIX"
    contract: ClassVar[type[torch.nn.Module]] = TeamQ
    example: ClassVar[str] = "team_q"
    diagnostics: ClassVar[tuple[str, ...]] = DIAGNOSTICS
    settings_type: ClassVar[type[QMIXSettings]] = QMIXSettings
    settings: QMIXSettings
    model: TeamQ

    def __init__(self, spaces: Spaces, model: TeamQ, settings: QMIXSettings, seed: int) -> None:  # noqa: ARG002
        super().__init__(model, settings)
        self._optimizer = self._optimize()
        self._team = team_that_chooses(spaces)
        self._target = TargetNetwork(model, self._flat)
        self._networks["target"] = self._target.model
        self._rows = model.rows()
        self._exchange = Exchange(self._flat.device)
        self._values = self._team.agents if model.settings.mixer == "none" else 1
        self._each_for_itself = model.settings.mixer == "none" and settings.rewards == "individual"

    # The targets, and the values that are learnt.

    @torch.no_grad()
    def _targets(
        self, episodes: PackedEpisodes, inputs: torch.Tensor, state: torch.Tensor, online: torch.Tensor
    ) -> torch.Tensor:
        """Compute the targets of the values of all steps, ``[U, V]``.

        Args:
            inputs: inputs of the agents' networks, in all rows.
            online: values of all actions by the online network, in all rows.
        """
        settings, to_device = self.settings, self._exchange.to_device
        first = episodes.sizes[0]  # A step led to each of the rows after these, in the order of steps.
        led_to = episodes.seen[first:]
        q = self._target.model(inputs, episodes.sizes)[first:]
        chooser = online[first:] if settings.double else q
        best = best_values(q, chooser, to_device(led_to["available"]))
        value = self._target.model.mixer(best, state[first:])
        discount = to_device(episodes.goes_on) * settings.gamma
        if self._each_for_itself:
            reward = to_device(led_to["reward"])
            discount = discount * to_device(led_to["alive"] | cut_off(led_to))
        else:
            reward = to_device(episodes.reward)
        reward, is_cut = reward * settings.reward_scale, to_device(self._cut(led_to))
        return lambda_targets(reward, discount, value, settings.td_lambda, episodes.sizes[1:], is_cut)

    def _counts(self, episodes: PackedEpisodes) -> Counts:
        """Mark the values of all steps that are learnt, ``[U, V]``."""
        counts: Counts = episodes.seen["alive"] if self._each_for_itself else ~self._cut(episodes.seen)
        return counts[episodes.origin]

    def _cut(self, seen: Records) -> Counts:
        """Mark the values ``[R, V]`` that the steps to records ``[R]`` cut off: the team's if any agent's."""
        cut = cut_off(seen)
        return cut if self._values > 1 else np.logical_or.reduce(cut, axis=1, keepdims=True)

    # The gradient of the loss, and the step of the optimizer.

    def update(self, batch: SequenceBatch) -> UpdateResult:
        """Make one step of the optimizer, and update the target networks when it is time."""
        episodes = PackedEpisodes(batch)
        counts = self._counts(episodes)
        own = np.array([batch.length.sum(), np.count_nonzero(counts)], np.int64)
        steps, total = self._learners.total(own).tolist()
        self._gradient.zero_()
        diagnostics = self._differentiate(episodes, counts, total)
        add_gradients(self._gradient, self._learners)
        self._means.add(diagnostics, self._step(self._optimizer))
        self._target.keep_up(self.settings, self._optimizer.steps)
        return UpdateResult(int(steps))

    def _differentiate(self, episodes: PackedEpisodes, counts: Counts, total: int) -> torch.Tensor:
        """Write the gradient of half the squared error; return the diagnostics ``[4]``.

        Args:
            counts: values that are learnt, ``[U, V]`` bool.
            total: number of these over all learners; the learners' gradients add up to that of the mean.
        """
        to_device = self._exchange.to_device
        inputs = to_device(self._rows(episodes.seen, episodes.last_action))
        state = to_device(self._team.state_of(episodes.seen))
        origin = to_device(episodes.origin)
        q: torch.Tensor = self.model(inputs, episodes.sizes)
        target = self._targets(episodes, inputs, state, q.detach())
        taken = value_of(q, to_device(episodes.action)).index_select(0, origin)
        value: torch.Tensor = self.model.mixer(taken, state.index_select(0, origin))
        is_learnt = to_device(counts)
        error = (value - target) * is_learnt
        squares = error.square().sum()
        torch.autograd.backward(squares * (0.5 / max(1, total)))
        sums = (0.5 * squares, error.abs().sum(), (value * is_learnt).sum(), (target * is_learnt).sum())
        return torch.stack(sums).detach() / max(1, int(counts.sum()))


class QMIXAgent(Agent):
    """Acts epsilon-greedily for all agents of a team; records their actions.

    Raises:
        UnsupportedSpaceError: the environment has no team, or actions are continuous.
        UnsuitableModelError: the model is no ``TeamQ``.
    """

    settings_type: ClassVar[type[QMIXAgentSettings]] = QMIXAgentSettings
    default_model: ClassVar[str] = "team_q"
    default_embryo: ClassVar[str] = "qmix"
    plays_in_team: ClassVar[bool] = True

    def __init__(
        self, spaces: Spaces, model: TeamQ, settings: QMIXAgentSettings, num_envs: int, seed: int
    ) -> None:
        require_model(model, TeamQ, "QMIX", "team_q")
        self.settings = settings
        team = team_that_chooses(spaces)
        self._executor = model.executor(num_envs)
        self._rng = np.random.default_rng(seed)
        self._draws = np.empty((2, num_envs, team.agents), np.float32)
        self._masked = np.empty((num_envs, team.agents, team.most_actions), np.float32)
        self._number = np.empty(self._masked.shape, np.int32)
        self._beyond = np.empty(self._masked.shape, np.bool_)
        self._action = np.empty((num_envs, team.agents), np.int64)
        self.schedule(0)

    @classmethod
    def fields(cls, spaces: Spaces, settings: QMIXAgentSettings) -> tuple[FieldSpec, ...]:  # noqa: ARG003 - always the same
        """Record ``action [M]``, counted from 0."""
        return (team_that_chooses(spaces).action_field(),)

    @classmethod
    def rule(cls, spaces: Spaces, settings: QMIXAgentSettings) -> ActionRule:  # noqa: ARG003 - always the same
        """Choose the best available actions."""
        team = team_that_chooses(spaces)
        values, meaning = (
            (team.agents, team.most_actions),
            "of each agent's actions, as its network gives them",
        )
        return BestActionRule(Port("action_values", np.dtype(np.float32), values, meaning))

    def act(self, observation: Records, into: Fields) -> Actions:
        """Choose the best available actions, each with probability epsilon any; write ``action [N, M]``."""
        actions = self._act(observation, self._epsilon)
        into["action"][...] = actions
        return actions

    def act_greedily(self, observation: Records) -> Actions:
        """Choose the best available actions, or each with probability ``eval_epsilon`` any."""
        return self._act(observation, self.settings.eval_epsilon)

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        """Clear the states and last actions of earlier episodes."""
        self._executor.forget(where)

    def schedule(self, env_steps: int) -> None:
        """Set epsilon."""
        settings = self.settings
        self._epsilon = falling(
            settings.epsilon_start, settings.epsilon_end, settings.epsilon_steps, env_steps
        )

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        """Act with these parameters from now on."""
        self._executor.adopt(parameters)

    def _act(self, observation: Records, epsilon: float) -> Actions:
        available: npt.NDArray[np.bool_] = observation["available"]
        (q,) = self._executor(observation)
        self._masked.fill(UNAVAILABLE)
        np.copyto(self._masked, q, where=available)
        self._masked.argmax(axis=2, out=self._action)
        if epsilon > 0.0:
            self._explore(available, epsilon)
        self._executor.note(self._action)
        return self._action

    def _explore(self, available: npt.NDArray[np.bool_], epsilon: float) -> None:
        """Replace actions by random available ones, each with probability epsilon."""
        self._rng.random(dtype=np.float32, out=self._draws)
        luck, choice = self._draws
        np.cumsum(available, axis=2, dtype=np.int32, out=self._number)  # of each available action, from 1
        choice *= self._number[..., -1]
        np.greater(self._number, choice[..., None], out=self._beyond)
        np.copyto(self._action, self._beyond.argmax(axis=2), where=luck < epsilon)
