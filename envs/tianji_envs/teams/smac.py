"""Environment type ``"smac"``: battles of StarCraft II by ``smac``, or without the game by ``smaclite``.

Users install both packages from their repositories: no extra of TianJi's can bring them. This module imports
either when it builds a battle.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, cast

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs import team
from tianji_envs.core import Array, EnvironmentFactory, VectorEnvironment, close_all, derive_seed
from tianji_envs.errors import (
    BrokenEnvironmentError,
    EnvironmentFailure,
    MissingExtraError,
    UnknownEnvironmentError,
    WrongOptionError,
)

LITE_LIMIT: Final = 120
"""Maximum steps of a battle of ``smaclite``, which sets no limit itself; on most of its maps SMAC's limit."""


class Sizes(NamedTuple):
    """Sizes of the arrays of one battle.

    Attributes:
        agents: M, number of agents.
        observation: O, numbers in each agent's observation.
        actions: A, number of each agent's actions.
        state: S, numbers in the state.
    """

    agents: int
    observation: int
    actions: int
    state: int


class Outcome(NamedTuple):
    """Result of a step.

    Attributes:
        reward: reward of the team.
        terminated: a side is beaten.
        truncated: the time is up, or the game was lost and restarted.
        won: the enemies are beaten.
    """

    reward: float
    terminated: bool
    truncated: bool
    won: bool


