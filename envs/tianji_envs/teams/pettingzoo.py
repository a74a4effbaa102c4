"""Environment type ``"pettingzoo"``: parallel environments as PettingZoo defines them, from any module.

One such environment is a ``BaseEnv`` whose observations are a team's records.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tianji_envs.core import BaseEnv, EnvironmentFactory, VectorEnvironment, as_picture
from tianji_envs.errors import (
    BrokenEnvironmentError,
    EnvironmentFailure,
    MissingExtraError,
    UnknownEnvironmentError,
    UnsupportedSpaceError,
    WrongOptionError,
)
from tianji_envs.options import nearest, nearest_or_all, numbered
from tianji_envs.results import (
    Expected,
    UnfitError,
    bounds_of,
    describe,
    first_fault,
    reward_and_flags,
    wrong_result,
)
from tianji_envs.serial import SerialVectorEnvironment
from tianji_envs.team import ALIVE, AVAILABLE, OBSERVATION, REWARD, STATE, TRUNCATED, TeamSpace

LARGEST: Final = 4096
"""Most numbers in an agent's observation; a larger one is an image."""

_FLAT: Final = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)

TeamActions = spaces.MultiDiscrete | spaces.Box


def flat_size(who: str, space: gymnasium.Space[Any]) -> int:
    """Count the numbers that ``_Flat`` makes of an element of ``space``.

    Raises:
        UnsupportedSpaceError: the space is of images, or of no fixed number of numbers.
    """
    if not isinstance(space, _FLAT):
        raise UnsupportedSpaceError(
            f"{who} sees {space}; Box, Discrete, MultiBinary and MultiDiscrete are supported, and a Dict of "
            "one of them as 'observation' and an 'action_mask'"
        )
    size = spaces.flatdim(space)
    is_image = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1
    if is_image or size > LARGEST:
        raise UnsupportedSpaceError(
            f"{who} sees {space}, an image; a team's agents see at most {LARGEST} numbers in a row"
        )
    return size


def team_actions(name: str, agents: Mapping[str, gymnasium.Space[Any]]) -> TeamActions:
    """Put the action spaces of all agents into one.

    Returns:
        ``MultiDiscrete [M]`` of ``Discrete`` spaces, counted from 0; a float32 ``Box [M, A]`` of boxes, each
        in a row, in which the numbers that an agent does not have are bounded by 0 and 0.

    Raises:
        UnsupportedSpaceError: there are other spaces, or both kinds.
    """
    parts = list(agents.values())
    choices = [int(space.n) for space in parts if isinstance(space, spaces.Discrete)]
    if len(choices) == len(parts):
        return spaces.MultiDiscrete(choices)
    boxes = [space for space in parts if isinstance(space, spaces.Box)]
    if len(boxes) == len(parts):
        return _padded(boxes)
    raise UnsupportedSpaceError(
        f"{name}: agents act in {dict(agents)}; the spaces of a team's actions are all Discrete, or all Box"
    )


def _padded(boxes: Sequence[spaces.Box]) -> spaces.Box:
    low, high = np.zeros((2, len(boxes), max(spaces.flatdim(box) for box in boxes)), np.float32)
    for m, box in enumerate(boxes):
        size = spaces.flatdim(box)
        low[m, :size] = box.low.ravel()
        high[m, :size] = box.high.ravel()
    return spaces.Box(low, high, dtype=np.float32)


MASK: Final = "action_mask"
"""PettingZoo's name of the mask of legal actions, in a Dict observation, an agent's info, or in both."""

ByAgent = Mapping[str, Any]
BY_AGENT: Final = ("observations", "rewards", "terminations", "truncations")
"""Results of ``step`` that are dicts by the agents' names."""


