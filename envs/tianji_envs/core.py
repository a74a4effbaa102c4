"""Interfaces of an environment: its author's (``BaseEnv``) and an actor's (``VectorEnvironment``).

An actor steps many copies at once, straight into rows of a fragment, so ``VectorEnvironment`` writes
into the caller's arrays and returns nothing. This module knows no process and no algorithm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs.errors import BrokenEnvironmentError, UnsupportedSpaceError
from tianji_envs.team import TeamTranslator

Array = npt.NDArray[Any]

MOST_FPS: Final = 1000.0
"""Most pictures a second that ``render_fps`` may ask for; higher numbers are ignored."""


class BaseEnv(ABC):
    """One environment of a user's own (paper, Figure 8).

    Set ``observation_space`` and ``action_space`` in the constructor, which gets the keys of the
    config's ``environment.options`` as keyword arguments. A class whose ``reset`` takes no seed is read as
    the figure has it: ``init`` gets the options, ``seed`` the seed, ``step`` gives ``done`` and ``info``.

    Attributes:
        agents: names of a team's agents; ``observation_space`` is a ``team.TeamSpace`` then.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    agents: tuple[str, ...] = ()

    @abstractmethod
    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode.

        Args:
            seed: seed that restarts the random stream; None goes on with the stream as it is.

        Returns:
            The first observation, of the shape that ``observation_space`` states.
        """

    @abstractmethod
    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Act once.

        Args:
            action: an element of ``action_space``; an ``int`` if that is ``Discrete``.

        Returns:
            observation: observation after the action.
            reward: reward of this step.
            terminated: the episode ended in a terminal state, whose value is 0.
            truncated: the episode was cut off (a time limit) in a state that still has a value.
        """

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the current state as ``[height, width, 3]``."""
        raise BrokenEnvironmentError(f"{type(self).__name__} defines no render()")

    def close(self) -> None:  # noqa: B027 - most environments hold nothing
        """Free the environment's resources."""


@dataclass(frozen=True)
class Games:
    """Scores and ends of whole games, where rewards are clipped or an episode is less than a game.

    Every step writes them.

    Attributes:
        score: sum of the game's own rewards so far, ``[N]`` float64; at a game's last step, all of them.
        over: this step ended the game, ``[N]`` bool. The flags of the step end an episode there, too.
    """

    score: npt.NDArray[np.float64]
    over: npt.NDArray[np.bool_]


class VectorEnvironment(ABC):
    """N copies of one environment, stepped together into the caller's memory.

    Every implementation autoresets on the *next* step: a step that ends an environment's episode
    shows that episode's last observation; the following step ignores that environment's action,
    shows the first observation of a new episode, and gives reward 0 and no flags. That step is no
    experience. Both flags of a step may be set; termination then outweighs truncation.

    Attributes:
        num_envs: N.
        observation_space: space of one environment.
        action_space: space of one environment.
        stack: S, number of successive observations that a policy should see as one; a step gives one.
        frames_per_step: frames of the game that one step takes.
        render_fps: natural frame rate of the drawings, in pictures a second; None: unknown.
        games: whole games, where a game is more than an episode by the flags, or other rewards count; None:
            an episode is a game and its return the sum of its rewards.
        agents: names of a team's agents; observations are records then, see ``team.TeamSpace``, and actions
            ``MultiDiscrete [M]`` or a ``Box [M, A]``. ``reward`` is the team's: where agents have rewards of
            their own, their sum.
        won: whether the step ended an episode that the team won, ``[N]`` bool, written with every step;
            None: this environment has no victories.
        remarks: remarks for users, shown once, a sentence for each subject.
        metrics: ``environment.metrics`` of each episode (or game) that ended with the step, ``[N, K]``
            float32; other rows mean nothing. None: the config has none.
        info_keys: keys of gymnasium's ``info`` of the first environment, after ``reset``; empty without one.
        heuristic: a policy made by hand, from observations ``[N]`` to actions, to compare learned ones with;
            None: there is none.
        translator: translator from a team's own observations, by its agents' names, and to its own actions;
            None: the team has records only.
    """

    num_envs: int
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    stack: int = 1
    frames_per_step: int = 1
    render_fps: float | None = None
    games: Games | None = None
    agents: tuple[str, ...] = ()
    won: npt.NDArray[np.bool_] | None = None
    remarks: Mapping[str, str] = MappingProxyType({})
    metrics: npt.NDArray[np.float32] | None = None
    info_keys: Collection[str] = ()
    heuristic: Callable[[Array], Array] | None = None
    translator: TeamTranslator | None = None

    def new_observations(self) -> Array:
        """Allocate memory for the observations of ``reset`` and ``step``: zeros, ``[N, ...]``."""
        space = self.observation_space
        return np.zeros((self.num_envs, *(space.shape or ())), space.dtype)

    @abstractmethod
    def reset(self, seed: int, observation: Array) -> None:
        """Begin an episode in every environment, and all random streams anew.

        Each environment's stream is derived from ``seed`` and its index: the same seed repeats all of
        them, and neither two environments nor two seeds share one.

        Args:
            seed: any number from 0.
            observation: gets the first observations, ``[N, ...]``.
        """

    @abstractmethod
    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Act once in every environment and write the results into the caller's arrays.

        Args:
            actions: ``[N, ...]``; not kept after the call.
            observation: gets ``[N, ...]``, cast to the array's dtype.
            reward: gets ``[N]``.
            terminated: gets ``[N]``.
            truncated: gets ``[N]``.
        """

    @abstractmethod
    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the first environment as ``[height, width, 3]``; needs ``render=True`` when made."""

    @abstractmethod
    def close(self) -> None:
        """Free all environments. Harmless when repeated."""


