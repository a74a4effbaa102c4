"""Has probes build what they will run, and says what was built."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError
from tianji_lab.profile.probe.crew import Crew
from tianji_lab.profile.phases import LEARNER, Part
from tianji_lab.profile.probe.settings import measuring_settings
from tianji_lab.profile.probe.protocol import Prepare, Prepared

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

    def expected_s(self, part: Part, took_s: Mapping[Part, float]) -> float:
        """Expect what a part took before, or the configured one; more environments take more.

        Args:
            part: is expected to take so many seconds.
            took_s: what parts took; nothing is expected of what is unknown.
        """
        larger = max(1.0, part.num_envs / self.num_envs)
        return took_s.get(part, larger * took_s.get(Part(part.role, self.num_envs), 0.0))

    def divides_by(self, share: int) -> bool:
        """Say whether the batch can be divided among so many learners."""
        try:
            load_config(self.config, self.settings(self.num_envs, share))
        except ConfigError:
            return False
        return True


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
        if prepared.rho is not None:
            self.rho = prepared.rho


class Builder:
    """Has probes build parts when they are needed, and keep as few as possible.

    Environments may be many and large, and so may replays: each probe keeps the configured actor, with which
    it runs again and again, and beside it only what was built last.

    Args:
        crew: the probes.
        subject: what is built.
        directory: each part gets a directory in it.

    Attributes:
        crew: the probes.
        subject: what is built.
        built: what is known of it.
    """

    def __init__(self, crew: Crew, subject: Subject, directory: Path) -> None:
        self.crew = crew
        self.subject = subject
        self.built = Built()
        self._directory = directory
        self._kept = Part("actor", subject.num_envs)
        self._there: dict[int, set[Part]] = {number: set() for number in range(len(crew))}
        self._took_s: dict[Part, float] = {}

    def start(self) -> None:
        """Have all probes build the configured actor, as in a job of so many; the first the learner, too.

        Raises:
            ProbeFailed: something could not be built.
        """
        self.have(dict.fromkeys(self._there, self._kept))
        self.built.startup_s = time.perf_counter() - self.crew.started_s
        self.have({LEARNER: Part("learner", self.subject.num_envs)})

    def have(self, parts: Mapping[int, Part]) -> None:
        """Have probes build what they have not, all at the same time.

        Raises:
            ProbeFailed: something could not be built.
        """
        missing = self.missing(parts)
        for number in missing:
            self._there[number] &= {self._kept}
        steps = {number: self._prepare(number, part) for number, part in missing.items()}
        for number, answer in self.crew.ask(steps, PREPARE_S).items():
            assert isinstance(answer, Prepared)
            self.built.note(missing[number], answer)
            self._there[number].add(missing[number])
            self._took_s[missing[number]] = answer.seconds

    def expected_s(self, part: Part) -> float:
        """Expect what building a part takes, in seconds."""
        return self.subject.expected_s(part, self._took_s)

    def missing(self, parts: Mapping[int, Part]) -> dict[int, Part]:
        """Find what would have to be built for probes to run these."""
        return {number: part for number, part in parts.items() if part not in self._there[number]}

    def _prepare(self, number: int, part: Part) -> Prepare:
        directory = self._directory / str(number) / part.key
        directory.mkdir(parents=True, exist_ok=True)
        return Prepare(
            key=part.key,
            role=part.role,
            config=self.subject.config,
            overrides=self.subject.settings(part.num_envs, part.share),
            directory=str(directory),
            keep=tuple(kept.key for kept in self._there[number]),
        )