class _Flat:
    """Checks an element of a space and flattens it to a row of numbers."""

    def __init__(self, whose: str, space: gymnasium.Space[Any]) -> None:
        self._whose, self._space = whose, space  # In messages: "NAME: agent_0 sees".
        self._expected = Expected("an array", space.dtype, space.shape or ())
        self._bounds = bounds_of(space, 1) if np.dtype(space.dtype).kind in "iu" else {}
        self._stays = isinstance(space, spaces.Box | spaces.MultiBinary)
        self._first = self._choices = 0
        if isinstance(space, spaces.Discrete):
            self._first, self._choices = int(space.start), int(space.n)

    def __call__(self, value: Any) -> npt.NDArray[Any]:
        """Return an element as a row; elements of ``Discrete`` become one-hot."""
        try:
            self._expected.check(value)
        except UnfitError as error:
            raise BrokenEnvironmentError(f"{self._whose} {error}") from error
        if self._choices and 0 <= (at := int(value) - self._first) < self._choices:
            row = np.zeros(self._choices, np.float32)
            row[at] = 1.0
            return row
        if self._bounds and (fault := first_fault(np.asarray(value)[None, None], self._bounds)):
            what = fault.gave.removeprefix("gave ")
            raise BrokenEnvironmentError(f"{self._whose} {what}: {fault.wanted}")
        if self._stays:
            return value.reshape(-1) if type(value) is np.ndarray else np.ravel(value)
        return np.asarray(spaces.flatten(self._space, value))


class _Member:
    """One agent: its spaces, and its parts of the record."""

    def __init__(self, name: str, index: int, sees: gymnasium.Space[Any], acts: gymnasium.Space[Any]) -> None:
        self.name = name  # In error messages.
        self.index = index
        self.is_masked = isinstance(sees, spaces.Dict) and MASK in sees.spaces
        self.sees = sees["observation"] if isinstance(sees, spaces.Dict) and self.is_masked else sees
        self.size = flat_size(name, self.sees)
        self.acts = acts
        self.count = int(acts.n) if isinstance(acts, spaces.Discrete) else spaces.flatdim(acts)
        self.tells_mask: bool | None = None  # In its info; None: not known yet.
        self.flat = _Flat(f"{name} sees", self.sees)
        self.row: npt.NDArray[np.float32]
        self.choices: npt.NDArray[np.bool_] | None = None

    def write_to(self, record: npt.NDArray[Any]) -> None:
        """Write all further observations into ``record``."""
        self.row = record[OBSERVATION][self.index, : self.size]
        if AVAILABLE in (record.dtype.names or ()):
            self.choices = record[AVAILABLE][self.index, : self.count]

    def show(self, seen: Any, info: Any, *, is_alive: bool = True) -> None:
        """Write an observation, and the actions that its mask or the info's allows."""
        masks: dict[str, Any] = {}
        if self.is_masked:
            if not (isinstance(seen, Mapping) and seen.keys() >= {"observation", MASK}):
                raise BrokenEnvironmentError(
                    f"{self.name} sees a value {describe(seen)}; {{'observation', '{MASK}'}} is wanted"
                )
            seen, masks["observation"] = seen["observation"], seen[MASK]
        if isinstance(info, (dict, Mapping)) and info.get(MASK) is not None:
            masks["info"] = info[MASK]
        if self.choices is not None:
            self.choices[...] = True
            if masks or (is_alive and self.tells_mask is not False):
                self._choose(self.choices, masks, is_alive=is_alive)
        self.row[...] = self.flat(seen)

    def _choose(self, choices: npt.NDArray[np.bool_], masks: Mapping[str, Any], *, is_alive: bool) -> None:
        """Write the available actions by the masks of the observation and of the info, which must agree."""
        tells = "info" in masks
        if is_alive and self.tells_mask not in (None, tells):
            now, before = ("an", "none") if tells else ("no", "one")
            raise BrokenEnvironmentError(
                f"{self.name} has {now} {MASK} in its info, and had {before} before; "
                "one at reset() and at every step, or none at all, would be right"
            )
        if is_alive:  # An agent that acts no more may have no mask.
            self.tells_mask = tells
        for where, mask in masks.items():
            if np.shape(mask) != choices.shape:
                raise BrokenEnvironmentError(
                    f"{self.name} has an {MASK} of shape {np.shape(mask)} in its {where} for {self.count} "
                    f"actions; ({self.count},) would be right"
                )
            there = np.asarray(mask) != 0
            if where == "info" and self.is_masked and (there != choices).any():
                shown, in_info = masks.values()
                raise BrokenEnvironmentError(
                    f"{self.name}: its observation has {MASK} {shown}, its info {in_info}; one would be right"
                )
            choices[...] = there
        if not choices.any():
            if is_alive:
                raise BrokenEnvironmentError(f"{self.name} is alive, and its {MASK} leaves it no action")
            choices[...] = True

    def action(self, given: Any) -> Any:
        """Return the agent's own action, out of its row of the team's."""
        if isinstance(self.acts, spaces.Discrete):
            return given + int(self.acts.start)
        return given[: self.count].reshape(self.acts.shape)


