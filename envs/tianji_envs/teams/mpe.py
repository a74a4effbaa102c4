"""Environment type ``"mpe"``: the particle worlds of Lowe et al. 2017 as package ``mpe2`` keeps them.

The same worlds are available by type ``"pettingzoo"``; this type steps twice as fast.
"""

from __future__ import annotations

import importlib.util
import itertools
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs.core import Array, EnvironmentFactory, VectorEnvironment
from tianji_envs.errors import UnknownEnvironmentError
from tianji_envs.options import nearest
from tianji_envs.serial import SerialVectorEnvironment
from tianji_envs.team import OBSERVATION
from tianji_envs.teams.pettingzoo import ByAgent, check_keywords, create_team, find_parallel_env, missing


class MPEFactory(EnvironmentFactory):
    """Makes particle worlds; without options, as ``mpe2`` has them: 25 steps, discrete actions."""

    makes_teams: ClassVar[bool | None] = True

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Look for the world without importing the library."""
        find_world(id)

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002 - the config's word for it
        """Check names; only the world knows the values."""
        name = find_world(id)
        if options:
            check_keywords(id, _raw(name), options)

    def make(
        self,
        id: str,  # noqa: A002 - the config's word for it
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render: bool = False,
        *,
        evaluation: bool = False,  # noqa: ARG002 - episodes are whole, and rewards the environment's own
        threads: int = 1,  # noqa: ARG002 - all are stepped by the caller's thread
    ) -> VectorEnvironment:
        """Build N worlds with the options as keyword arguments of the world's ``parallel_env``."""
        name = find_world(id)
        world = _raw(name)
        check_keywords(id, world, options)
        keywords = dict(options or {})
        if max_episode_steps is not None:
            keywords["max_cycles"] = max_episode_steps

        def create(**keywords: Any) -> ParticleWorld:
            return ParticleWorld(world(**keywords))

        vector = SerialVectorEnvironment(
            name, lambda: create_team(name, create, keywords, render), num_envs, None
        )
        if name.startswith("simple_spread_"):
            vector.heuristic = spread_heuristic(vector, keywords)
        return vector


def find_world(id: str) -> str:  # noqa: A002 - the config's word for it
    """Find the module of ``mpe2`` that an id means.

    Args:
        id: such as ``"simple_spread"``, the newest version of it, or ``"simple_spread_v3"``.

    Raises:
        UnknownEnvironmentError: no such world; names the nearest.
        MissingExtraError: ``mpe2`` is not installed.
    """
    worlds = installed_worlds()
    if not worlds:
        raise missing(id, ModuleNotFoundError(name="mpe2"))
    if id in worlds:
        return f"{id}_v{max(worlds[id])}"
    if id in (f"{world}_v{version}" for world, versions in worlds.items() for version in versions):
        return id
    hint = nearest(id, worlds) or f"; it has {', '.join(worlds)}"
    raise UnknownEnvironmentError(f"mpe2 has no world {id!r}{hint}")


def installed_worlds() -> dict[str, list[int]]:
    """List the worlds of ``mpe2`` and their versions without importing it; none if it is not installed."""
    spec = importlib.util.find_spec("mpe2")
    worlds: dict[str, list[int]] = {}
    for module in pkgutil.iter_modules(spec.submodule_search_locations if spec else []):
        versioned = re.fullmatch(r"(.+)_v(\d+)", module.name)
        if versioned is not None:
            worlds.setdefault(versioned[1], []).append(int(versioned[2]))
    return dict(sorted(worlds.items()))


def _raw(name: str) -> Callable[..., Any]:
    """Import a world of ``mpe2`` without PettingZoo's wrappers."""
    world: Callable[..., Any] = find_parallel_env(f"mpe2.{name}").raw_env
    return world


