"""Has probes build what they will run; which of them run which roles at the same time, and on which cores."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError, Problem
from tianji_cli.quantities import several
from tianji_lab.model.costs import powers_of_two
from tianji_lab.profile.probe.pool import MOST_PROBES, ProbePool
from tianji_lab.profile.probe.protocol import Prepare, Prepared

PREPARE_S: Final = 120.0
"""How long a probe may take to start and to build one side of a job."""
_BATCHES: Final = ("minibatch_size", "batch_size", "rollout_steps")
"""What the samples of one update are called; of those that an update rule has, the first."""


@dataclass(frozen=True)
class Subject:
    """A config, with overrides, and the job that it describes."""

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
        """Expect what a part took before, or the configured one; more environments take more."""
        larger = max(1.0, part.num_envs / self.num_envs)
        return took_s.get(part, larger * took_s.get(Part(part.role, self.num_envs), 0.0))

    def divides_by(self, share: int) -> bool:
        """Whether the batch can be divided among so many learners."""
        try:
            load_config(self.config, self.settings(self.num_envs, share))
        except ConfigError:
            return False
        return True


def measuring_settings(job: JobConfig, num_envs: int, share: int) -> list[str]:
    """Settings (``SECTION.KEY=VALUE``): all roles in one process, no end, nothing evaluated.

    A replay's warm-up is its whole capacity: the probe lowers it to what it has filled in the time it takes
    for that. With several learners each updates on its share of a minibatch of its share of the rollout. Here
    only the minibatch is divided, since a rollout has to be whole fragments: an update costs the same, and so
    does its part of the rollout's preparation, but there are L times as many updates in a round.

    Args:
        share: L, the batch is divided among so many learners.

    Raises:
        ConfigError: the batch cannot be divided evenly.
    """
    settings = [
        "experiment.stop={wall_s=1e9}",
        "experiment.eval_episodes=0",
        "experiment.evaluation=false",
        "experiment.checkpoint_every_s=1e9",
        f"environment.num_envs={num_envs}",
        'distribution.transport="inproc"',
        'distribution.mode="async"',
        'distribution.balance="held"',
        "distribution.hosts=1",
        "distribution.groups=1",
        "distribution.learner.num=1",
        "distribution.learner.cores=1",
        "distribution.actor.num=1",
        "distribution.buffer.colocate=true",
        "distribution.buffer.cores=1",
    ]
    if job.learns_from_replay:
        settings.append(f"training.warmup_steps={job.distribution.buffer.capacity}")
    if share > 1:
        settings.append(_share_of_batch(job, share))
    return settings


def _share_of_batch(job: JobConfig, share: int) -> str:
    key = next(key for key in _BATCHES if hasattr(job.training.settings, key))
    samples = getattr(job.training.settings, key)
    if samples % share:
        what = f"{samples} samples cannot be shared evenly by {share} learners"
        raise ConfigError([Problem("", f"training.{key}", what)])
    return f"training.{key}={samples // share}"


@dataclass
class Built:
    """What was built.

    Attributes:
        startup_s: from the start of the processes until each had built an actor or a learner.
        fragment_bytes: size of a fragment, by the number of environments.
        batch_bytes: of a replay's batch; 0 on-policy.
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


class ProbeBuilds:
    """Has probes build parts when they are needed, and keep as few as possible.

    Environments may be many and large, and so may replays: each probe keeps the configured actor, with which
    it runs again and again, and beside it only what was built last.
    """

    def __init__(self, pool: ProbePool, subject: Subject, directory: Path) -> None:
        self.pool = pool
        self.subject = subject
        self.built = Built()
        self._directory = directory
        self._kept = Part("actor", subject.num_envs)
        self._there: dict[int, set[Part]] = {number: set() for number in range(len(pool))}
        self._took_s: dict[Part, float] = {}

    def start(self) -> None:
        """Have all probes build the configured actor, as in a job of so many; the first the learner, too.

        Raises:
            ProbeFailed: something could not be built.
        """
        self.have(dict.fromkeys(self._there, self._kept))
        self.built.startup_s = time.perf_counter() - self.pool.started_s
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
        for number, answer in self.pool.ask(steps, PREPARE_S).items():
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


SHARES: Final = (2, 4)
"""L: learners among whom a batch is divided, besides one."""
LEARNER: Final = 0
"""Number of the probe that is the learner, wherever there is one."""


@dataclass(frozen=True)
class Phase:
    """Roles that run at the same time.

    Attributes:
        num_envs: of each actor; of those whose fragments the learner is fed, too.
        learner_cores: of the learner; 0 if there is none.
        share: L, the batch is divided among so many learners.
        unpinned: all of them share all cores, which are too few to have one each.
    """

    num_envs: int
    actors: int = 0
    learner_cores: int = 0
    share: int = 1
    unpinned: bool = False

    def __str__(self) -> str:
        """Say it in a line of progress."""
        actors = f"{several(self.actors, 'actor')} of {several(self.num_envs, 'environment')}"
        if not self.learner_cores:
            return actors
        share = f" with 1/{self.share} of the batch" if self.share > 1 else ""
        learner = f"learner on {several(self.learner_cores, 'core')}{share}"
        if self.unpinned:
            return f"learner and {actors} on the same cores"
        if self.actors:
            return f"{learner} beside {actors}"
        return f"{learner}, fed by actors of {several(self.num_envs, 'environment')}"