class PettingZooTeam(BaseEnv):
    """A PettingZoo environment as a team's environment.

    An agent is alive while it is among the environment's ``agents``. The record of the step that truncates an
    agent still has its observation, which has a value. An episode ends when no agent is left. It is truncated
    if any agent that left last was; such agents are alive in its last record, and others are not.

    A record has a state where the environment declares a ``state_space`` that ``flat_size`` accepts, and its
    state is not just all observations in a row.

    Args:
        env: PettingZoo's ``ParallelEnv``, or a class with its methods; nothing else uses it.

    Raises:
        UnsupportedSpaceError: an agent sees images, or agents act in several ways.
    """

    def __init__(self, name: str, env: Any) -> None:
        self._name = name
        self._env = env
        self.metadata = getattr(env, "metadata", None)
        self.agents = tuple(env.possible_agents)
        self._members = {
            agent: _Member(f"{name}: {agent}", m, env.observation_space(agent), env.action_space(agent))
            for m, agent in enumerate(self.agents)
        }
        members = self._members.values()
        self.action_space = team_actions(
            name, {agent: member.acts for agent, member in self._members.items()}
        )
        self._is_discrete = isinstance(self.action_space, spaces.MultiDiscrete)
        self._numbers = reward_and_flags()
        self._state_space = self._find_state_space()
        self.observation_space = TeamSpace(
            agents=len(self.agents),
            observation=max(member.size for member in members),
            actions=max(member.count for member in members) if self._is_discrete else None,
            state=0 if self._state_space is None else spaces.flatdim(self._state_space),
            truncates=not getattr(env, "ends_together", False),
        )
        self._record = np.zeros((), self.observation_space.dtype)
        # Views: to look a part up costs as much as to write it.
        self._parts = {part: self._record[part] for part in self._record.dtype.names or ()}
        for member in members:
            member.write_to(self._record)
        self._living: list[str] = []
        if self._is_discrete:
            self.reset(0)  # Finds wrong masks now, and agents with masks in infos.

    def _find_state_space(self) -> gymnasium.Space[Any] | None:
        space: gymnasium.Space[Any] | None = getattr(self._env, "state_space", None)
        if space is None:
            return None
        try:
            flat_size("state", space)
        except UnsupportedSpaceError:
            return None  # Learners make do with all observations.
        seen, _ = self._results("reset", ("observations",), self._env.reset(seed=0))
        rows = [
            member.flat(seen[agent]["observation"] if member.is_masked else seen[agent])
            for agent, member in self._members.items()
            if agent in seen
        ]
        self._flat_state = _Flat(f"{self._name}: state() gave", space)
        is_no_more = np.array_equal(np.concatenate(rows), self._flat_state(self._env.state()))
        return None if is_no_more else space

    def reset(self, seed: int | None = None) -> npt.NDArray[Any]:
        """Begin an episode.

        Returns:
            A record, ``[]``; the next call writes into it again.
        """
        seen, infos = self._results("reset", ("observations",), self._env.reset(seed=seed))
        self._living = list(self._env.agents)
        if not self._living:
            raise BrokenEnvironmentError(f"{self._name}: reset() leaves no agent alive")
        self._show(seen, infos, self._living)
        return self._record

    def step(self, action: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], float, bool, bool]:
        """Act once.

        Args:
            action: ``[M]`` or ``[M, A]``; actions of dead agents are ignored.

        Returns:
            observation: a record, ``[]``; the next call writes into it again.
            reward: sum of all agents' rewards.
            terminated: the team's episode has terminated.
            truncated: the team's episode was truncated.
        """
        acting, members = self._living, self._members
        result = self._env.step(self.actions_of(action, acting))
        seen, rewards, ends, cuts, infos = self._results("step", BY_AGENT, result)
        self._living = [name for name in self._env.agents if not (ends.get(name) or cuts.get(name))]
        cut = [name for name in acting if cuts.get(name) and not ends.get(name)]
        over = not self._living
        truncated = over and bool(cut)
        self._show(seen, infos, self._living, cut)
        for name, reward in rewards.items():
            self._parts[REWARD][members[name].index] = reward
        return self._record, float(sum(rewards.values())), over and not truncated, truncated

    def _results(self, call: str, wanted: Sequence[str], result: Any) -> Sequence[Any]:
        """Refuse results of ``reset`` or ``step`` that are not dicts by agents, of numbers and flags."""
        if not isinstance(result, (tuple, list)) or len(result) != len(wanted) + 1:
            names = ", ".join(wanted)
            raise wrong_result(self._name, call, result, f"PettingZoo's ({names}, infos) is wanted")
        known = self._members.keys()
        for called, given in zip(wanted, result, strict=False):
            # Most are dicts: a check against an abstract class takes longer than all the rest.
            if not (isinstance(given, (dict, Mapping)) and given.keys() <= known):
                raise self._not_by_agents(call, called, given)
        if not known >= set(self._env.agents):
            raise self._not_by_agents(call, "agents", dict.fromkeys(self._env.agents))
        for expected, given in zip(self._numbers, result[1:-1], strict=False):
            for name, value in given.items():
                if type(value) not in expected.types:
                    try:
                        expected.check(value)
                    except UnfitError as error:
                        words = f"{self._name}: {call}() gave {name} {error}"
                        raise BrokenEnvironmentError(words) from error
        return result

    def _not_by_agents(self, call: str, called: str, given: Any) -> BrokenEnvironmentError:
        """Build the error of a part that is no dict by the agents' names."""
        words = f"{self._name}: {call}() gave {called}"
        if not isinstance(given, Mapping):
            return BrokenEnvironmentError(f"{words} {describe(given)}; a dict by the agents' names is wanted")
        unknown = min(given.keys() - self._members.keys(), key=str)
        return BrokenEnvironmentError(f"{words} of {unknown!r}; possible_agents are {self.agents}")

    def actions_of(self, action: npt.NDArray[Any], names: Collection[str]) -> dict[str, Any]:
        """Return the actions of the named agents, out of the team's ``[M]`` or ``[M, A]``."""
        given, members = action.tolist() if self._is_discrete else action, self._members
        return {name: members[name].action(given[members[name].index]) for name in names}

    def record_of(self, seen: ByAgent) -> npt.NDArray[Any]:
        """Build a record ``[]`` of the agents' observations; agents that are not named are not alive.

        Agents with a mask in their infos see ``{"observation": ..., "action_mask": ...}``. The record has no
        state; the next call writes into it again.
        """
        if unknown := seen.keys() - self._members.keys():
            raise ValueError(f"there is no agent {min(unknown)!r}; they are {', '.join(self.agents)}")
        infos = {name: one for name, one in seen.items() if self._members[name].tells_mask}
        for name, one in infos.items():
            if not (isinstance(one, Mapping) and one.keys() >= {"observation", MASK}):
                raise ValueError(f"{name} has a mask of its actions: {{'observation': ..., '{MASK}': ...}}")
            if not self._members[name].is_masked:
                seen = {**seen, name: one["observation"]}
        self._show_agents(seen, infos, list(seen))
        return self._record

    def _show(self, seen: ByAgent, infos: Any, alive: Sequence[str], cut: Sequence[str] = ()) -> None:
        """Write the state, and the observations of agents that are alive or that this step cut off."""
        self._show_agents(seen, infos, alive, cut)
        if self._state_space is not None:
            self._record[STATE] = self._flat_state(self._env.state())

    def _show_agents(self, seen: ByAgent, infos: Any, alive: Sequence[str], cut: Sequence[str] = ()) -> None:
        parts, members = self._parts, self._members
        for part in parts.values():
            part[...] = 0
        if self._is_discrete:
            parts[AVAILABLE][:, 0] = True
        # Without living agents, the flags of the step say that the episode is truncated.
        is_alive, is_cut = parts[ALIVE], parts[TRUNCATED if alive and cut else ALIVE]
        infos = infos if isinstance(infos, (dict, Mapping)) else {}
        for name in (*alive, *cut) if cut else alive:
            if name not in seen:
                what = "was truncated" if name in cut else "is alive"
                raise BrokenEnvironmentError(
                    f"{self._name}: {name} {what}, and there is nothing that it sees"
                )
            member, ends = members[name], name in cut
            (is_cut if ends else is_alive)[member.index] = True
            member.show(seen[name], infos.get(name), is_alive=not ends)

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the current state."""
        return as_picture(self._name, self._env.render())

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


_OF_EXTRA: Final = ("pettingzoo", "mpe2")
"""Packages that tianji's extra ``marl`` brings."""


