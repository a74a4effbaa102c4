"""What a config's ``environment.options`` may say of battles in SMAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tianji_envs.typed_options import read_typed

_CHOICES: Final = {"attack_mode": ("closest", "random"), "observation_type": ("unit_list", "conic")}

_POSITIVE: Final = ("map_width", "map_height", "world_steps_per_env_step", "time_per_step")


@dataclass(frozen=True)
class SMAXOptions:
    """Names and defaults are those of ``jaxmarl.environments.smax``.

    Attributes:
        enemy_shoots: the enemies attack.
        attack_mode: whom they attack of those in range: "closest" or "random".
        see_enemy_actions: a unit sees what enemies in sight did last.
        walls_cause_death: a unit that touches the edge of the map dies.
        won_battle_bonus: reward for winning, beside 1 for all the damage that can be done.
        use_self_play_reward: no reward for damage, and the bonus is lost with the battle.
        observation_type: "unit_list", a place for each other unit, or "conic", a place for what is seen in
            each direction.
        map_width: in units of length; a marine shoots over 5.
        map_height: the same.
        world_steps_per_env_step: steps of the simulation that one step takes.
        time_per_step: of the simulation, in seconds.
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