@dataclass(frozen=True)
class Part:
    """What a probe builds, and runs in several phases.

    Attributes:
        role: actor, or learner with its buffer.
        share: L, the learner's batch is divided among so many.
    """

    role: Literal["actor", "learner"]
    num_envs: int
    share: int = 1

    @property
    def key(self) -> str:
        """Its name in a probe."""
        return f"{self.role}-{self.num_envs}-{self.share}"


@dataclass(frozen=True)
class Place:
    """The logical CPUs on which a part runs, with so many compute threads."""

    part: Part
    cores: tuple[int, ...]
    threads: int


@dataclass(frozen=True)
class Room:
    """The cores to measure on; roles are placed as ``cluster.plan`` places them.

    Attributes:
        cores: logical CPUs, no more than probes can be put to work on.
        actor_cores: of each actor.
    """

    cores: tuple[int, ...]
    actor_cores: int = 1

    @classmethod
    def of(cls, cores: Sequence[int], actor_cores: int) -> Room:
        """Take as many of the machine's cores as there can be probes for: with them all it is crowded."""
        return cls(tuple(cores[: (MOST_PROBES - 1) * actor_cores]), actor_cores)

    @property
    def probes(self) -> int:
        """How many processes all phases need: a learner, and an actor for each core."""
        return 1 + self.actors_beside(0)

    def actors_beside(self, learner_cores: int) -> int:
        """How many actors there is room for beside a learner; 0 cores are no learner."""
        free = len(self.cores) - learner_cores
        if free < 1:
            return 0
        return max(free // self.actor_cores, 1)

    def is_crowded(self, phase: Phase) -> bool:
        """Whether several roles run, and no more would have had room."""
        if phase.unpinned:
            return True
        roles = phase.actors + (phase.learner_cores > 0)
        return roles > 1 and phase.actors == self.actors_beside(phase.learner_cores)

    def places(self, phase: Phase) -> dict[int, Place]:
        """Give each role of a phase a probe and cores: the learner the first, actors those behind it.

        Without a learner, actors have the last ones. Unpinned roles have all of them.
        """
        if phase.unpinned:
            parts = [Part("learner", phase.num_envs), *(phase.actors * [Part("actor", phase.num_envs)])]
            return {number: Place(part, self.cores, 1) for number, part in enumerate(parts)}
        given: dict[int, Place] = {}
        probe, core = self.probes - phase.actors, len(self.cores) - phase.actors * self.actor_cores
        if phase.learner_cores:
            learner = Part("learner", phase.num_envs, phase.share)
            given[LEARNER] = self._place(learner, 0, phase.learner_cores)
            probe, core = LEARNER + 1, phase.learner_cores
        for number in range(phase.actors):
            first = max(core + number * self.actor_cores, 0)
            given[probe + number] = self._place(Part("actor", phase.num_envs), first, self.actor_cores)
        return given

    def _place(self, part: Part, first: int, number: int) -> Place:
        return Place(part, self.cores[first : first + number], number)


def all_phases(room: Room, num_envs: int, options: Sequence[int], shares: Sequence[int]) -> list[Phase]:
    """List what is measured in each round, most needed first: time may be over before the end.

    What is configured comes first, then the smallest changes to it: a second core, a second actor, and other
    numbers of environments, nearest ones first. Whatever runs beside something has run alone before.

    Args:
        shares: numbers of learners among whom a batch is divided, besides one.
    """
    unpinned = Phase(num_envs, actors=room.actors_beside(0), learner_cores=1, unpinned=True)
    phases = [Phase(num_envs, actors=1), *_learner(room, num_envs), unpinned]
    steps = sorted({*powers_of_two(len(room.cores)), len(room.cores)} - {0})
    changes = [_changed(room, num_envs, number) for number in steps if number > 1]
    nearest = sorted(options, key=lambda option: max(option / num_envs, num_envs / option))
    sizes = [[Phase(option, actors=1), *_learner(room, option)] for option in nearest]
    for group in (*changes[:1], *sizes, *changes[1:]):
        phases += group
    if len(room.cores) > 1:
        for share in shares:
            phases += _learner(room, num_envs, share=share)
    return list(dict.fromkeys(phases))


def _changed(room: Room, num_envs: int, number: int) -> list[Phase]:
    """List so many actors side by side, and a learner with so many cores."""
    return [Phase(num_envs, actors=min(number, room.actors_beside(0))), *_learner(room, num_envs, number)]


def _learner(room: Room, num_envs: int, cores: int = 1, share: int = 1) -> list[Phase]:
    """List a learner alone, and the same beside all actors that have room."""
    phases = [Phase(num_envs, 0, cores, share)]
    if actors := room.actors_beside(cores):
        phases.append(Phase(num_envs, actors, cores, share))
    return phases
