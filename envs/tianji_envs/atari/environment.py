"""Environment type ``"atari"``: games of the Atari 2600, emulated by ``ale_py`` or by EnvPool.

The emulators play whole games. This module ends an episode at a lost life, clips rewards, and keeps the
scores of the games.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs.atari.games import WITHOUT_FIRE, AtariOptions, find_game, read_options, title
from tianji_envs.core import Array, EnvironmentFactory, Games, VectorEnvironment, derive_seed
from tianji_envs.errors import BrokenEnvironmentError, MissingExtraError

MAX_FRAMES: Final = 108_000
"""Maximum frames of a game: half an hour (Machado et al. 2018, Table 5; 18,000 in Mnih et al. 2015)."""

_LIBRARIES: Final = {"ale": ("ale_py", "atari"), "envpool": ("envpool", "envpool")}
"""Module to import for each backend, and tianji's extra that brings it."""


class AtariFactory(EnvironmentFactory):
    """Atari games, with the preprocessing of Mnih et al. 2015 and Machado et al. 2018."""

    makes_teams: ClassVar[bool | None] = False

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Look for the game, without asking the libraries."""
        find_game(id)

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002, ARG002 - all games' alike
        """Check names and values, and look for the emulator's library without importing it."""
        backend = read_options(options).backend
        if importlib.util.find_spec(_LIBRARIES[backend][0]) is None:
            raise _missing(backend)

    def make(
        self,
        id: str,  # noqa: A002 - the config's word for it
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render: bool = False,  # noqa: ARG002 - frames are there anyway
        *,
        evaluation: bool = False,
        threads: int = 1,
    ) -> VectorEnvironment:
        """Build N emulators of a game; ``AtariOptions`` lists the options."""
        game = find_game(id)
        chosen = read_options(options)
        if evaluation:
            chosen = dataclasses.replace(chosen, clip_rewards=False, life_loss=False)
        limit = MAX_FRAMES // chosen.frame_skip if max_episode_steps is None else max_episode_steps
        try:
            emulators = _emulators(game, num_envs, limit, chosen, threads)
        except ModuleNotFoundError as cause:
            raise _missing(chosen.backend) from cause
        except Exception as cause:
            raise BrokenEnvironmentError(f"{title(game)} cannot be built with {chosen}: {cause}") from cause
        return AtariVectorEnvironment(game, emulators, num_envs, chosen, evaluation=evaluation)


def _emulators(game: str, num_envs: int, limit: int, options: AtariOptions, threads: int) -> Emulators:
    backend: type[AleEmulators | EnvPoolEmulators]
    backend = AleEmulators if options.backend == "ale" else EnvPoolEmulators
    return backend(game, num_envs, limit, options, threads)


def _missing(backend: str) -> MissingExtraError:
    extra = _LIBRARIES[backend][1]
    return MissingExtraError(
        f"Atari's backend {backend!r} needs more than is installed: pip install 'tianji[{extra}]'"
    )


NOOP, FIRE = 0, 1
FRAMES_PER_S = 60.0
"""Frame rate of the console."""
RENDERED_SIZE = 336
"""Maximum height and width of an enlarged drawing, in pixels: the largest multiple of a frame within it."""


class Turn(NamedTuple):
    """Result of a step of all emulators; the library allocates new arrays each time.

    Attributes:
        frames: newest frames, ``[N, 1, height, width]`` uint8.
        reward: the game's reward, ``[N]``.
        terminated: the game is over, ``[N]`` bool.
        truncated: the game took too long, ``[N]`` bool.
        lives: remaining lives, ``[N]``; 0 throughout in games without lives.
    """

    frames: npt.NDArray[np.uint8]
    reward: npt.NDArray[np.int32] | npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    lives: npt.NDArray[np.int32]


