"""Environment type ``"atari"``: games of the Atari 2600, emulated by ``ale_py`` or by EnvPool."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from tianji_envs.atari.games import AtariOptions, find_game, read_options, title
from tianji_envs.atari.vector import AtariVectorEnvironment, Emulators
from tianji_envs.core import EnvironmentFactory, VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError, MissingExtraError

MAX_FRAMES: Final = 108_000
"""Of a game: half an hour (Machado et al. 2018, Table 5; Mnih et al. 2015 evaluate over 18,000)."""

_LIBRARIES: Final = {"ale": ("ale_py", "atari"), "envpool": ("envpool", "envpool")}
"""By backend: the module to import, and tianji's extra that brings it."""


class AtariFactory(EnvironmentFactory):
    """Atari games, with the preprocessing of Mnih et al. 2015 and Machado et al. 2018."""

    makes_teams: ClassVar[bool | None] = False

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Look for the game; the libraries are not asked."""
        find_game(id)

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002, ARG002 - all games' alike
        """Check names and values, and look for the library that is to emulate, without importing it."""
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
        """Build N emulators of a game; ``AtariOptions`` says what the options are."""
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
    if options.backend == "ale":
        from tianji_envs.atari.emulators import AleEmulators  # noqa: PLC0415 - an extra

        return AleEmulators(game, num_envs, limit, options, threads)
    from tianji_envs.atari.emulators import EnvPoolEmulators  # noqa: PLC0415 - an extra, and takes 1.5 s

    return EnvPoolEmulators(game, num_envs, limit, options, threads)


def _missing(backend: str) -> MissingExtraError:
    extra = _LIBRARIES[backend][1]
    return MissingExtraError(
        f"Atari's backend {backend!r} needs more than is installed: pip install 'tianji[{extra}]'"
    )