class PettingZooFactory(EnvironmentFactory):
    """Makes environments of modules that have a ``parallel_env``."""

    makes_teams: ClassVar[bool | None] = True

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Import the module that the id names, and look for its ``parallel_env``."""
        find_parallel_env(id)

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002 - the config's word for it
        """Check names; only the environment knows the values."""
        _check_keywords_of(id, find_parallel_env(id), options)

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
        """Build N environments with the options as keyword arguments of ``parallel_env``."""
        module = find_parallel_env(id)
        _check_keywords_of(id, module, options)
        return SerialVectorEnvironment(
            id, lambda: create_team(id, module.parallel_env, options, render), num_envs, max_episode_steps
        )


def find_parallel_env(id: str) -> ModuleType:  # noqa: A002 - the config's word for it
    """Import the module that an id names.

    Args:
        id: such as ``"pettingzoo.sisl.multiwalker_v9"``.

    Raises:
        UnknownEnvironmentError: no such module, or it has no ``parallel_env``; names the nearest.
        MissingExtraError: its package, or one that it needs, is not installed.
        BrokenEnvironmentError: the module does not import.
    """
    try:
        module = importlib.import_module(id) if id else None
    except ModuleNotFoundError as cause:
        if cause.name not in _OF_EXTRA and f"{id}.".startswith(f"{cause.name}."):
            raise UnknownEnvironmentError(f"no module {cause.name!r}{_nearest(id)}") from cause
        raise missing(id, cause) from cause
    except Exception as cause:
        raise BrokenEnvironmentError(f"{id!r} does not import: {type(cause).__name__}: {cause}") from cause
    if module is None or not hasattr(module, "parallel_env"):
        raise UnknownEnvironmentError(
            f'{id!r} is no module with a parallel_env, as "mpe2.simple_spread_v3" is'
        )
    return module


def missing(id: str, cause: ModuleNotFoundError) -> MissingExtraError:  # noqa: A002 - the config's word for it
    """Build the error with the command that installs an environment's missing module."""
    package, *families = id.split(".")
    if cause.name in _OF_EXTRA or package == "mpe2":
        command = "pip install 'tianji[marl]'"
    elif package == "pettingzoo" and families:
        command = f"pip install 'pettingzoo[{families[0]}]'"
    else:
        command = f"pip install {cause.name}"
    return MissingExtraError(f"{id} needs {cause.name!r}: {command}")