class Emulators(ABC):
    """N emulators of whole games with unclipped rewards, which autoreset as ``VectorEnvironment`` says."""

    num_actions: int
    _vector: Any = None
    """The library's environment, which frees its emulators and their threads when nothing refers to it."""

    @abstractmethod
    def reset(self, seeds: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """Begin a game in every emulator; returns frames and lives as in ``Turn``."""

    def step(self, actions: npt.NDArray[np.int32]) -> Turn:
        """Act once in every emulator."""
        frames, reward, terminated, truncated, info = self._vector.step(actions)
        return Turn(frames, reward, terminated, truncated, info["lives"])

    def close(self) -> None:
        """Free the emulators. Harmless when repeated."""
        self._vector = None


class AleEmulators(Emulators):
    """N emulators of one game, by ``ale_py``.

    ALE's own ``episodic_life`` begins a new game where a life is lost, so later lives would never be
    played; it stays off.

    Args:
        max_steps: maximum steps of a game, without the no-ops that begin it.
    """

    def __init__(self, game: str, num_envs: int, max_steps: int, options: AtariOptions, threads: int) -> None:
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - an extra

        # With ALE_ROMS_DIR set, ale_py prints where the ROMs come from; stdout is for results.
        with contextlib.redirect_stdout(sys.stderr):
            self._vector = AtariVectorEnv(
                game,
                num_envs,
                num_threads=min(threads, num_envs),
                max_num_frames_per_episode=max_steps * options.frame_skip,
                repeat_action_probability=options.sticky,
                full_action_space=options.full_action_space,
                img_height=options.size,
                img_width=options.size,
                stack_num=1,
                frameskip=options.frame_skip,
                noop_max=options.noop_max,
                episodic_life=False,
                reward_clipping=False,
                use_fire_reset=options.fire_reset,
            )
        self.num_actions = len(self._vector.ale.get_action_set())

    def reset(self, seeds: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """Begin a game in every emulator."""
        frames, info = self._vector.reset(seed=seeds)
        return frames, info["lives"]


class EnvPoolEmulators(Emulators):
    """N emulators of one game, by EnvPool.

    A pool takes its seeds when it is made, so each reset makes a new one.

    Args:
        options: options of emulation.
    """

    def __init__(self, game: str, num_envs: int, max_steps: int, options: AtariOptions, threads: int) -> None:
        import envpool  # noqa: PLC0415 - an extra, and takes 1.5 s

        self._build = envpool.make_gymnasium
        self._task = f"{title(game)}-v5"
        self._settings: dict[str, Any] = {
            "num_envs": num_envs,
            "num_threads": min(threads, num_envs),
            "max_episode_steps": max_steps,
            "repeat_action_probability": options.sticky,
            "full_action_space": options.full_action_space,
            "img_height": options.size,
            "img_width": options.size,
            "stack_num": 1,
            "frame_skip": options.frame_skip,
            "noop_max": max(1, options.noop_max),  # EnvPool draws from 1 to noop_max.
            "episodic_life": False,
            "reward_clip": False,
            "use_fire_reset": options.fire_reset,
        }
        self.num_actions = int(envpool.make_spec(self._task, **self._settings).action_space.n)

    def reset(self, seeds: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """Begin a game in every emulator."""
        self.close()
        self._vector = self._build(self._task, env_seed=seeds.tolist(), **self._settings)
        frames, info = self._vector.reset()
        return frames, info["lives"]


class AtariVectorEnvironment(VectorEnvironment):
    """N games; an observation is one frame.

    Args:
        evaluation: no policy learns from the steps.
    """

    def __init__(
        self,
        game: str,
        emulators: Emulators,
        num_envs: int,
        options: AtariOptions,
        *,
        evaluation: bool = False,
    ) -> None:
        self._emulators = emulators
        self._clips = options.clip_rewards
        self._ends_at_lives = options.life_loss
        fires = options.fire_reset and (options.full_action_space or game not in WITHOUT_FIRE)
        self._first_action = FIRE if fires else NOOP
        # Where a lost life ends no episode, the step after it is experience: the learner would take FIRE for
        # the policy's own action.
        self._begins_lives = options.life_loss or (fires and evaluation)

        self.num_envs = num_envs
        self.observation_space = gymnasium.spaces.Box(0, 255, (options.size, options.size), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(emulators.num_actions)
        self.stack = options.stack
        self.frames_per_step = options.frame_skip
        self.render_fps = FRAMES_PER_S / options.frame_skip
        self._score = np.zeros(num_envs, np.float64)
        self._game_over = np.zeros(num_envs, np.bool_)
        if options.clip_rewards or options.life_loss:
            self.games = Games(self._score, self._game_over)

        self._frames = np.zeros((num_envs, 1, options.size, options.size), np.uint8)
        self._actions = np.zeros(num_envs, np.int32)
        self._lives = np.zeros(num_envs, np.int32)
        # Flags of the last step: the emulator's game was over; a life was lost and another is left; the next
        # action begins a life; the game was over in a step that only began an episode, without a flag so far.
        self._over, self._lost, self._begins, self._unsaid = np.zeros((4, num_envs), np.bool_)
        self._eventful = False  # Some flags, other than lost lives, are set.

    def reset(self, seed: int, observation: Array) -> None:
        """Begin a game in every emulator."""
        seeds = np.array([derive_seed(seed, index) for index in range(self.num_envs)], np.int64)
        self._frames, self._lives[...] = self._emulators.reset(seeds)
        observation[...] = self._frames[:, 0]
        self._score[...] = 0
        for flags in (self._game_over, self._over, self._lost, self._begins, self._unsaid):
            flags[...] = False
        self._eventful = False

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Act once in every emulator; FIRE or NOOP replaces the action that begins a life."""
        self._actions[...] = actions
        if self._eventful:
            np.copyto(self._actions, self._first_action, where=self._begins)
        turn = self._emulators.step(self._actions)
        self._frames = turn.frames
        observation[...] = turn.frames[:, 0]
        terminated[...] = turn.terminated
        truncated[...] = turn.truncated
        if self._clips:
            np.clip(turn.reward, -1, 1, out=reward)
        else:
            reward[...] = turn.reward
        # Most steps neither end nor begin anything, and a numpy call costs more than its arithmetic here.
        eventful = self._eventful
        if eventful:
            np.copyto(self._score, 0, where=self._game_over)
        np.add(self._score, turn.reward, out=self._score)
        if (
            eventful
            or not np.array_equal(turn.lives, self._lives)
            or turn.terminated.any()
            or turn.truncated.any()
        ):
            self._note_ends(turn)
            if self._ends_at_lives:
                self._end_episodes_at_lives(reward, terminated, truncated)
            elif self._begins_lives:
                self._begins[...] = self._lost
            self._eventful = any(flags.any() for flags in (self._over, self._begins, self._unsaid))

    def _note_ends(self, turn: Turn) -> None:
        """Find the lives and games that ended with this step. ``np.greater(a, b)`` is "a and not b"."""
        lost, over = self._lost, self._over
        np.less(turn.lives, self._lives, out=lost)
        np.logical_and(lost, turn.lives, out=lost)  # Qbert shows 0 lives for a while before its game is over.
        np.greater(lost, over, out=lost)  # Where the last game was over, a new one began with its own lives.
        np.logical_or(turn.terminated, turn.truncated, out=over)
        np.greater(lost, over, out=lost)
        self._lives[...] = turn.lives
        self._game_over[...] = over

    def _end_episodes_at_lives(self, reward: Array, terminated: Array, truncated: Array) -> None:
        """Make the step after a lost life one that only begins an episode: without reward or flags.

        The game goes on in that step. If the game ends there, the next step has the flag: the emulator then
        begins a new game and gives no reward either. This rare step counts as experience of a terminal state,
        though its action did nothing and its observation is the new game's; it is terminated even if the game
        was truncated.
        """
        begins, unsaid, ends = self._begins, self._unsaid, self._lost
        for written in (reward, terminated, truncated, self._game_over):
            np.copyto(written, False, where=begins)
        np.greater(ends, begins, out=ends)
        np.logical_or(ends, unsaid, out=ends)
        np.logical_or(terminated, ends, out=terminated)
        np.logical_or(self._game_over, unsaid, out=self._game_over)
        np.logical_and(self._over, begins, out=unsaid)
        begins[...] = ends

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the first game's newest frame, enlarged: the emulators' own screens are out of reach."""
        times = max(1, RENDERED_SIZE // self._frames.shape[-1])
        large = self._frames[0, 0].repeat(times, axis=0).repeat(times, axis=1)
        return np.repeat(large[:, :, None], 3, axis=2)

    def close(self) -> None:
        """Free the emulators."""
        self._emulators.close()
