"""Environment type ``"smac"``: battles of StarCraft II by ``smac``, or without the game by ``smaclite``.

Both packages are installed from their repositories: no extra of TianJi's can bring them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from tianji_envs.core import EnvironmentFactory, VectorEnvironment
from tianji_envs.errors import (
    BrokenEnvironmentError,
    EnvironmentFailure,
    MissingExtraError,
    UnknownEnvironmentError,
    WrongOptionError,
)
from tianji_envs.teams.smac_battles import Battle, LiteBattle, StarCraftBattle
from tianji_envs.teams.smac_vector import SMACVectorEnvironment

PACKAGES: Final[Mapping[str, type[Battle]]] = {"smac": StarCraftBattle, "smaclite": LiteBattle}

_SOURCES: Final = {
    "smac": "git+https://github.com/oxwhirl/smac.git",
    # Its master of September 2024, after v2.0.0; LiteBattle is written against this source.
    "smaclite": "git+https://github.com/uoe-agents/smaclite.git@0d6abbe",
}
_LITE_OPTIONS: Final = ("map_file", "use_cpp_rvo2")
"""What smaclite's environment heeds of its keyword arguments; it takes any others, and says nothing."""
_OWN_OPTIONS: Final = {
    "map_name": "environment.id",
    "seed": "experiment.seed",
    "continuing_episode": "nothing: a time limit truncates",
}
"""Keyword arguments of the packages that are not the user's, and what says them."""


class SMACFactory(EnvironmentFactory):
    """Makes battles on maps of the StarCraft Multi-Agent Challenge (Samvelyan et al. 2019).

    The option ``package`` is "smac", the default, or "smaclite"; all others are keyword arguments of that
    package's environment.
    """

    makes_teams: ClassVar[bool | None] = True

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Refuse an empty id; which maps there are, and users may add some, only the packages know."""
        if not id:
            raise UnknownEnvironmentError('SMAC needs the name of a map, such as id = "3m"')

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002, ARG002 - alike in all
        """Check what TianJi knows of, and look for the package and the game without importing anything."""
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
    """Tell which package, and what it is given."""
    keywords = dict(options)
    package = keywords.pop("package", "smac")
    if package not in PACKAGES:
        raise WrongOptionError("package", f'SMAC\'s package = {package!r}: it should be "smac" or "smaclite"')
    return package, keywords


def _missing_steps(package: str) -> list[str]:
    """Say what is still to be installed, in order."""
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