class ParticleWorld:
    """A world of ``mpe2`` whose agents all act at once: a ``ParallelEnv``.

    Agents of a world take turns, and the world moves after the last turn. ``parallel_env`` observes before
    each turn, goes through wrappers that check the order of calls, and so takes twice the time.

    Args:
        world: a ``raw_env``; episodes end for all agents at once.
    """

    ends_together: ClassVar[bool] = True

    def __init__(self, world: Any) -> None:
        self._world = world
        self.metadata = world.metadata
        self._bounds = {agent: world.action_space(agent) for agent in world.possible_agents}
        self.possible_agents: Sequence[str] = world.possible_agents
        self.agents: Sequence[str] = ()

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the space of an agent's observations."""
        space: gymnasium.Space[Any] = self._world.observation_space(agent)
        return space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the space of an agent's actions."""
        space: gymnasium.Space[Any] = self._bounds[agent]
        return space

    def reset(self, seed: int | None = None) -> tuple[ByAgent, Any]:
        """Begin an episode."""
        self._world.reset(seed=seed)
        self.agents = self.possible_agents
        return self._observe(), {}

    def step(self, actions: dict[str, Any]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, Any]:
        """Let every agent take its turn."""
        world = self._world
        for agent in self.agents:
            action, bounds = actions[agent], self._bounds[agent]
            if isinstance(bounds, gymnasium.spaces.Box):
                action = np.clip(action, bounds.low, bounds.high)
            world.step(action)
        seen = self._observe()
        if any(world.terminations.values()) or any(world.truncations.values()):
            self.agents = ()
        return seen, world.rewards, world.terminations, world.truncations, {}

    def _observe(self) -> ByAgent:
        return {agent: self._world.observe(agent) for agent in self.possible_agents}

    def state(self) -> npt.NDArray[Any]:
        """Return all agents' observations; no environment asks for the state, which is no more than these."""
        state: npt.NDArray[Any] = self._world.state()
        return state

    def render(self) -> Any:
        """Draw the current state."""
        return self._world.render()

    def close(self) -> None:
        """Close the world."""
        self._world.close()


_MOST_AGENTS: Final = 8
"""Most agents of the heuristic, which tries all assignments: 40,320 for eight."""

# mpe2's physics: a step of 0.1 moves an agent by 0.1 of its velocity; the agent then keeps 0.75 of the
# velocity and gets 0.5 more in the direction in which it pushes.
_COASTS: Final = 0.1 / (1 - 0.75)
"""Distance that an agent still coasts without pushes, per unit of velocity."""
_PUSH: Final = 0.5 * _COASTS
"""Distance that one push adds."""


def spread_heuristic(
    vector: VectorEnvironment, options: Mapping[str, Any]
) -> Callable[[Array], Array] | None:
    """Build the heuristic policy of ``simple_spread``: each agent heads for a landmark of its own.

    Returns:
        A function from records ``[N]`` to actions; None if there are more than eight agents, or they do not
        see all landmarks.
    """
    agents = len(vector.agents)
    if agents > _MOST_AGENTS or options.get("num_landmark_neighbors") is not None:
        return None
    push = _push_both if isinstance(vector.action_space, gymnasium.spaces.Box) else _push_one
    assignments = np.array(list(itertools.permutations(range(agents))))

    def act(seen: Array) -> Array:
        return push(_misses(seen[OBSERVATION], assignments))

    return act


def _misses(observation: Array, assignments: Array) -> Array:
    """Compute the distances by which agents would miss their landmarks without further pushes.

    Args:
        observation: ``[N, M, O]``: an agent's velocity, its position, all landmarks relative to it, others.
        assignments: all assignments of a landmark to each agent, ``[P, M]``.

    Returns:
        ``[N, M, 2]``.
    """
    num_envs, agents, _ = observation.shape
    landmarks = observation[..., 4 : 4 + 2 * agents].reshape(num_envs, agents, agents, 2)
    distances = np.linalg.norm(landmarks, axis=-1)
    total = sum(distances[:, m, assignments[:, m]] for m in range(agents))  # [N, P]
    best = assignments[np.argmin(total, axis=1)]
    own = np.take_along_axis(landmarks, best[:, :, None, None], axis=2)[:, :, 0]
    return own - _COASTS * observation[..., :2]


def _push_one(misses: Array) -> Array:
    """Push along the axis of the larger miss if a push reduces it: 1 left, 2 right, 3 down, 4 up; else 0."""
    axis = np.argmax(np.abs(misses), axis=-1)
    larger = np.take_along_axis(misses, axis[..., None], axis=-1)[..., 0]
    return np.where(np.abs(larger) > _PUSH / 2, 1 + 2 * axis + (larger > 0), 0)


def _push_both(misses: Array) -> Array:
    """Push along both axes as far as needed: nothing, left, right, down, up, each from 0 to 1."""
    pushes = np.clip(misses / _PUSH, -1, 1)
    actions = np.zeros((*misses.shape[:-1], 5), np.float32)
    actions[..., [2, 4]] = np.maximum(pushes, 0)
    actions[..., [1, 3]] = np.maximum(-pushes, 0)
    return actions
