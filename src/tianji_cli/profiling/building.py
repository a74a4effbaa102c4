"""Has every probe build what it will run, and says what was built."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final, Literal

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError
from tianji_cli.profiling.crew import Crew
from tianji_cli.profiling.phases import Phase, Place, Room
from tianji_cli.profiling.probe_settings import measuring_settings
from tianji_cli.profiling.protocol import Prepare, Prepared

PREPARE_S: Final = 120.0
"""How long a probe may take to start and to build one side of a job."""


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        config: path of the config, or the name of a shipped one.
        overrides: ``SECTION.KEY=VALUE`` settings over it.
        job: what these say.
    """

    config: str
    overrides: tuple[str, ...]
    job: JobConfig

    @property
    def num_envs(self) -> int:
        """Environments of an actor, as configured."""
        return self.job.environment.num_envs

    def settings(self, num_envs: int, share: int) -> tuple[str, ...]:
        """Settings over the config under which a probe measures it.

        Raises:
            ConfigError: the batch cannot be divided so.
        """
        return (*self.overrides, *measuring_settings(self.job, num_envs, share))

    def divides_by(self, share: int) -> bool:
        """Say whether the batch can be divided among so many learners."""
        try:
            load_config(self.config, self.settings(self.num_envs, share))
        except ConfigError:
            return False
        return True


@dataclass(frozen=True, order=True)
class Part:
    """What a probe builds once and runs in several phases.

    Attributes:
        role: actor, or learner with its buffer.
        num_envs: of each actor.
        share: L, the learner's batch is divided among so many.
    """

    role: Literal["actor", "learner"]
    num_envs: int
    share: int

    @classmethod
    def of(cls, phase: Phase, place: Place) -> Part:
        """Find what runs in a phase at one of its places."""
        return cls(place.role, phase.num_envs, phase.share if place.role == "learner" else 1)

    @property
    def key(self) -> str:
        """Its name in a probe."""
        return f"{self.role}-{self.num_envs}-{self.share}"


@dataclass
class Built:
    """What was built.

    Attributes:
        startup_s: from the start of the processes until each had built an actor or a learner.
        fragment_bytes: size of a fragment, by the number of environments.
        batch_bytes: of a replay's batch; 0 on-policy.
        policy_bytes: of a published policy.
        parameters: of the network.
        rho: uses of each sample.
    """

    startup_s: float = 0.0
    fragment_bytes: dict[int, int] = field(default_factory=dict)
    batch_bytes: int = 0
    policy_bytes: int = 0
    parameters: int = 0
    rho: float = 0.0

    def note(self, part: Part, prepared: Prepared) -> None:
        """Keep what a probe says of a part."""
        self.fragment_bytes[part.num_envs] = prepared.fragment_bytes
        if part.share == 1:
            self.batch_bytes = prepared.batch_bytes
        self.policy_bytes = prepared.policy_bytes
        self.parameters = prepared.parameters
        self.rho = prepared.rho


def build(crew: Crew, room: Room, subject: Subject, phases: Sequence[Phase], directory: Path) -> Built:
    """Have every probe build what it runs in any of the phases, all at the same time.

    Args:
        crew: the probes.
        room: says who runs where.
        subject: what is built.
        phases: all of them.
        directory: each part gets a directory in it.

    Raises:
        ProbeFailed: something could not be built.
    """
    built = Built()
    wanted = _wanted(crew, room, subject, phases)
    for asked in zip_longest(*wanted.values()):
        parts = {number: part for number, part in zip(wanted, asked, strict=True) if part is not None}
        steps = {number: _prepare(subject, part, directory / str(number)) for number, part in parts.items()}
        answers = crew.ask(steps, PREPARE_S)
        if not built.startup_s:
            built.startup_s = time.perf_counter() - crew.started_s
        for number, answer in answers.items():
            assert isinstance(answer, Prepared)
            built.note(parts[number], answer)
    return built


def _wanted(crew: Crew, room: Room, subject: Subject, phases: Sequence[Phase]) -> dict[int, list[Part]]:
    """List the parts of each probe: the configured actor first, so that all start as in a job."""
    parts: dict[int, set[Part]] = {number: set() for number in range(len(crew))}
    for phase in phases:
        for number, place in room.places(phase).items():
            parts[number].add(Part.of(phase, place))
    return {
        number: sorted(of_probe, key=lambda part: (part.role, part.num_envs != subject.num_envs, part))
        for number, of_probe in parts.items()
    }


def _prepare(subject: Subject, part: Part, directory: Path) -> Prepare:
    own = directory / part.key
    own.mkdir(parents=True)
    settings = subject.settings(part.num_envs, part.share)
    return Prepare(
        key=part.key, role=part.role, config=subject.config, overrides=settings, directory=str(own)
    )
