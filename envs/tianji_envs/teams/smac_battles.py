"""One battle of StarCraft II, as ``smac`` and ``smaclite`` give it; either is imported when one is built."""

from __future__ import annotations

import contextlib
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs.errors import UnknownEnvironmentError

LITE_LIMIT: Final = 120
"""Steps that a battle of ``smaclite`` may take, which sets no limit itself; on most of its maps SMAC's."""


class Sizes(NamedTuple):
    """Of one battle.

    Attributes:
        agents: M.
        observation: O, of each agent.
        actions: A, of each agent.
        state: S.
    """

    agents: int
    observation: int
    actions: int
    state: int


class Outcome(NamedTuple):
    """What a step led to.

    Attributes:
        reward: the team's.
        terminated: a side is beaten.
        truncated: the time is up, or the game was lost.
        won: the enemies are beaten.
    """

    reward: float
    terminated: bool
    truncated: bool
    won: bool


class Battle(ABC):
    """One battle; both packages show it alike.

    Args:
        name: of the map.
        limit: steps that it may take; None: as the package says.
        keywords: of the package's environment.
    """

    sizes: Sizes
    _env: Any
    """The package's environment."""

    @abstractmethod
    def __init__(self, name: str, limit: int | None, keywords: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def begin(self, seed: int | None) -> None:
        """Begin an episode; with a seed, a random stream, too."""

    @abstractmethod
    def step(self, actions: list[int]) -> Outcome:
        """Act once; the dead do nothing, which is action 0 and theirs alone."""

    def observations(self) -> Any:
        """Give what each agent sees, ``[M, O]``; zeros where it is dead."""
        return self._env.get_obs()

    def state(self) -> npt.NDArray[Any]:
        """Give the state ``[S]``."""
        return np.asarray(self._env.get_state())

    def available(self) -> Any:
        """Give 1 for each action that is available, ``[M, A]``."""
        return self._env.get_avail_actions()

    def close(self) -> None:
        """End the game. Harmless when repeated."""
        self._env.close()


class StarCraftBattle(Battle):
    """A battle of ``smac.env.StarCraft2Env``, which starts the game when the first episode begins."""

    def __init__(self, name: str, limit: int | None, keywords: Mapping[str, Any]) -> None:
        self._build = importlib.import_module("smac.env").StarCraft2Env
        # Told of the limit, it ends a battle itself; left in the middle of one, it would start another game.
        self._limit = limit
        self._keywords = {"map_name": name, "continuing_episode": True, **keywords}
        self._env = self._built(seed=None)
        info = self._env.get_env_info()
        self.sizes = Sizes(info["n_agents"], info["obs_shape"], info["n_actions"], info["state_shape"])

    def _built(self, seed: int | None) -> Any:
        try:
            env = self._build(seed=seed, **self._keywords)
        except KeyError as cause:
            raise UnknownEnvironmentError(
                f"smac has no map {cause}; `python -m smac.bin.map_list` names those it has"
            ) from cause
        if self._limit is not None:
            env.episode_limit = self._limit
        return env

    def begin(self, seed: int | None) -> None:
        """Begin an episode; the game takes a seed only when it starts, so that it starts again with one."""
        if seed is not None:
            self._env.close()
            self._env = self._built(seed)
        self._env.reset()

    def step(self, actions: list[int]) -> Outcome:
        """Act once."""
        reward, ended, info = self._env.step(actions)
        # A game that was lost and restarted says that the battle has ended, and nothing else.
        cut = ended and (info.get("episode_limit", False) or "battle_won" not in info)
        return Outcome(reward, ended and not cut, cut, ended and info.get("battle_won", False))


class LiteBattle(Battle):
    """A battle of ``smaclite``, which gymnasium makes."""

    def __init__(self, name: str, limit: int | None, keywords: Mapping[str, Any]) -> None:
        importlib.import_module("smaclite")  # It registers its maps.
        try:
            with contextlib.redirect_stdout(sys.stderr):  # It tells which collision avoidance it has.
                made = gymnasium.make(f"smaclite/{name}-v0", disable_env_checker=True, **keywords)
        except gymnasium.error.UnregisteredEnv as cause:
            raise UnknownEnvironmentError(f"smaclite has no map {name!r}: {cause}") from cause
        self._limit = LITE_LIMIT if limit is None else limit
        self._steps = 0
        self._env = cast("Any", made.unwrapped)
        env = self._env
        self.sizes = Sizes(env.n_agents, env.obs_size, env.n_actions, env.state_size)

    def begin(self, seed: int | None) -> None:
        """Begin an episode."""
        self._env.reset(seed=seed)
        self._steps = 0

    def step(self, actions: list[int]) -> Outcome:
        """Act once."""
        _, reward, ended, _, info = self._env.step(actions)
        self._steps += 1
        return Outcome(reward, ended, not ended and self._steps >= self._limit, info["battle_won"])
