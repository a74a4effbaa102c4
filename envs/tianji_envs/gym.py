"""Environment type ``"gym"``: everything that gymnasium has registered.

This module uses an environment's own vectorised implementation if it autoresets as ``VectorEnvironment``
promises, and steps all others one after the other. gymnasium knows an environment once the module that
registers it was imported, and an id that begins with that module's name
(``"minigrid:MiniGrid-Empty-5x5-v0"``) imports it. To name that module in a message, this one reads the files
of installed packages, without importing them.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions, entry_points
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec, load_env_creator, namespace
from gymnasium.vector import AutoresetMode, VectorEnv

from tianji_envs.atari.games import find_game
from tianji_envs.core import (
    Array,
    EnvironmentFactory,
    VectorEnvironment,
    as_picture,
    check_spaces,
    derive_seed,
    fps_of,
)
from tianji_envs.errors import BrokenEnvironmentError, EnvironmentFailure, UnknownEnvironmentError
from tianji_envs.options import nearest, numbered
from tianji_envs.results import (
    RESET_GIVES,
    SAY_WHEN_IT_RESETS,
    STEP_GIVES,
    Expected,
    UnfitError,
    wrong_result,
)
from tianji_envs.serial import (
    MISSING,
    GymnasiumEnv,
    SerialVectorEnvironment,
    Wrap,
    keys_of,
    missing,
    wrapped,
)


def find_spec(id: str) -> EnvSpec:  # noqa: A002 - the config's word for it
    """Look an id up in gymnasium's registry, without building anything.

    Args:
        id: such as ``"CartPole-v1"``, or ``"module:MyEnv-v0"`` to import the module that registers it first.

    Raises:
        UnknownEnvironmentError: no such id; names the nearest ones.
    """
    module, _, name = id.rpartition(":")
    if os.sep in module:
        raise UnknownEnvironmentError(f"{id!r}: {module!r} is a path; a module is named with dots")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as cause:
            how = how_to_install(module) if isinstance(cause, ModuleNotFoundError) else ""
            raise UnknownEnvironmentError(f"{id!r}: cannot import {module!r}: {cause}{how}") from cause
    spec = gymnasium.registry.get(name)
    if spec is None and _register_namespace(name):
        spec = gymnasium.registry.get(name)
    if spec is None:
        elsewhere = "" if module else well_known(name) or registered_elsewhere(name)
        hint = elsewhere or _nearest(name, f"{module}:" if module not in {"", "__main__"} else "")
        if name and not elsewhere and module in {"", "__main__"}:
            hint += " (your own: 'module:ID', which imports what registers it; a script's are its alone)"
        raise UnknownEnvironmentError(f"gymnasium has no environment {name!r}{hint}")
    return spec


def _register_namespace(name: str) -> bool:
    """Let installed packages register the namespace of an id, such as ``MinAtar/Breakout-v1``.

    Packages declare namespaces in the entry-point group that gymnasium read by itself before its version 1.0.

    Returns:
        Whether a package has registered the namespace now.

    Raises:
        UnknownEnvironmentError: the package cannot be imported.
    """
    wanted, slash, _ = name.partition("/")
    if any(known.startswith(f"{wanted}/") for known in gymnasium.registry):
        return False
    found = [entry for entry in entry_points(group="gymnasium.envs") if slash and entry.name == wanted]
    for entry in found:
        try:
            register = entry.load()
        except ImportError as cause:
            raise UnknownEnvironmentError(f"{name!r}: cannot import {entry.value!r}: {cause}") from cause
        with namespace(wanted):
            register()
    return bool(found)


def _nearest(name: str, prefix: str) -> str:
    try:
        find_game(name)
    except UnknownEnvironmentError:
        pass
    else:
        return '; environment.type = "atari" has it'
    by_folded = {registered.lower(): registered for registered in gymnasium.registry}
    return nearest(name.lower(), by_folded, lambda folded: prefix + by_folded[folded], most=3)


class GymFactory(EnvironmentFactory):
    """Makes environments from gymnasium's registry."""

    makes_teams: ClassVar[bool | None] = False
    takes_wrappers = True
    takes_metrics = True

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Look the id up in gymnasium's registry, and import its entry point."""
        spec = find_spec(id)
        try:
            if isinstance(spec.entry_point, str):
                load_env_creator(spec.entry_point)
        except MISSING as cause:
            raise missing(id, cause) from cause
        except Exception as cause:
            # MUJOCO_GL chooses the drawing library, which MuJoCo's environments import.
            if (library := os.environ.get("MUJOCO_GL")) and "mujoco" in str(spec.entry_point):
                raise BrokenEnvironmentError(
                    f"{id} does not import with MUJOCO_GL={library}: {type(cause).__name__}: {cause}; "
                    "that library may be missing (Debian: libegl1, libosmesa6): unset it, or name another one"
                ) from cause
            raise

    def make(  # noqa: PLR0913 - what every factory is asked for, and what only this one takes
        self,
        id: str,  # noqa: A002 - the config's word for it
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render: bool = False,
        *,
        evaluation: bool = False,  # noqa: ARG002 - episodes are whole, and rewards the environment's own
        threads: int = 1,  # noqa: ARG002 - all are stepped by the caller's thread
        wrappers: Sequence[Wrap] = (),
        metrics: Sequence[str] = (),
    ) -> VectorEnvironment:
        """Build the environment's own vector where it has a fitting one, else N single environments.

        Wrappers and metrics need single environments: they use these and their infos.
        """
        spec = find_spec(id)
        keywords = dict(options or {}) | ({"render_mode": "rgb_array"} if render else {})
        try:
            singly = wrappers or metrics or numbered(keywords) != keywords
            own = None if singly else _own_vector(spec, num_envs, max_episode_steps, keywords)
            return own or _serial(spec, num_envs, max_episode_steps, keywords, wrappers, metrics)
        except EnvironmentFailure:
            raise
        except MISSING as cause:
            raise missing(id, cause) from cause
        except Exception as cause:
            raise BrokenEnvironmentError(f"{id} cannot be built with options {keywords}: {cause}") from cause