class EnvironmentFactory(ABC):
    """Makes environments of one type; a config's ``environment.type`` names it.

    Attributes:
        wants_fresh_process: its library must not be forked: processes that use it are started anew.
        makes_teams: all its environments are teams, or none is; None: only an environment itself tells.
        takes_wrappers: ``make`` takes ``wrappers``, functions from one ``gymnasium.Env`` to another, and puts
            them around each environment, the first innermost. Callers pass them only if the config has some.
        takes_metrics: ``make`` takes ``metrics``, names of numbers in an environment's ``info``, and its
            ``VectorEnvironment`` has them as ``metrics``. Callers pass them only if the config has some.
    """

    wants_fresh_process: ClassVar[bool] = False
    makes_teams: ClassVar[bool | None] = None
    takes_wrappers: bool = False
    takes_metrics: bool = False

    @abstractmethod
    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Refuse an id that this type does not have, without building an environment.

        Raises:
            UnknownEnvironmentError: names the nearest id.
        """

    def check_options(  # noqa: B027 - many know only when built
        self,
        id: str,  # noqa: A002 - the config's word for it
        options: Mapping[str, Any],
    ) -> None:
        """Refuse options that ``make`` would refuse, without building an environment.

        Raises:
            WrongOptionError: names the option.
            MissingExtraError: these options need a library; the message is the pip command.
        """

    @abstractmethod
    def make(
        self,
        id: str,  # noqa: A002 - the config's word for it
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render: bool = False,
        *,
        evaluation: bool = False,
        threads: int = 1,
    ) -> VectorEnvironment:
        """Build N copies of an environment.

        Args:
            id: which environment; empty where the type is one environment.
            max_episode_steps: truncate episodes after so many steps; None keeps the environment's own limit.
            options: keyword arguments of the environment's constructor.
            evaluation: whole games with their own rewards, without changes that ease training.
            threads: number of threads that the environments may step in.

        Raises:
            UnknownEnvironmentError: no such id.
            MissingExtraError: the environment needs a library; the message is the pip command.
            UnsupportedSpaceError: observations or actions are not one array.
            BrokenEnvironmentError: the environment cannot be built with these options.
        """


def derive_seed(seed: int, index: int) -> int:
    """Derive the seed of environment ``index``: 31 bits, since some simulators keep it in a C int."""
    return int(np.random.SeedSequence((seed, index)).generate_state(1)[0] >> 1)


def check_spaces(name: str, observation: object, action: object) -> None:
    """Refuse spaces whose values are neither one array of fixed dtype and shape nor one record, or empty.

    Raises:
        UnsupportedSpaceError: says which space of which environment.
    """
    spaces = {"observation_space": observation, "action_space": action}
    dtype = observation.dtype if isinstance(observation, gymnasium.Space) else None
    if dtype is not None and dtype.names:  # Its values are records.
        del spaces["observation_space"]
    for called, space in spaces.items():
        check_part(f"{name}: {called}", space)
        if isinstance(space, gymnasium.Space) and 0 in (space.shape or ()):
            raise UnsupportedSpaceError(f"{name}: {called} is {space}, of no numbers; one at least is wanted")


def close_all(closes: Iterable[Callable[[], object]]) -> None:
    """Call each ``close``, also after one has raised; raise the first error at the end.

    Only an alarm, which is no ``Exception``, ends the calls at once.
    """
    failures = []
    for close in closes:
        try:
            close()
        except Exception as failure:  # noqa: BLE001 - an environment may raise anything
            failures.append(failure)
    if failures:
        raise failures[0]


def check_part(called: str, space: object) -> None:
    """Refuse a space whose values are not one array of fixed dtype and shape.

    Args:
        called: name of the space in the message.

    Raises:
        UnsupportedSpaceError: names the supported spaces.
    """
    supported = (
        gymnasium.spaces.Box,
        gymnasium.spaces.Discrete,
        gymnasium.spaces.MultiBinary,
        gymnasium.spaces.MultiDiscrete,
    )
    if not isinstance(space, supported):
        raise UnsupportedSpaceError(
            f"{called} is {space}; Box, Discrete, MultiBinary and MultiDiscrete are supported, and of "
            "observations Dicts and Tuples of these. A gymnasium wrapper of your own can show one of them: "
            'name it in environment.wrappers, as "my_module:MyWrapper"'
        )


def fps_of(metadata: object) -> float | None:
    """Read ``render_fps`` of gymnasium's metadata; None if it is missing or no sensible frame rate."""
    fps = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    if not isinstance(fps, int | float | np.integer | np.floating) or isinstance(fps, bool):
        return None
    return float(fps) if 0 < fps <= MOST_FPS else None


