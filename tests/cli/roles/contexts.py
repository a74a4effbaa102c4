"""Contexts of users' roles that are sent copies by the actor of a stage."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tianji_cli.config.loader import load_config
from tianji_cli.roles.records import Ports
from tianji_cli.roles.user_role import RoleContext

JOB = 5


def context_of(one: Any, name: str, directory: Path, settings: BaseModel, **changes: Any) -> RoleContext:
    """Context of a role that receives fragments and may read the policy, but for ``changes``."""
    connected: dict[str, Any] = {"job": JOB, "channel": "copies-0", "slot": "policy"}
    return RoleContext(
        name=name,
        group=0,
        number=0,
        settings=settings,
        config=load_config("configs/ppo_cartpole.toml"),
        directory=directory,
        states=directory / "states",
        spaces=one.spaces,
        layout=one.layout,
        actors={1: (0,)},
        seed=9,
        transport=one.copyists[0],
        ports=lambda _rejected: Ports({}, {}, {}, {}),
        make_agent=lambda num_envs, seed: one.agent(one.build(1), num_envs, seed),
        make_environment=lambda _num_envs, _evaluation: one.make(),
        **(connected | changes),
    )
