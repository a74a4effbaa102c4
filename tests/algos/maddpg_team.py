"""A team of unlike agents, records of what it sees, and MADDPG in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from algos.teams import bury, cut_off, random_choices, random_records, team_spaces
from algos.training import parameters

from tianji_algos.batch import Batch
from tianji_algos.core import Spaces, build_model
from tianji_algos.maddpg.maddpg import MADDPGAgent, MADDPGEmbryo
from tianji_algos.maddpg.settings import MADDPGAgentSettings, MADDPGSettings
from tianji_algos.models.settings import TeamDeterministicSettings
from tianji_algos.models.teams.deterministic import TeamDeterministic
from tianji_algos.team import Records
from tianji_envs.core import VectorEnvironment

Array = npt.NDArray[Any]

SIZES = (2, 4, 3)
"""Number of actions, or of numbers of an action, of each agent."""

DISCRETE = team_spaces(SIZES, observation=3)
CONTINUOUS = team_spaces(SIZES, observation=3, state=5, continuous=True)
CUT = team_spaces(SIZES, observation=3, truncates=True)
CONTINUOUS_CUT = team_spaces(SIZES, observation=3, state=5, continuous=True, truncates=True)
"""Agents may be cut off one by one there."""

SMALL: dict[str, Any] = {"hidden": (6,), "critic_hidden": (7, 5)}
MODELS: Sequence[dict[str, Any]] = (
    {},
    {"share_parameters": True},
    {"rewards": "team"},
    {"share_parameters": True, "rewards": "team", "activation": "tanh"},
)


def build(spaces: Spaces, seed: int = 0, **settings: Any) -> TeamDeterministic:
    model = build_model(TeamDeterministic, spaces, TeamDeterministicSettings(**(SMALL | settings)), seed)
    assert isinstance(model, TeamDeterministic)
    return model


def build_embryo(
    spaces: Spaces, model: dict[str, Any] | None = None, seed: int = 0, **settings: Any
) -> MADDPGEmbryo:
    return MADDPGEmbryo(spaces, build(spaces, **(model or {})), MADDPGSettings(**settings), seed)


def records(spaces: Spaces, rows: int, seed: int = 0, alive: float = 1.0) -> Records:
    """Draw what a team sees; only a share of the agents is alive, and some of the others were cut off."""
    rng = np.random.default_rng(seed)
    seen = random_records(rng, (rows,), spaces)
    if "truncated" in (seen.dtype.names or ()):
        cut_off(seen, rng.random(seen["alive"].shape) < 0.3)
    bury(seen, seen["alive"] & (rng.random(seen["alive"].shape) >= alive))
    return seen


def actions(spaces: Spaces, seen: Records, seed: int = 0) -> Array:
    """Draw what a team does."""
    rng, space = np.random.default_rng(seed), spaces.action
    if isinstance(space, gym.spaces.Box):
        return rng.uniform(space.low, space.high, (len(seen), *space.shape)).astype(np.float32)
    return random_choices(rng, seen).astype(np.uint8)


def make_batch(spaces: Spaces, rows: int = 12, seed: int = 0, alive: float = 0.8) -> Batch:
    rng = np.random.default_rng(seed)
    seen = records(spaces, rows, seed, alive)
    return Batch(
        observation=seen,
        fields={"action": actions(spaces, seen, seed)},
        reward=rng.standard_normal(rows).astype(np.float32),
        next_observation=records(spaces, rows, seed + 1000, alive),
        discount=rng.choice([0.0, 0.9], rows).astype(np.float32),
        weight=rng.random(rows).astype(np.float32),
    )


def only_certain(batch: Batch) -> Batch:
    """Leave agents no choice but one action each, so that nothing is drawn."""
    for seen in (batch.observation, batch.next_observation):
        if "available" in (seen.dtype.names or ()):
            seen["available"] = np.arange(4) == (seen["available"].argmax(axis=2))[..., None]
    return batch


class Play:
    """Plays and trains in turn, with all transitions so far as the replay.

    Args:
        environment: to play in.
        model: settings of the networks.
        agent: settings of the exploration.
        training: settings of the updates; one is made after each step.
        seed: of everything.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        model: dict[str, Any],
        agent: dict[str, Any],
        training: dict[str, Any],
        seed: int,
    ) -> None:
        self._environment = environment
        self.spaces = Spaces(environment.observation_space, environment.action_space)
        self.embryo = build_embryo(self.spaces, model | {"seed": seed}, seed, **training)
        own = build(self.spaces, **model)
        number = environment.num_envs
        self.agent = MADDPGAgent(self.spaces, own, MADDPGAgentSettings(**agent), number, seed)
        self._rng = np.random.default_rng(seed)
        self._past: list[Batch] = []
        self._row = {
            spec.name: np.zeros((number, *spec.shape), spec.dtype)
            for spec in MADDPGAgent.fields(self.spaces, self.agent.settings)
        }
        self._seen = np.zeros(number, self.spaces.observation.dtype)
        environment.reset(seed, self._seen)
        self._fresh = np.zeros(number, np.bool_)
        self._steps = 0

    def train(self, steps: int) -> None:
        """Play so many steps of all environments and learn from them."""
        for _ in range(steps):
            self.agent.schedule(self._steps)
            self.agent.adopt(parameters(self.embryo))
            self._step()
            if self._steps >= self.embryo.settings.warmup_steps:
                self.embryo.update(self._drawn())

    def evaluator(self, number: int) -> MADDPGAgent:
        """Build an agent with what was learned, for so many environments."""
        return MADDPGAgent(self.spaces, self.embryo.model, self.agent.settings, number, seed=0)

    def _step(self) -> None:
        number, gamma = self._environment.num_envs, self.embryo.settings.gamma
        before, after = self._seen.copy(), self._seen
        reward = np.zeros(number, np.float32)
        terminated, truncated = np.zeros((2, number), np.bool_)
        actions = self.agent.act(before, self._row)
        self._environment.step(actions, after, reward, terminated, truncated)
        kept = ~self._fresh  # A step that begins an episode is no experience.
        if kept.any():
            self._past.append(
                Batch(
                    before[kept],
                    {"action": self._row["action"][kept]},
                    reward[kept],
                    after[kept],
                    np.where(terminated, 0.0, gamma).astype(np.float32)[kept],
                    np.ones(kept.sum(), np.float32),
                )
            )
        self._fresh = terminated | truncated
        self._steps += number

    def _drawn(self) -> Batch:
        """Draw as many steps as were played at once, whole, as a batch."""
        number = max(1, self.embryo.settings.batch_size // self._environment.num_envs)
        chosen = [self._past[k] for k in self._rng.integers(len(self._past), size=number)]
        return Batch(
            np.concatenate([batch.observation for batch in chosen]),
            {"action": np.concatenate([batch.fields["action"] for batch in chosen])},
            *(
                np.concatenate([getattr(batch, name) for batch in chosen])
                for name in ("reward", "next_observation", "discount", "weight")
            ),
        )
