"""Contexts of users' roles that are sent copies by the actor of a stage."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tianji_cli.config.edges import POLICY
from tianji_cli.config.loader import load_config
from tianji_cli.plan.graph import fragments_to
from tianji_cli.roles.buffer.rollout import FragmentValidator
from tianji_cli.roles.records import FragmentInlet, Ports, SlotReader
from tianji_cli.roles.user_role import RoleContext
from tianji_cli.wire.parameters import PublishedPolicy
from tianji_cli.wire.reports import Rejected

JOB = 5


def context_of(
    one: Any,
    name: str,
    directory: Path,
    settings: BaseModel,
    *,
    job: int = JOB,
    receives: bool = True,
    reads: bool = True,
) -> RoleContext:
    """Context of a role that gets copies of fragments and reads policies."""
    transport = one.copyists[0]

    def ports(rejected: Rejected) -> Ports:
        validator = FragmentValidator(one.layout, job, {1: (0,)})
        validator.rejected = rejected
        copies = FragmentInlet(transport, "copies-0", one.layout, validator)
        policies = SlotReader(transport, "policy", PublishedPolicy)
        return Ports(
            {}, {fragments_to(name): copies} if receives else {}, {}, {POLICY: policies} if reads else {}
        )

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
        seed=9,
        transport=transport,
        ports=ports,
        make_agent=lambda num_envs, seed: one.agent(one.build(1), num_envs, seed),
        make_environment=lambda _num_envs, _evaluation: one.make(),
    )
