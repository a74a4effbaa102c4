"""Vector of N single environments, stepped one after the other; factory of types ``"my_module:MyEnv"``."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import metadata
from typing import Any, Final, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import TimeLimit

from tianji_envs.core import (
    Array,
    BaseEnv,
    EnvironmentFactory,
    VectorEnvironment,
    as_picture,
    check_spaces,
    close_all,
    derive_seed,
    fps_of,
)
from tianji_envs.errors import (
    BrokenEnvironmentError,
    EnvironmentFailure,
    MissingExtraError,
    UnknownEnvironmentError,
)
from tianji_envs.options import COPY, numbered
from tianji_envs.records import RecordRows, RecordSpace
from tianji_envs.results import (
    RESET_GIVES,
    STEP_GIVES,
    Expected,
    UnfitError,
    describe,
    reward_and_flags,
    wrong_result,
)
from tianji_envs.team import AVAILABLE, TeamSpace, TeamTranslator

MISSING: Final = (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError)
"""Exceptions that environments raise if a library of theirs is not installed."""

_WITHOUT_SCREEN: Final = (
    "; without a screen the environment variable MUJOCO_GL=egl, or MUJOCO_GL=osmesa, has MuJoCo draw by a "
    "library of the system's, which has to be there (Debian: libegl1, or libosmesa6)"
)

_OWN_EXTRAS: Final = frozenset({"box2d", "mujoco"})
"""Extras of gymnasium that tianji passes on under the same name."""

_MOST: Final = float(np.finfo(np.float32).max)
"""Largest number that a fragment can hold."""

Wrap = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]
"""A wrapper that ``environment.wrappers`` names, with its keywords."""


def wrapped(
    env: gymnasium.Env[Any, Any], wrappers: Sequence[Wrap], max_episode_steps: int | None
) -> gymnasium.Env[Any, Any]:
    """Put wrappers around an environment, the first innermost, and its time limit inside them.

    Wrappers look for the limit inside, where it counts the environment's own steps, even if wrappers change
    steps. Without wrappers the environment stays as it is: the vector keeps the limit, which costs less.
    """
    if wrappers and max_episode_steps is not None:
        env = TimeLimit(env, max_episode_steps)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def missing(what: str, cause: Exception) -> MissingExtraError:
    """Build the error that names a library which is not installed.

    Args:
        cause: one of ``MISSING``.
    """
    text = str(cause)
    library = cause.name if isinstance(cause, ModuleNotFoundError) else text.partition(" is not installed")[0]
    extra = re.search(r"gymnasium\[([\w-]+)\]", text)
    if extra is not None:
        own = extra[1] in _OWN_EXTRAS
        needed = f"tianji[{extra[1]}]" if own else f"gymnasium[{_as_gymnasium_names(extra[1])}]"
        return MissingExtraError(f"{what} needs {library}: pip install '{needed}'")
    if isinstance(cause, ModuleNotFoundError):
        return MissingExtraError(f"{what} needs {library!r}: pip install {library}")
    return MissingExtraError(f"{what} needs more than is installed: {text}")


def _as_gymnasium_names(extra: str) -> str:
    """Name an extra as gymnasium's package does.

    Its messages say ``classic_control`` where the package has ``classic-control``. A pip before 23.3 takes
    these for two extras, and installs nothing.
    """
    extras = metadata("gymnasium").get_all("Provides-Extra") or []
    return next((one for one in extras if one.replace("_", "-") == extra.replace("_", "-")), extra)


class SerialVectorEnvironment(VectorEnvironment):
    """A vector of single environments.

    Args:
        max_episode_steps: truncate episodes after so many steps; None leaves it to the environment.
        metrics: keys of the info of ``GymnasiumEnv``; all environments are of that class then.
    """

    def __init__(
        self,
        name: str,
        create: Callable[[], BaseEnv],
        num_envs: int,
        max_episode_steps: int | None = None,
        metrics: Sequence[str] = (),
    ) -> None:
        self.num_envs = num_envs
        self._name = name
        envs = []
        try:
            for copy in range(num_envs):
                os.environ[COPY] = str(copy)
                envs.append(create())
            _require_spaces(name, envs[0])
        except BaseException:  # Close the built ones; why another failed matters more.
            with suppress(Exception):
                close_all(env.close for env in envs)
            raise
        self._envs = envs
        self.observation_space = envs[0].observation_space
        self.action_space = envs[0].action_space
        self._records: RecordSpace | None = None
        if isinstance(self.observation_space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
            self.observation_space = self._records = RecordSpace(name, self.observation_space)
            if without := self._records.left_out:
                text = f"of the observations {', '.join(without)} is left out: no network takes text"
                self.remarks = {"text": text}
        if isinstance(self.observation_space, TeamSpace):
            self.agents = envs[0].agents
            self.translator = envs[0] if isinstance(envs[0], TeamTranslator) else None
        check_spaces(name, self.observation_space, self.action_space)
        self._acts_are_ints = isinstance(self.action_space, gymnasium.spaces.Discrete)
        self.render_fps = fps_of(getattr(envs[0], "metadata", None))
        self._limit = np.inf if max_episode_steps is None else max_episode_steps
        # Lists, because reading and writing single elements of an array costs several times as much.
        self._ended = [False] * num_envs
        self._steps = [0] * num_envs
        self._with_info = [env for env in envs if isinstance(env, GymnasiumEnv)]
        self._asked = metrics
        self.metrics = np.zeros((num_envs, len(metrics)), np.float32) if metrics else None
        space = self.observation_space
        expected = Expected("an observation", space.dtype, space.shape or ())
        # ``RecordRows`` checks parts of records one by one, as it writes them.
        self._check = expected.check if self._records is None else None
        self._numbers = reward_and_flags()
        self._usual = [expected.types for expected in self._numbers]

    @property
    def first_of_gymnasium(self) -> gymnasium.Env[Any, Any] | None:
        """The first environment without its wrappers, if it is gymnasium's."""
        return self._with_info[0].unwrapped if self._with_info else None

    def reset(self, seed: int, observation: Array) -> None:
        """Begin an episode in every environment."""
        shown = self._rows(observation)
        for i, env in enumerate(self._envs):
            self._ended[i] = False
            self._steps[i] = 0
            try:
                first = env.reset(derive_seed(seed, i))
                if self._check is not None:
                    self._check(first)
                if isinstance(self.observation_space, TeamSpace):
                    self._check_available(first)
                shown[i] = first
            except BrokenEnvironmentError as error:
                raise self._located(error, i) from error
        self.info_keys = keys_of(self._with_info[0].info) if self._with_info else ()

    def _rows(self, observation: Array) -> Array | RecordRows:
        """Return an object that takes each environment's observation by its number."""
        return observation if self._records is None else self._records.rows(observation)

    def _check_available(self, first: Array) -> None:
        if AVAILABLE in (first.dtype.names or ()) and not first[AVAILABLE].any(axis=-1).all():
            without = np.flatnonzero(~first[AVAILABLE].any(axis=-1)).tolist()
            raise UnfitError(
                f"a record that leaves agents {without} no available action; each should have one at least, "
                "those that are not alive too"
            )

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Act in, or begin anew, one environment after the other."""
        # An environment may keep its action; the caller's array is written again before the next step.
        chosen = actions.tolist() if self._acts_are_ints else actions.copy()
        ended, steps, limit, metrics = self._ended, self._steps, self._limit, self.metrics
        shown, check = self._rows(observation), self._check
        rewards, ends, cuts = self._usual
        for i, env in enumerate(self._envs):
            try:
                if ended[i]:
                    steps[i] = 0
                    seen = env.reset(None)
                    value, over, cut = 0.0, False, False
                else:
                    steps[i] += 1
                    result: Any = env.step(chosen[i])
                    try:
                        seen, value, over, cut = result
                    except (TypeError, ValueError) as cause:
                        raise BrokenEnvironmentError(self._not_a_step(result)) from cause
                    if type(over) not in ends or type(cut) not in cuts or type(value) not in rewards:
                        over, cut = self._look_at(result)
                    cut = cut or steps[i] >= limit
                if check is not None:
                    check(seen)
                shown[i] = seen
            except BrokenEnvironmentError as error:
                raise self._located(error, i) from error
            reward[i] = value
            terminated[i] = over
            truncated[i] = cut
            ended[i] = over or cut
            if metrics is not None and ended[i]:
                metrics[i] = measure(self._name, self._asked, self._with_info[i].info)

    def _look_at(self, result: Any) -> tuple[bool, bool]:
        """Convert the flags of a step to True or False, and refuse a reward that is no number."""
        _, value, over, cut = result
        if isinstance(cut, Mapping):  # Gym's old (observation, reward, done, info).
            raise BrokenEnvironmentError(self._not_a_step(result))
        for expected, given in zip(self._numbers, (value, over, cut), strict=True):
            expected.check(given)
        return bool(over), bool(cut)

    def _located(self, error: BrokenEnvironmentError, copy: int) -> BrokenEnvironmentError:
        """Add to an error the copy that has failed, and the step of its episode."""
        step = self._steps[copy]
        gave = f"{self._name}: {'step' if step else 'reset'}() gave " if isinstance(error, UnfitError) else ""
        where = f", step {step} of its episode" if step else ""
        return BrokenEnvironmentError(f"{gave}{error} (copy {copy}{where})")

    def _not_a_step(self, result: Any) -> str:
        found = (
            f"{len(result)} values, the first {describe(result[0])}"
            if isinstance(result, tuple) and result
            else describe(result)
        )
        return (
            f"{self._name}: step() gave {found}; (observation, reward, terminated, truncated) is wanted, "
            f"with an observation of shape {self.observation_space.shape} and no info; what "
            "gives gymnasium's five derives from gymnasium.Env"
        )

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the first environment."""
        return as_picture(self._name, self._envs[0].render())

    def close(self) -> None:
        """Close every environment, also if one's ``close`` raises; raise that error afterwards."""
        envs, self._envs = self._envs, []
        close_all(env.close for env in envs)


