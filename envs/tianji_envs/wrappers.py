"""Wrappers that ``environment.wrappers`` names: gymnasium's, or a user's own ``"module:Class"``.

This module looks a name up and checks its keywords before anything is built; a wrapper that does not fit an
environment fails when the environment is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium
import gymnasium.wrappers
import numpy as np

from tianji_envs.errors import BrokenEnvironmentError, UnknownEnvironmentError
from tianji_envs.options import nearest_or_all, numbered
from tianji_envs.serial import MISSING, missing
from tianji_plugins import Plugins

MASK: Final = "action_mask"

WRAPPERS: Final = Plugins(
    kind="wrapper",
    group="tianji.wrappers",
    unknown=UnknownEnvironmentError,
    broken=BrokenEnvironmentError,
    built_in={
        "ActionMask": "tianji_envs.wrappers:ActionMask",
        **{name: f"gymnasium.wrappers:{name}" for name in gymnasium.wrappers.__all__ if name[0].isupper()},
    },
)


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows ``info["action_mask"]`` as a part of the observation, where agents look for it.

    Observations become ``{"observation": ..., "action_mask": ...}``; a Dict gets one part more.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, gymnasium.spaces.Discrete):
            raise BrokenEnvironmentError(
                f"{env} has actions {env.action_space}; an action_mask says which of Discrete ones there are"
            )
        inner = env.observation_space
        self._is_dict = isinstance(inner, gymnasium.spaces.Dict)
        parts = dict(inner.spaces) if isinstance(inner, gymnasium.spaces.Dict) else {"observation": inner}
        self._actions = int(env.action_space.n)
        self.observation_space = gymnasium.spaces.Dict(
            parts | {MASK: gymnasium.spaces.MultiBinary(self._actions)}
        )

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(**keywords)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act once."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: Any) -> dict[str, Any]:
        if not isinstance(info, Mapping) or MASK not in info:
            given = sorted(map(str, info)) if isinstance(info, Mapping) else info
            raise BrokenEnvironmentError(
                f"{self.env} has no {MASK!r} in its info, which is {given}; "
                "environment.wrappers without ActionMask would be right"
            )
        shape = np.shape(info[MASK])
        if shape != (self._actions,):
            raise BrokenEnvironmentError(
                f"{self.env} has an {MASK!r} of shape {shape} in its info for {self._actions} actions; "
                f"({self._actions},) would be right"
            )
        parts = observation if self._is_dict else {"observation": observation}
        return {**parts, MASK: np.asarray(info[MASK]) != 0}


def with_statistics(environment: object) -> list[str]:
    """Name the wrappers, and other parts, of an environment that learn running statistics of their own.

    Such parts hold a ``RunningMeanStd``, as gymnasium's ``NormalizeObservation`` and ``NormalizeReward`` do.
    Frozen statistics are the same in every copy, and are not named.
    """
    found, layers = [], [environment]
    for layer in layers:  # Inner environments are appended on the way.
        parts = [*getattr(layer, "__dict__", {}).values()]
        parts += [copies[0] for copies in parts if isinstance(copies, list | tuple) and copies]
        learns = any("RunningMeanStd" in {one.__name__ for one in type(part).__mro__} for part in parts)
        if learns and getattr(layer, "update_running_mean", True):
            found.append(type(layer).__name__)
        inner = [part for part in parts if hasattr(type(part), "step") and hasattr(type(part), "reset")]
        layers += [part for part in inner if not any(part is known for known in layers)]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Wrapper:
    """One entry of ``environment.wrappers``.

    Attributes:
        called: name in messages: its place in the list, and its name.
        create: function of an environment and the keywords that returns a wrapped environment.
    """

    called: str
    create: Callable[..., object]
    keywords: Mapping[str, Any]

    def __call__(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Wrap an environment.

        Raises:
            MissingExtraError: the wrapper needs a library.
            BrokenEnvironmentError: the wrapper raises an error, or returns no gymnasium environment.
        """
        try:
            wrapped = self.create(env, **numbered(self.keywords))
        except MISSING as cause:
            raise missing(self.called, cause) from cause
        except BrokenEnvironmentError as cause:
            raise BrokenEnvironmentError(f"{self.called}: {cause}") from cause
        except Exception as cause:
            given = f" with {dict(self.keywords)}" if self.keywords else ""
            raise BrokenEnvironmentError(
                f"{self.called} cannot wrap {env}{given}: {type(cause).__name__}: {cause}"
            ) from cause
        if not isinstance(wrapped, gymnasium.Env):
            raise BrokenEnvironmentError(
                f"{self.called} gave {type(wrapped).__name__}; a gymnasium.Env is wanted"
            )
        return wrapped


def find(index: int, name: str, keywords: Mapping[str, Any]) -> Wrapper:
    """Find the wrapper that an entry names.

    Args:
        index: place of the entry in the list.

    Raises:
        UnknownEnvironmentError: no wrapper has that name; names the nearest.
        MissingExtraError: the wrapper needs a library; the message is the pip command.
        BrokenEnvironmentError: the wrapper does not import, is no callable, or does not take these keywords.
    """
    try:
        found = WRAPPERS.load(name)
    except MISSING as cause:  # gymnasium imports some of its wrappers when they are asked for.
        raise missing(f"wrapper {name!r}", cause) from cause
    if not callable(found):
        raise BrokenEnvironmentError(
            f"wrapper {name!r} is {found!r}; a class or function that takes an environment is wanted"
        )
    _check_keywords(name, found, keywords)
    return Wrapper(f"environment.wrappers[{index}] ({name})", found, keywords)


def _check_keywords(name: str, create: Callable[..., object], keywords: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(create)
    except (TypeError, ValueError):
        return  # Code in C may have no signature.
    try:
        signature.bind_partial(None)
    except TypeError as cause:
        raise BrokenEnvironmentError(
            f"wrapper {name!r} takes no environment, which is given as its first argument"
        ) from cause
    try:
        signature.bind(None, **keywords)
    except TypeError as cause:
        taken = list(signature.parameters)[1:]  # The first is the environment.
        unknown = next((keyword for keyword in keywords if keyword not in signature.parameters), None)
        hint = nearest_or_all(unknown, taken) if unknown and taken else ""
        raise BrokenEnvironmentError(f"wrapper {name!r}: {cause}{hint}") from cause