def _nearest(id: str) -> str:  # noqa: A002 - the config's word for it
    """Suggest the module of an id's package whose name is nearest."""
    package, _, name = id.rpartition(".")
    try:
        spec = importlib.util.find_spec(package) if package else None
    except ModuleNotFoundError:
        return ""
    paths = spec.submodule_search_locations if spec else None
    names = [module.name for module in pkgutil.iter_modules(paths or [])]
    return nearest(name, names, lambda near: f"'{package}.{near}'")


def _check_keywords_of(id: str, module: ModuleType, options: Mapping[str, Any] | None) -> None:  # noqa: A002
    # Where parallel_env wraps a raw_env, it passes all keyword arguments on, and its signature names none.
    check_keywords(id, getattr(module, "raw_env", module.parallel_env), options)


def check_keywords(name: str, create: Callable[..., object], options: Mapping[str, Any] | None) -> None:
    """Refuse options that ``create`` does not take by name, if its signature names all.

    Raises:
        WrongOptionError: names the nearest.
    """
    parameters = inspect.signature(create).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters if parameter.name != "render_mode"]
    for option in options or {}:
        if option not in known:
            raise WrongOptionError(option, f"{name} has no option {option!r}{nearest_or_all(option, known)}")


def create_team(
    name: str, create: Callable[..., Any], options: Mapping[str, Any] | None, render: bool
) -> PettingZooTeam:
    """Build one environment, and translate its errors.

    Raises:
        MissingExtraError: the environment needs a library.
        UnsupportedSpaceError: names the agent and its space.
        BrokenEnvironmentError: the environment cannot be built with these options.
    """
    keywords = dict(options or {}) | ({"render_mode": "rgb_array"} if render else {})
    try:
        return PettingZooTeam(name, create(**numbered(keywords)))
    except EnvironmentFailure:
        raise
    except ModuleNotFoundError as cause:
        raise missing(name, cause) from cause
    except Exception as cause:
        raise BrokenEnvironmentError(
            f"{name} cannot be built with options {keywords}: {type(cause).__name__}: {cause}"
        ) from cause
