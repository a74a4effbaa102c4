"""How many there may be of anything in a config, and why no more: huge counts eat memory before they fail."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field


def at_most(most: int, because: str) -> AfterValidator:
    """Refuse larger numbers, and say why."""

    def check(number: int) -> int:
        if number > most:
            raise ValueError(f"{number} is more than {most:,}: {because}")
        return number

    return AfterValidator(check)


_64_BITS: Final = at_most(2**63 - 1, "whole numbers have 64 bits here, as TOML's have")
Count = Annotated[int, Field(ge=1), _64_BITS]
Natural = Annotated[int, Field(ge=0), _64_BITS]

MAX_PROCESSES: Final = 32_768
"""Processes of a job: the root keeps a connection to each."""

MAX_ROLES: Final = 64
"""Roles of the user's own: each is a process in every group, and may get a copy of every fragment."""

Processes = Annotated[Count, at_most(MAX_PROCESSES, "each is a process that the root is connected to")]
Groups = Annotated[Count, at_most(1024, "the root averages the parameters of all of them, one by one")]
Learners = Annotated[Count, at_most(1024, "each keeps a connection to every other one of its group")]
Hosts = Annotated[Count, at_most(4096, "the root is connected to each, and waits for all of them")]
Environments = Annotated[Count, at_most(1_000_000, "each actor builds all of them, and steps them in turn")]
Cores = Annotated[Natural, at_most(4096, "each is a thread, and no host has so many cores")]