def keys_of(info: object) -> tuple[str, ...]:
    """Return the keys of gymnasium's ``info``; none if it is no mapping, which its readers refuse."""
    return tuple(info) if isinstance(info, Mapping) else ()


def measure(name: str, wanted: Sequence[str], info: Mapping[str, Any]) -> list[float]:
    """Read ``environment.metrics`` from the info of an episode's last step.

    Raises:
        BrokenEnvironmentError: a metric is missing, or no finite number; names the keys that are numbers.
    """
    found = [_number(info.get(key)) for key in wanted]
    for key, value in zip(wanted, found, strict=True):
        if value is None:
            given = f"{key!r} is {info[key]!r}" if key in info else f"there is no {key!r}"
            numbers = [repr(other) for other, entry in info.items() if _number(entry) is not None]
            raise BrokenEnvironmentError(
                f"{name}: environment.metrics: {given} in the info of an episode's last step, and a finite "
                f"number or a bool is wanted; such are: {', '.join(numbers) or 'none'}"
            )
    return [value for value in found if value is not None]


def _number(value: object) -> float | None:
    """Read a number or bool, of numpy too; None for anything else, and for numbers beyond float32."""
    if isinstance(value, np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool | int | float) and abs(value) <= _MOST:
        return float(value)
    return None