class Battle(ABC):
    """One battle, with the interface that both packages share.

    Args:
        limit: maximum steps of the battle; None: the package's own.
    """

    sizes: Sizes
    _env: Any
    """The package's environment."""

    @abstractmethod
    def __init__(self, name: str, limit: int | None, keywords: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def begin(self, seed: int | None) -> None:
        """Begin an episode; a seed also restarts the random stream."""

    @abstractmethod
    def step(self, actions: list[int]) -> Outcome:
        """Act once; dead agents take action 0, no operation, which is theirs alone."""

    def observations(self) -> Any:
        """Return the agents' observations, ``[M, O]``; zeros where an agent is dead."""
        return self._env.get_obs()

    def state(self) -> npt.NDArray[Any]:
        """Return the state ``[S]``."""
        return np.asarray(self._env.get_state())

    def available(self) -> Any:
        """Return 1 for each available action, ``[M, A]``."""
        return self._env.get_avail_actions()

    def close(self) -> None:
        """End the game. Harmless when repeated."""
        self._env.close()


class StarCraftBattle(Battle):
    """A battle of ``smac.env.StarCraft2Env``, which starts the game when the first episode begins."""

    def __init__(self, name: str, limit: int | None, keywords: Mapping[str, Any]) -> None:
        self._build = importlib.import_module("smac.env").StarCraft2Env
        # The package ends a battle at the limit itself; a reset within a battle would start another game.
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
        """Begin an episode; a seed restarts the game, which takes seeds only at its start."""
        if seed is not None:
            self._env.close()
            self._env = self._built(seed)
        self._env.reset()

    def step(self, actions: list[int]) -> Outcome:
        """Act once."""
        reward, ended, info = self._env.step(actions)
        # A lost and restarted game reports the end of the battle, and nothing else.
        cut = ended and (info.get("episode_limit", False) or "battle_won" not in info)
        return Outcome(reward, ended and not cut, cut, ended and info.get("battle_won", False))


class LiteBattle(Battle):
    """A battle of ``smaclite``, which gymnasium makes."""

    def __init__(self, name: str, limit: int | None, keywords: Mapping[str, Any]) -> None:
        importlib.import_module("smaclite")  # The import registers its maps.
        try:
            with contextlib.redirect_stdout(sys.stderr):  # It prints its collision avoidance.
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


NOOP: Final = 0
"""The only action of dead agents, and of them alone."""


class SMACVectorEnvironment(VectorEnvironment):
    """N battles."""

    won: npt.NDArray[np.bool_]

    def __init__(self, create: Callable[[], Battle], num_envs: int) -> None:
        self._battles = [create() for _ in range(num_envs)]
        sizes = self._battles[0].sizes
        self.num_envs = num_envs
        self.agents = tuple(f"ally_{i}" for i in range(sizes.agents))
        self.observation_space = team.TeamSpace(*sizes)
        self.action_space = gymnasium.spaces.MultiDiscrete([sizes.actions] * sizes.agents)
        self.won = np.zeros(num_envs, np.bool_)
        self._alive = np.zeros((num_envs, sizes.agents), np.bool_)
        self._ended = [False] * num_envs

    def reset(self, seed: int, observation: Array) -> None:
        """Begin a battle in every environment."""
        for i, battle in enumerate(self._battles):
            battle.begin(derive_seed(seed, i))
            self._ended[i] = False
            self._show(i, observation, 0.0)

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Act in, or begin anew, one battle after the other."""
        chosen = np.where(self._alive, actions, NOOP).tolist()
        for i, battle in enumerate(self._battles):
            if self._ended[i]:
                battle.begin(None)
                gained = 0.0
                terminated[i] = truncated[i] = self.won[i] = self._ended[i] = False
            else:
                gained, terminated[i], truncated[i], self.won[i] = battle.step(chosen[i])
                self._ended[i] = bool(terminated[i] or truncated[i])
            reward[i] = gained
            self._show(i, observation, gained)

    def _show(self, i: int, observation: Array, reward: float) -> None:
        battle = self._battles[i]
        available = np.asarray(battle.available(), np.bool_)
        self._alive[i] = ~available[:, NOOP]
        observation[team.OBSERVATION][i] = battle.observations()
        observation[team.STATE][i] = battle.state()
        observation[team.REWARD][i] = reward
        observation[team.AVAILABLE][i] = available
        observation[team.ALIVE][i] = self._alive[i]

    def render(self) -> npt.NDArray[np.uint8]:
        """Raise an error: battles cannot be drawn.

        Raises:
            BrokenEnvironmentError: always.
        """
        raise BrokenEnvironmentError("battles of SMAC cannot be drawn; smac's own save_replay() films them")

    def close(self) -> None:
        """End every game, also if the end of another one raises."""
        battles, self._battles = self._battles, []
        close_all(battle.close for battle in battles)


PACKAGES: Final[Mapping[str, type[Battle]]] = {"smac": StarCraftBattle, "smaclite": LiteBattle}

_SOURCES: Final = {
    "smac": "git+https://github.com/oxwhirl/smac.git",
    # Its master of September 2024, after v2.0.0; LiteBattle is written against this source.
    "smaclite": "git+https://github.com/uoe-agents/smaclite.git@0d6abbe",
}
_LITE_OPTIONS: Final = ("map_file", "use_cpp_rvo2")
"""Keyword arguments that smaclite's environment uses; it takes any others and ignores them."""
_OWN_OPTIONS: Final = {
    "map_name": "environment.id",
    "seed": "experiment.seed",
    "continuing_episode": "nothing: a time limit truncates",
}
"""Keyword arguments of the packages that users cannot set, and the keys that replace them."""


class SMACFactory(EnvironmentFactory):
    """Makes battles on maps of the StarCraft Multi-Agent Challenge (Samvelyan et al. 2019).

    The option ``package`` is "smac", the default, or "smaclite"; all others are keyword arguments of that
    package's environment.
    """

    makes_teams: ClassVar[bool | None] = True

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Refuse an empty id; only the packages know their maps, to which users may add."""
        if not id:
            raise UnknownEnvironmentError('SMAC needs the name of a map, such as id = "3m"')

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002, ARG002 - alike in all
        """Check the options that TianJi knows, and look for package and game without importing anything."""
        package, keywords = _split(options)
        for name in keywords:
            if name in _OWN_OPTIONS:
                raise WrongOptionError(name, f"SMAC's {name} is no option; {_OWN_OPTIONS[name]} says it")
            if package == "smaclite" and name not in _LITE_OPTIONS:
                raise WrongOptionError(
                    name, f"smaclite has no option {name}; it has {' and '.join(_LITE_OPTIONS)}"
                )
        steps = _missing_steps(package)
        if steps:
            numbered = "; ".join(f"({i}) {step}" for i, step in enumerate(steps, 1))
            raise MissingExtraError(f"{package} needs what is not installed: {numbered}")

    def make(
        self,
        id: str,  # noqa: A002 - the config's word for it
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render: bool = False,  # noqa: ARG002 - the packages draw on a screen at most
        *,
        evaluation: bool = False,  # noqa: ARG002 - episodes are whole, and rewards the environment's own
        threads: int = 1,  # noqa: ARG002 - all are stepped by the caller's thread
    ) -> VectorEnvironment:
        """Build N battles; the game itself begins with the first ``reset``."""
        self.check_id(id)
        self.check_options(id, options or {})
        package, keywords = _split(options or {})
        create = partial(PACKAGES[package], id, max_episode_steps, keywords)
        try:
            return SMACVectorEnvironment(create, num_envs)
        except EnvironmentFailure:
            raise
        except Exception as cause:
            raise BrokenEnvironmentError(
                f"{package}'s {id} cannot be built with {keywords}: {type(cause).__name__}: {cause}"
            ) from cause


def _split(options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split options into the package and its keyword arguments."""
    keywords = dict(options)
    package = keywords.pop("package", "smac")
    if package not in PACKAGES:
        raise WrongOptionError("package", f'SMAC\'s package = {package!r}: it should be "smac" or "smaclite"')
    return package, keywords


def _missing_steps(package: str) -> list[str]:
    """Describe the missing steps of the installation, in order."""
    steps = []
    if importlib.util.find_spec(package) is None:
        steps.append(f"pip install {_SOURCES[package]}")
        if package == "smaclite":
            steps.append("install libspatialindex, which its Rtree loads (Debian: libspatialindex-c6)")
    if package == "smac":
        game = Path(os.environ.get("SC2PATH", "~/StarCraftII")).expanduser()
        if not game.is_dir():
            steps.append(
                "unpack StarCraft II for Linux (https://github.com/Blizzard/s2client-proto#downloads) into "
                f"{game}, or set SC2PATH to where it is"
            )
        if not (game / "Maps/SMAC_Maps").is_dir():
            steps.append(
                "unpack https://github.com/oxwhirl/smac/releases/download/v0.1-beta1/SMAC_Maps.zip into "
                f"{game / 'Maps'}"
            )
    return steps
