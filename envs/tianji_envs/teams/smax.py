"""Environment type ``"smax"``: battles like those of StarCraft II, simulated by JaxMARL.

A team of allies fights a team of enemies that a policy made by hand commands (Rutherford et al. 2024,
section 4). One call, compiled by JAX, steps all copies.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tianji_envs.core import EnvironmentFactory
from tianji_envs.errors import BrokenEnvironmentError, MissingExtraError, UnknownEnvironmentError
from tianji_envs.options import nearest_or_all, read_typed

if TYPE_CHECKING:
    from tianji_envs.core import VectorEnvironment


SCENARIOS: Final = (
    "3m",
    "8m",
    "25m",
    "2s3z",
    "3s5z",
    "5m_vs_6m",
    "10m_vs_11m",
    "27m_vs_30m",
    "3s5z_vs_3s6z",
    "3s_vs_5z",
    "6h_vs_8z",
    "smacv2_5_units",
    "smacv2_10_units",
    "smacv2_20_units",
)
"""Maps of JaxMARL; importing it to ask for them would take seconds."""

MAX_STEPS: Final = 100
"""Maximum steps of a battle, unless a config says otherwise."""

_ONE_THREAD: Final = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class SMAXFactory(EnvironmentFactory):
    """Makes battles of JaxMARL's ``HeuristicEnemySMAX``."""

    wants_fresh_process: ClassVar[bool] = True
    makes_teams: ClassVar[bool | None] = True

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Look the scenario up."""
        if id not in SCENARIOS:
            raise UnknownEnvironmentError(f"SMAX has no scenario {id!r}{nearest_or_all(id, SCENARIOS)}")

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002, ARG002 - alike in all
        """Check names and values, and look for JaxMARL without importing it."""
        read_options(options)
        if importlib.util.find_spec("jaxmarl") is None:
            raise _missing("jaxmarl")

    def make(
        self,
        id: str,  # noqa: A002 - the config's word for it
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render: bool = False,  # noqa: ARG002 - positions are there anyway
        *,
        evaluation: bool = False,  # noqa: ARG002 - episodes are whole, and rewards the environment's own
        threads: int = 1,
    ) -> VectorEnvironment:
        """Build N battles; ``SMAXOptions`` lists the options."""
        self.check_id(id)
        limit = MAX_STEPS if max_episode_steps is None else max_episode_steps
        # JaxMARL ends a battle on the step after its max_steps: its own default of 100 makes battles of 101.
        keywords = asdict(read_options(options)) | {"max_steps": limit - 1}
        _settle_jax(threads)
        try:
            with _smax_alone():
                battles = importlib.import_module("tianji_envs.teams.smax_vector")
        except ModuleNotFoundError as cause:
            raise _missing(cause.name) from cause
        try:
            vector: VectorEnvironment = battles.SMAXVectorEnvironment(id, num_envs, keywords)
        except Exception as cause:
            raise BrokenEnvironmentError(f"SMAX's {id} cannot be built with {keywords}: {cause}") from cause
        return vector


def _settle_jax(threads: int) -> None:
    """Choose JAX's platform and threads before its first use, when it reads them; the user's settings win.

    Every actor has a core of its own: several threads would take turns on it.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if threads == 1:
        os.environ.setdefault("XLA_FLAGS", _ONE_THREAD)


@contextlib.contextmanager
def _smax_alone() -> Iterator[None]:
    """Let imports of JaxMARL load SMAX alone.

    JaxMARL's packages import all of its environments, which takes four seconds of a core in each process,
    prints the missing ones, and replaces ``sys.stdout``. SMAX needs none of them.
    """
    left_out = []
    for package in ("jaxmarl", "jaxmarl.environments"):
        if package not in sys.modules and (spec := importlib.util.find_spec(package)):
            sys.modules[package] = importlib.util.module_from_spec(spec)
            left_out.append(package)
    try:
        yield
    finally:
        for package in left_out:  # A later import of JaxMARL gets the whole of it.
            del sys.modules[package]


def _missing(module: str | None) -> MissingExtraError:
    return MissingExtraError(f"SMAX needs {module!r}, which is not installed: pip install 'tianji[smax]'")


_CHOICES: Final = {"attack_mode": ("closest", "random"), "observation_type": ("unit_list", "conic")}

_POSITIVE: Final = ("map_width", "map_height", "world_steps_per_env_step", "time_per_step")


@dataclass(frozen=True)
class SMAXOptions:
    """Options of SMAX, with the names and defaults of ``jaxmarl.environments.smax``.

    Attributes:
        enemy_shoots: the enemies attack.
        attack_mode: the unit in range that they attack: "closest" or "random".
        see_enemy_actions: a unit sees the last actions of enemies in sight.
        walls_cause_death: a unit that touches the edge of the map dies.
        won_battle_bonus: reward for winning, beside 1 for all the damage that can be done.
        use_self_play_reward: no reward for damage, and the bonus is lost with the battle.
        observation_type: "unit_list", a place for each other unit, or "conic", a place for the units in
            each direction.
        map_width: width of the map, in units of length; a marine shoots over 5.
        map_height: height of the map, in the same units.
        world_steps_per_env_step: steps of the simulation that one step takes.
        time_per_step: time of a step of the simulation, in seconds.
    """

    enemy_shoots: bool = True
    attack_mode: str = "closest"
    see_enemy_actions: bool = True
    walls_cause_death: bool = True
    won_battle_bonus: float = 1.0
    use_self_play_reward: bool = False
    observation_type: str = "unit_list"
    map_width: int = 32
    map_height: int = 32
    world_steps_per_env_step: int = 8
    time_per_step: float = 1 / 16


def read_options(options: Mapping[str, Any] | None) -> SMAXOptions:
    """Check options and complete them.

    Raises:
        WrongOptionError: an option that does not exist, or a value that does not fit it.
    """
    return read_typed(SMAXOptions, options, "SMAX", _wanted)


def _wanted(name: str, value: Any) -> str:
    if value not in _CHOICES.get(name, (value,)):
        return " or ".join(f'"{choice}"' for choice in _CHOICES[name])
    if name in _POSITIVE and value <= 0:
        return "greater than 0"
    return ""
