"""N battles of SMAX as a ``VectorEnvironment``: one compiled call a step.

This module imports JAX, after ``smax`` has set JAX's environment variables: nothing else imports this module.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxmarl.environments.smax import HeuristicEnemySMAX, map_name_to_scenario

from tianji_envs import team
from tianji_envs.core import Array, VectorEnvironment, derive_seed

PIXELS: Final = 12
"""Pixels of a drawing for a unit of length."""

_ALLY, _ENEMY, _GROUND = (60, 100, 230), (200, 70, 50), (240, 240, 240)


class Battles(NamedTuple):
    """The state between steps, ``[N, ...]`` each, in JAX's memory.

    Attributes:
        keys: current keys of the battles' random streams.
        states: JaxMARL's states of the battles.
        ended: the last step ended the battle.
    """

    keys: jax.Array
    states: Any
    ended: jax.Array


class Shown(NamedTuple):
    """Result of a step, in two arrays: each array that leaves JAX costs a call.

    Attributes:
        numbers: observations, state and the team's reward, ``[N, M * O + S + 1]`` float32.
        flags: available actions, who is alive, whether the step won, terminated or truncated a battle,
            ``[N, M * A + M + 3]`` bool.
    """

    numbers: jax.Array
    flags: jax.Array


class SMAXVectorEnvironment(VectorEnvironment):
    """N battles."""

    won: npt.NDArray[np.bool_]

    def __init__(self, scenario: str, num_envs: int, keywords: dict[str, Any]) -> None:
        env = _build(scenario, keywords)
        self._env = env
        self.num_envs = num_envs
        self.agents = tuple(env.agents)
        self._shapes = (env.num_allies, env.obs_size), (env.num_allies, env.num_ally_actions)
        self.observation_space = team.TeamSpace(*self._shapes[0], env.num_ally_actions, env.state_size)
        self.action_space = gymnasium.spaces.MultiDiscrete([env.num_ally_actions] * env.num_allies)
        self.won = np.zeros(num_envs, np.bool_)
        self._go_on = jax.jit(self._trace_step, donate_argnums=0)
        self._battles: Battles | None = None

    def reset(self, seed: int, observation: Array) -> None:
        """Begin a battle in every environment."""
        seeds = [derive_seed(seed, index) for index in range(self.num_envs)]
        keys = jnp.stack([jax.random.PRNGKey(one) for one in seeds])
        # A battle begins as after the end of another one, so that JAX has one function to compile.
        ended = Battles(keys, self._blank(keys), jnp.ones(self.num_envs, jnp.bool_))
        self.won[...] = self._act(ended, np.zeros((self.num_envs, len(self.agents)), np.int32), observation)[
            :, 0
        ]

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Act once in every battle, or begin it anew."""
        assert self._battles is not None
        # JAX may read its arguments' memory until the step is done: it gets a copy of the caller's.
        ends = self._act(self._battles, actions.astype(np.int32), observation)
        reward[...] = observation[team.REWARD][:, 0]
        self.won[...], terminated[...], truncated[...] = ends.T

    def _act(
        self, battles: Battles, actions: npt.NDArray[np.int32], observation: Array
    ) -> npt.NDArray[np.bool_]:
        """Step; returns whether each battle was won, terminated and truncated, ``[N, 3]``."""
        (agents, seen), (_, choices) = self._shapes
        self._battles, shown = self._go_on(battles, actions)
        numbers, flags = np.asarray(shown.numbers), np.asarray(shown.flags)
        observation[team.OBSERVATION] = numbers[:, : agents * seen].reshape(-1, agents, seen)
        observation[team.STATE] = numbers[:, agents * seen : -1]
        observation[team.REWARD] = numbers[:, -1:]
        observation[team.AVAILABLE] = flags[:, : agents * choices].reshape(-1, agents, choices)
        observation[team.ALIVE] = flags[:, agents * choices : -3]
        return flags[:, -3:]

    def _trace_step(self, battles: Battles, actions: jax.Array) -> tuple[Battles, Shown]:
        keys, now = _split(battles.keys)
        chosen = {agent: actions[:, i] for i, agent in enumerate(self.agents)}
        _, stepped, rewards, dones, _ = jax.vmap(self._env.step_env)(now, battles.states, chosen)
        begins = battles.ended

        def begin_anew() -> Any:
            def choose(new: jax.Array, old: jax.Array) -> jax.Array:
                return jnp.where(begins.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            return jax.tree.map(choose, jax.vmap(self._env.reset)(now)[1], stepped)

        states = jax.lax.cond(begins.any(), begin_anew, lambda: stepped)
        alive = stepped.state.unit_alive
        ours, theirs = (part.any(axis=1) for part in jnp.split(alive, [len(self.agents)], axis=1))
        ends = dones["__all__"] & ~begins
        terminated = ~(ours & theirs) & ends
        reward = jnp.where(begins, 0.0, rewards[self.agents[0]])
        shown = self._show(states, reward, terminated & ours, terminated, ends & ~terminated)
        return Battles(keys, states, ends), shown

    def _blank(self, keys: jax.Array) -> Any:
        """Return states of zeros, which nothing reads."""
        shapes = jax.eval_shape(jax.vmap(self._env.reset), keys)[1]
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def _show(
        self, states: Any, reward: jax.Array, won: jax.Array, terminated: jax.Array, truncated: jax.Array
    ) -> Shown:
        seen = jax.vmap(self._env.get_obs)(states)
        available = jax.vmap(self._env.get_avail_actions)(states)
        world = jax.vmap(self._env.get_world_state)(states)
        alive = states.state.unit_alive[:, : len(self.agents)]
        numbers = [*(seen[agent] for agent in self.agents), world, reward[:, None]]
        flags = [*(available[agent].astype(jnp.bool_) for agent in self.agents), alive]
        flags += [flag[:, None] for flag in (won, terminated, truncated)]
        return Shown(jnp.concatenate(numbers, axis=1), jnp.concatenate(flags, axis=1))

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the first battle: allies in blue, enemies in red, paler the more they are hurt."""
        assert self._battles is not None
        units = jax.tree.map(lambda leaf: np.asarray(leaf[0]), self._battles.states.state)
        env = self._env
        picture = np.full((PIXELS * env.map_height, PIXELS * env.map_width, 3), _GROUND, np.uint8)
        rows, columns = np.indices(picture.shape[:2]) / PIXELS
        full, radiuses = np.asarray(env.unit_type_health), np.asarray(env.unit_type_radiuses)
        for i in np.flatnonzero(units.unit_alive):
            kind, (x, y) = units.unit_types[i], units.unit_positions[i]
            inside = (columns - x) ** 2 + (rows - y) ** 2 < radiuses[kind] ** 2
            health = 0.25 + 0.75 * units.unit_health[i] / full[kind]
            colour = np.array(_ALLY if i < len(self.agents) else _ENEMY)
            picture[inside] = health * colour + (1 - health) * np.array(_GROUND)
        return picture

    def close(self) -> None:
        """Forget the battles."""
        self._battles = None


def _build(scenario: str, keywords: dict[str, Any]) -> Any:
    build: Any = HeuristicEnemySMAX  # JaxMARL states no types here.
    look_up: Any = map_name_to_scenario
    return build(scenario=look_up(scenario), **keywords)


def _split(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split N keys; returns the keys that carry on and those for one step."""
    both = jax.vmap(jax.random.split)(keys)
    return both[:, 0], both[:, 1]