def _own_vector(
    spec: EnvSpec, num_envs: int, max_episode_steps: int | None, keywords: dict[str, Any]
) -> VectorEnvironment | None:
    """Build the environment's own vectorised implementation, unless it autoresets in another way.

    An implementation that resets within the step that ends an episode has no separate step for the reset, so
    such environments are stepped one by one.
    """
    if spec.vector_entry_point is None:
        return None
    if max_episode_steps is not None:
        keywords = keywords | {"max_episode_steps": max_episode_steps}
    vector = gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **keywords)
    is_record = isinstance(vector.single_observation_space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)
    if vector.metadata.get("autoreset_mode") is AutoresetMode.NEXT_STEP and not is_record:
        return OwnVectorEnvironment(spec.id, vector)
    vector.close()
    return None


def _serial(
    spec: EnvSpec,
    num_envs: int,
    max_episode_steps: int | None,
    keywords: dict[str, Any],
    wrappers: Sequence[Wrap],
    metrics: Sequence[str],
) -> VectorEnvironment:
    # Each of gymnasium's wrappers costs a call per step; the vector counts the steps of all itself.
    bare = copy.deepcopy(spec)
    bare.disable_env_checker = True
    bare.order_enforce = False
    bare.max_episode_steps = None
    limit = spec.max_episode_steps if max_episode_steps is None else max_episode_steps

    def create() -> GymnasiumEnv:
        return GymnasiumEnv(wrapped(gymnasium.make(bare, **numbered(keywords)), wrappers, limit))

    return SerialVectorEnvironment(spec.id, create, num_envs, None if wrappers else limit, metrics)


SAME_STEP_KEYS: Final = frozenset(("final_info", "final_obs", "final_observation"))
"""Keys of an info that show a reset within the step that ended the episode."""


