"""The two emulators of Atari games: ``ale_py``'s C++ vector environment, and EnvPool."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import envpool
import numpy as np
import numpy.typing as npt
from ale_py.vector_env import AtariVectorEnv

from tianji_envs.atari.environment import Turn
from tianji_envs.atari.games import AtariOptions, title


class AleEmulators:
    """N emulators of one game.

    ALE's own ``episodic_life`` begins a new game where a life is lost, so later lives would never be
    played; it stays off.

    Args:
        max_steps: of a game, not counting what it begins with.
    """

    def __init__(self, game: str, num_envs: int, max_steps: int, options: AtariOptions, threads: int) -> None:
        # With ALE_ROMS_DIR set, ale_py prints where the ROMs come from; stdout is for results.
        with contextlib.redirect_stdout(sys.stderr):
            self._vector: Any = AtariVectorEnv(
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

    def step(self, actions: npt.NDArray[np.int32]) -> Turn:
        """Act once in every emulator."""
        frames, reward, terminated, truncated, info = self._vector.step(actions)
        return Turn(frames, reward, terminated, truncated, info["lives"])

    def close(self) -> None:
        """Free the emulators and their threads, as ALE does when nothing refers to a vector."""
        self._vector = None


class EnvPoolEmulators:
    """N emulators of one game.

    A pool takes its seeds when it is made, so each reset makes a new one.

    Args:
        options: of emulation.
    """

    def __init__(self, game: str, num_envs: int, max_steps: int, options: AtariOptions, threads: int) -> None:
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
            "noop_max": max(1, options.noop_max),  # It draws from 1 to noop_max.
            "episodic_life": False,
            "reward_clip": False,
            "use_fire_reset": options.fire_reset,
        }
        self._pool: Any = None
        self.num_actions = int(envpool.make_spec(self._task, **self._settings).action_space.n)

    def reset(self, seeds: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """Begin a game in every emulator."""
        self.close()
        self._pool = envpool.make_gymnasium(self._task, env_seed=seeds.tolist(), **self._settings)
        frames, info = self._pool.reset()
        return frames, info["lives"]

    def step(self, actions: npt.NDArray[np.int32]) -> Turn:
        """Act once in every emulator."""
        frames, reward, terminated, truncated, info = self._pool.step(actions)
        return Turn(frames, reward, terminated, truncated, info["lives"])

    def close(self) -> None:
        """Free the emulators and their threads, as EnvPool does when nothing refers to a pool."""
        self._pool = None