def as_picture(name: str, drawn: object) -> npt.NDArray[np.uint8]:
    """Convert an environment's drawing to ``[height, width, 3]`` uint8.

    Raises:
        BrokenEnvironmentError: the drawing is no picture; describes a right one.
    """
    wanted = "an array [height, width, 3] of whole numbers from 0 to 255"
    if drawn is None:
        raise BrokenEnvironmentError(
            f"{name} draws nothing: make it with render=True; render() of an environment that can be drawn "
            f"returns {wanted} where its render_mode is 'rgb_array'"
        )
    try:
        picture = np.asarray(drawn)
    except ValueError as cause:  # Lists of unequal lengths.
        raise BrokenEnvironmentError(
            f"{name}: render() gave no array ({cause}); {wanted} is right"
        ) from cause
    if picture.dtype.kind == "f" and picture.size and 0 <= picture.min() <= picture.max() <= 1:
        picture = np.rint(255 * picture).astype(np.uint8)  # Matplotlib's form, which MinAtar uses.
    if picture.ndim != 3 or picture.shape[2] != 3 or not picture.size or picture.dtype.kind not in "iu":
        raise BrokenEnvironmentError(
            f"{name}: render() gave {picture.dtype} of shape {picture.shape}; {wanted} is right"
        )
    return picture.astype(np.uint8, copy=False)


def fits(seen: Array, dtype: np.dtype[Any]) -> bool:
    """Whether an array keeps its values in another dtype, up to rounding."""
    if np.can_cast(seen.dtype, dtype, "safe") or (seen.dtype.kind in "biuf" and dtype.kind == "f"):
        return True
    # Whole numbers in a narrower space, such as a list of Python's; 0 and 1 may be flags.
    kinds = "biuf" if dtype.kind == "b" else "biu"
    narrows = seen.dtype.kind in kinds and dtype.kind in "biu"
    return narrows and np.array_equal(seen.astype(dtype), seen)