class OwnVectorEnvironment(VectorEnvironment):
    """An environment's own vectorised implementation with ``AutoresetMode.NEXT_STEP``."""

    def __init__(self, name: str, vector: VectorEnv[Any, Any, Any]) -> None:
        self._name = name
        self._vector = vector
        self.num_envs = vector.num_envs
        self.render_fps = fps_of(vector.metadata)
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        check_spaces(name, self.observation_space, self.action_space)
        copies, space = (vector.num_envs,), self.observation_space
        flags = f"an array {copies} of True and False is wanted"
        self._shown = Expected("observations", space.dtype, copies + (space.shape or ()))
        self._rewards = Expected("rewards", np.float32, copies, f"numbers {copies} are wanted")
        self._ends = Expected("terminated", np.bool_, copies, flags)
        self._cuts = Expected("truncated", np.bool_, copies, flags)

    def reset(self, seed: int, observation: Array) -> None:
        """Begin an episode in every environment."""
        # One generator serves all copies, so there is one seed to derive.
        result: Any = self._vector.reset(seed=derive_seed(seed, 0))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise wrong_result(self._name, "reset", result, RESET_GIVES)
        shown, info = result
        self.info_keys = keys_of(info)
        try:
            self._shown.check(shown)
        except UnfitError as error:
            raise UnfitError(f"{self._name}: reset() gave {error}", error.copy) from error
        observation[...] = shown

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Act once in every environment."""
        result: Any = self._vector.step(actions.copy())  # The vector may keep them; an agent owns the memory.
        try:
            shown, rewards, ends, cuts, info = result
        except (TypeError, ValueError) as cause:
            raise wrong_result(self._name, "step", result, STEP_GIVES) from cause
        try:
            self._shown.check(shown)
            self._rewards.check(rewards)
            self._ends.check(ends)
            self._cuts.check(cuts)
        except UnfitError as error:
            raise UnfitError(f"{self._name}: step() gave {error}", error.copy) from error
        observation[...], reward[...], terminated[...], truncated[...] = shown, rewards, ends, cuts
        if info and (keys := SAME_STEP_KEYS.intersection(keys_of(info))):
            raise BrokenEnvironmentError(
                f"{self._name}: step() gave an info with {min(keys)!r}: it resets in the step that ends an "
                f"episode, not in the next. {SAY_WHEN_IT_RESETS}"
            )

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the first environment."""
        try:
            frames = self._vector.render()
        except MISSING as cause:
            raise missing(f"drawing {self._name}", cause) from cause
        return as_picture(str(self._vector), frames[0] if frames else None)

    def close(self) -> None:
        """Close the vector."""
        self._vector.close()


_KNOWN: Final[Mapping[str, tuple[str, str]]] = {
    "AdroitHand": ("gymnasium_robotics", "gymnasium-robotics"),
    "AntMaze": ("gymnasium_robotics", "gymnasium-robotics"),
    "BabyAI-": ("minigrid", "minigrid"),
    "Fetch": ("gymnasium_robotics", "gymnasium-robotics"),
    "FrankaKitchen": ("gymnasium_robotics", "gymnasium-robotics"),
    "HandManipulate": ("gymnasium_robotics", "gymnasium-robotics"),
    "Meta-World/": ("metaworld", "metaworld"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "MiniWorld-": ("miniworld", "miniworld"),
    "Panda": ("panda_gym", "panda-gym"),
    "PointMaze": ("gymnasium_robotics", "gymnasium-robotics"),
    "highway-": ("highway_env", "highway-env"),
}
"""Module and distribution of well-known environments, by the first characters of their ids."""


def well_known(name: str) -> str:
    """Name the package of ids that begin like this one, as the end of a sentence; empty if none is known."""
    module, distribution = next(
        (known for prefix, known in _KNOWN.items() if name.startswith(prefix)), ("", "")
    )
    if not module:
        return ""
    if importlib.util.find_spec(module) is None:
        return f'; {distribution} has such ones: pip install {distribution}, then id = "{module}:{name}"'
    return f'; {distribution} is installed and has such ones: id = "{module}:{name}" imports it'


def registered_elsewhere(name: str) -> str:
    """Name the installed package that registers an id, as the end of a sentence; empty if none does."""
    module = next(_registering(name), None) if name else None
    return "" if module is None else f'; {module} is installed and has it: id = "{module}:{name}" imports it'


def how_to_install(module: str) -> str:
    """Give the command that installs a module, as the end of a sentence; empty if it is unknown."""
    found = next((distribution for known, distribution in _KNOWN.values() if known == module), None)
    return f"; pip install {found}" if found else ""


def _registering(name: str) -> Iterator[str]:
    """Find modules of installed packages whose sources register an id with gymnasium."""
    call = re.compile(rb"""\bregister\(\s*(?:id\s*=\s*)?["']%b["']""" % re.escape(name.encode()))
    for distribution in distributions():
        for source, module in _sources(distribution) if _needs_gymnasium(distribution) else ():
            if b"gymnasium" in source and call.search(source):
                yield module


def _needs_gymnasium(distribution: Distribution) -> bool:
    needed = any(re.match(r"gymnasium\b", required) for required in distribution.requires or ())
    return needed and distribution.name != "gymnasium"  # Its extras need itself.


def _sources(distribution: Distribution) -> Iterator[tuple[bytes, str]]:
    """Read the source files of a distribution, each with the name of its top-level module."""
    for file in distribution.files or ():
        if file.suffix == ".py":
            with contextlib.suppress(OSError):  # A listed file may be gone.
                yield file.read_binary(), file.parts[0].removesuffix(".py")
