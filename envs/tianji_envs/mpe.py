"""Environment type ``"mpe"``: the particle worlds of Lowe et al. 2017 as package ``mpe2`` keeps them.

They are environments of type ``"pettingzoo"`` too, and the same then; here they step twice as fast.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs.core import EnvironmentFactory, VectorEnvironment
from tianji_envs.errors import UnknownEnvironmentError
from tianji_envs.mpe_spread import spread_heuristic
from tianji_envs.pettingzoo import check_keywords, create_team, find_parallel_env, missing, nearest
from tianji_envs.pettingzoo_team import ByAgent
from tianji_envs.serial import SerialVectorEnvironment


class MPEFactory(EnvironmentFactory):
    """Makes particle worlds; without options, as ``mpe2`` has them: 25 steps, discrete actions."""

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Look for the world; the library is not imported."""
        find_world(id)

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
        world = find_parallel_env(f"mpe2.{name}").raw_env
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
    spec = importlib.util.find_spec("mpe2")
    if spec is None:
        raise missing(id, ModuleNotFoundError(name="mpe2"))
    versions: dict[str, int] = {}
    for module in pkgutil.iter_modules(spec.submodule_search_locations):
        versioned = re.fullmatch(r"(.+)_v(\d+)", module.name)
        if versioned is not None:
            versions[versioned[1]] = max(int(versioned[2]), versions.get(versioned[1], 0))
            if module.name == id:
                return id
    if id not in versions:
        hint = nearest(id, versions) or f"; it has {', '.join(sorted(versions))}"
        raise UnknownEnvironmentError(f"mpe2 has no world {id!r}{hint}")
    return f"{id}_v{versions[id]}"


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
