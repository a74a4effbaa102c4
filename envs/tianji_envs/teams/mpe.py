"""Environment type ``"mpe"``: the particle worlds of Lowe et al. 2017 as package ``mpe2`` keeps them.

They are environments of type ``"pettingzoo"`` too, and the same then; here they step twice as fast.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs.core import EnvironmentFactory, VectorEnvironment
from tianji_envs.errors import UnknownEnvironmentError
from tianji_envs.teams.mpe_spread import spread_heuristic
from tianji_envs.teams.pettingzoo import check_keywords, create_team, find_parallel_env, missing
from tianji_envs.teams.pettingzoo_team import ByAgent
from tianji_envs.serial import SerialVectorEnvironment
from tianji_envs.suggestions import nearest


class MPEFactory(EnvironmentFactory):
    """Makes particle worlds; without options, as ``mpe2`` has them: 25 steps, discrete actions."""

    makes_teams: ClassVar[bool | None] = True

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Look for the world; the library is not imported."""
        find_world(id)

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002 - the config's word for it
        """Check names; which values there are, only the world knows."""
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
        """Build N with the options as keyword arguments of the world's ``parallel_env``."""
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
    """Import a world of ``mpe2`` as it is without PettingZoo's wrappers."""
    world: Callable[..., Any] = find_parallel_env(f"mpe2.{name}").raw_env
    return world


class ParticleWorld:
    """A world of ``mpe2`` whose agents all act at once: a ``ParallelEnv``.

    In a world agents take turns, and it moves after the last one's. ``parallel_env`` asks before each turn
    what its agent sees, goes through wrappers that check the order of calls, and so takes twice the time.

    Args:
        world: a ``raw_env``; episodes end for all agents at once.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._bounds = {agent: world.action_space(agent) for agent in world.possible_agents}
        self.possible_agents: Sequence[str] = world.possible_agents
        self.agents: Sequence[str] = ()

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Say what an agent sees."""
        space: gymnasium.Space[Any] = self._world.observation_space(agent)
        return space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Say what an agent does."""
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
        """Show what all agents see; no environment asks, since that is no more than observations."""
        state: npt.NDArray[Any] = self._world.state()
        return state

    def render(self) -> Any:
        """Draw the current state."""
        return self._world.render()

    def close(self) -> None:
        """Close the world."""
        self._world.close()