class GymnasiumEnv(BaseEnv):
    """A single gymnasium environment, seen as a ``BaseEnv``.

    Attributes:
        info: gymnasium's info of the last reset or step.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._step = env.step
        self.info: dict[str, Any] = {}
        self.metadata = env.metadata
        _require_spaces(str(env), env)
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode; ``info`` keeps gymnasium's info."""
        if seed is not None:  # Environments draw from their spaces, too, which reset() does not seed.
            for env in (self._env, self.unwrapped):
                for space in (getattr(env, "observation_space", None), getattr(env, "action_space", None)):
                    if isinstance(space, gymnasium.Space):
                        space.seed(seed)
        result: Any = self._env.reset(seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise wrong_result(str(self._env), "reset", result, RESET_GIVES)
        observation, self.info = result
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Act once; ``info`` keeps gymnasium's info."""
        result = self._step(action)
        try:
            observation, reward, terminated, truncated, self.info = result
        except (TypeError, ValueError) as cause:
            raise wrong_result(str(self._env), "step", result, STEP_GIVES) from cause
        return observation, reward, terminated, truncated  # type: ignore[return-value]  # SupportsFloat

    @property
    def unwrapped(self) -> gymnasium.Env[Any, Any]:
        """The environment without wrappers."""
        return self._env.unwrapped

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the current state."""
        try:
            frame = self._env.render()
        except MISSING as cause:
            raise missing(f"drawing {self._env}", cause) from cause
        except Exception as cause:
            way_out = _WITHOUT_SCREEN if "mujoco" in sys.modules else ""
            reason = f"{type(cause).__name__}: {cause}"
            raise BrokenEnvironmentError(f"{self._env} cannot be drawn: {reason}{way_out}") from cause
        return as_picture(str(self._env), frame)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class TemplateEnv(BaseEnv):
    """An environment that follows the paper's Figure 8, seen as a ``BaseEnv``; see ``follows_figure_8``."""

    def __init__(self, name: str, env: Any) -> None:
        where = "init(), which gets environment.options where the class has no __init__"
        _require_spaces(name, env, where if hasattr(env, "init") else "its constructor")
        self._env = env
        self.metadata = getattr(env, "metadata", None)
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode, after ``seed`` if there is a seed and the environment takes it."""
        if seed is not None and hasattr(self._env, "seed"):
            with suppress(NotImplementedError):  # As the figure has it for those without random numbers.
                self._env.seed(seed)
        return self._env.reset()

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Act once; a single ``done`` is the end of an episode, unless gym's key says that a limit was it."""
        result: Any = self._env.step(action)
        if isinstance(result, tuple) and len(result) == 4 and isinstance(result[3], Mapping):
            observation, reward, done, info = result
            is_cut = bool(info.get("TimeLimit.truncated", False))
            return observation, reward, done and not is_cut, done and is_cut
        return result  # type: ignore[no-any-return]  # The vector checks it.

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the current state."""
        frame: npt.NDArray[np.uint8] = self._env.render()
        return frame

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def follows_figure_8(kind: type) -> bool:
    """Whether a class follows the paper's template: ``reset`` takes no seed, and ``step`` gives ``done``.

    The figure has ``init``, ``step``, ``render``, ``reset``, ``close`` and ``seed``. A class may derive from
    ``BaseEnv``, or from a copy of the figure.
    """
    if issubclass(kind, gymnasium.Env) or not (issubclass(kind, BaseEnv) or hasattr(kind, "init")):
        return False
    methods: list[Any] = [getattr(kind, name, None) for name in ("reset", "step", "close")]
    return all(map(inspect.isfunction, methods)) and len(inspect.signature(methods[0]).parameters) == 1


def _require_spaces(name: str, env: object, where: str = "its constructor") -> None:
    for space in ("observation_space", "action_space"):
        if not hasattr(env, space):
            raise BrokenEnvironmentError(f"{name} has no {space}; set it in {where}")


Maker = type[BaseEnv] | type[gymnasium.Env[Any, Any]] | Callable[..., object]
"""A class of environments, or a function that makes one."""


class UserFactory(EnvironmentFactory):
    """Makes environments of one class, or with one function."""

    def __init__(self, name: str, maker: Maker) -> None:
        self._name = name
        self._maker = maker
        # A function shows only by its first environment whether that is gymnasium's.
        is_other = inspect.isclass(maker) and not issubclass(maker, gymnasium.Env)
        self.takes_wrappers = self.takes_metrics = not is_other
        template: Any = maker if inspect.isclass(maker) and follows_figure_8(maker) else object
        has_constructor = template.__init__ is not object.__init__
        self._init: Any = None if has_constructor else getattr(template, "init", None)

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Refuse all ids."""
        if id:
            raise UnknownEnvironmentError(f"type {self._name!r} is one environment and has no id {id!r}")

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
        """Build N environments of the class, or call the function N times."""
        self.check_id(id)
        index = self._parameters().get("index")
        asked = {} if index is None or index.kind is index.POSITIONAL_ONLY else {"index": "{index}"}
        keywords = asked | dict(options or {})
        if render and self._draws_if_asked():
            keywords |= {"render_mode": "rgb_array"}
        previous: object = None

        def create() -> BaseEnv:
            nonlocal previous
            made = self._maker(**({} if self._init else numbered(keywords)))
            if self._init:
                self._init(made, **numbered(keywords))
            if previous is not None and made is previous:
                raise BrokenEnvironmentError(
                    f"{self._name} returned the same environment twice; each call should make a new one"
                )
            previous = made
            env = self._as_base(made, wrappers, max_episode_steps)
            if metrics and not isinstance(env, GymnasiumEnv):
                raise BrokenEnvironmentError(
                    f"environment.metrics: {self._name} returned the BaseEnv {type(made).__name__}; "
                    "metrics are read from the info of a gymnasium.Env"
                )
            return env

        try:
            return SerialVectorEnvironment(
                self._name, create, num_envs, None if wrappers else max_episode_steps, metrics
            )
        except EnvironmentFailure:
            raise
        except Exception as cause:
            is_mode = isinstance(cause, TypeError) and "render_mode" in keywords
            way_out = "; to be drawn, it has to take render_mode in its constructor" if is_mode else ""
            reason = f"{type(cause).__name__}: {cause}{way_out}"
            raise BrokenEnvironmentError(
                f"{self._name} cannot be built with options {keywords}: {reason}"
            ) from cause

    def _draws_if_asked(self) -> bool:
        """Whether ``render_mode`` is a keyword: for gymnasium's classes, and functions that declare it."""
        if inspect.isclass(self._maker):
            return issubclass(self._maker, gymnasium.Env)
        return any(
            parameter.kind is parameter.VAR_KEYWORD
            or (parameter.name == "render_mode" and parameter.kind is not parameter.POSITIONAL_ONLY)
            for parameter in self._parameters().values()
        )

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self._init or self._maker).parameters
        except (TypeError, ValueError):
            return {}  # Code in C may have no signature.

    def _as_base(self, made: object, wrappers: Sequence[Wrap], max_episode_steps: int | None) -> BaseEnv:
        if isinstance(made, gymnasium.Env):
            return GymnasiumEnv(wrapped(made, wrappers, max_episode_steps))
        is_template = follows_figure_8(type(made))
        if not isinstance(made, BaseEnv) and not is_template:
            raise BrokenEnvironmentError(
                f"{self._name} returned {type(made).__name__}; a BaseEnv or a gymnasium.Env is wanted"
            )
        if wrappers:
            raise BrokenEnvironmentError(
                f"environment.wrappers: {self._name} returned the BaseEnv {type(made).__name__}; "
                "wrappers go around a gymnasium.Env"
            )
        return TemplateEnv(self._name, made) if is_template else cast("BaseEnv", made)
