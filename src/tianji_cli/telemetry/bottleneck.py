"""Names the side that limits a job's throughput, and gives its meaning in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

Kind = Literal["sample-bound", "training-bound", "communication-bound", "balanced", "in step"]

BALANCED: Final = 0.10
"""Production and consumption are in balance if they differ by no more than this share (Equation 4)."""


@dataclass(frozen=True)
class Bottleneck:
    """Bottleneck of a job.

    Attributes:
        kind: one of the paper's three regimes (section 4.3.3), "balanced" or "in step".
        words: its meaning, and a remedy; the words do not repeat the kind.
    """

    kind: Kind
    words: str

    def __str__(self) -> str:
        """Return the text for displays: kind and words."""
        return f"{self.kind}: {self.words}"


SAMPLE_BOUND: Final = Bottleneck(
    "sample-bound",
    "the learner waits for samples; more actors, or more environments in each, would help, "
    "a faster learner would not",
)
TRAINING_BOUND: Final = Bottleneck(
    "training-bound",
    "more actors will not help; a faster learner would: more cores where its network uses them, "
    "or another group",
)
BOUND_BY_RECEPTION: Final = Bottleneck(
    "communication-bound",
    "the buffer cannot receive more fragments; neither more actors nor a faster learner will help, "
    "larger fragments or another group would",
)
BOUND_BY_LINK: Final = Bottleneck(
    "communication-bound",
    "the network to the learner's host is full; actors on the learner's own host, or a group on each host, "
    "would help, more actors elsewhere will not",
)
IN_BALANCE: Final = Bottleneck(
    "balanced",
    "actors make samples about as fast as the learner uses them; only more of both would help",
)

SMALLER: Final[Mapping[str, str]] = {"impala_large": "impala_small", "nature": "impala_small"}
"""Large image networks, and the network that learns in a fraction of their time."""

OWN_CORES: Final = "cores of their own would help most"
MORE_CORES: Final = "more cores would help"


def bottleneck(production: float, reception: float, consumption: float) -> Bottleneck:
    """Name the side that limits a job.

    Args:
        production: sample uses a second that the actors could feed (production x rho).
        reception: sample uses a second that the buffer could receive (reception x rho).
        consumption: sample uses a second that the learner could make.
    """
    slower, faster = sorted((production, consumption))
    even = faster - slower <= BALANCED * faster
    # Where the other two are in balance, a buffer that is only just behind them is in balance as well.
    if reception < (slower * (1 - BALANCED) if even else slower):
        return BOUND_BY_RECEPTION
    if even:
        return IN_BALANCE
    return SAMPLE_BOUND if production < consumption else TRAINING_BOUND


def naming_network(found: Bottleneck | None, settings: object) -> Bottleneck | None:
    """Name a smaller network in the words where the learner is the slower side with a large one."""
    encoder = str(getattr(settings, "encoder", None))
    if found is None or found.kind != "training-bound" or encoder not in SMALLER:
        return found
    network = f"model.encoder = {SMALLER[encoder]!r} takes less of each update than {encoder!r}"
    return replace(found, words=f"{network}; {found.words}")


def in_step(production: float, consumption: float) -> Bottleneck:
    """Describe a job whose actors wait for each new policy: both sides limit it, never one alone."""
    of_actors = consumption / (production + consumption)
    return Bottleneck(
        "in step",
        f"actors and learner wait for each other: {of_actors:.0%} of the time goes to the actors, "
        f'{1 - of_actors:.0%} to the learner; whichever is faster helps, and mode = "async" would let both '
        "work at once",
    )


def on_shared_cores(helps: str, actors_s: float, buffers_s: float, learners_s: float) -> Bottleneck:
    """Describe a job whose roles take turns on too few cores: the role that needs most core time limits it.

    Args:
        helps: the remedy: ``OWN_CORES``, or ``MORE_CORES`` where roles are meant to share them.
        actors_s: core seconds that the actors need for a number of sample uses; 0 if they take turns with no
            other role.
        buffers_s: core seconds that the buffers need for as many; 0 likewise.
        learners_s: core seconds that the learners need for as many; 0 likewise.
    """
    kind, shares = _by_need(actors_s, buffers_s, learners_s)
    return Bottleneck(kind, f"roles take turns on the same cores ({shares}); {helps}")


def beside_busy_cores(cores: float, throttled: float, actors_s: float, learners_s: float) -> Bottleneck:
    """Describe a job whose roles share cores, none of them idle; perhaps other programs use them, too.

    Args:
        cores: number of all cores, or the number that a CPU quota grants.
        throttled: share of the quota's periods in which it was used up, 0 to 1.
        actors_s: wall-clock seconds that actors were busy; they may have waited for a core in between.
        learners_s: wall-clock seconds that learners were busy, likewise.
    """
    kind, shares = _by_need(actors_s, 0.0, learners_s)
    words, helps = f"all {cores:g} cores are at work", "more cores"
    if throttled:
        words = f"the CPU limit of {cores:g} cores is used up in {throttled:.0%} of its periods"
        helps = "a higher limit (docker run --cpus)"
    return Bottleneck(kind, f"{words}; the roles' busy time: {shares}; {helps} may help")


def _by_need(actors_s: float, buffers_s: float, learners_s: float) -> tuple[Kind, str]:
    """Return the kind for the role that needs most time, and the shares of all as text, largest first."""
    needs: tuple[tuple[Kind, str, float], ...] = (
        ("sample-bound", "the actors", actors_s),
        ("communication-bound", "the buffer", buffers_s),
        ("training-bound", "the learner", learners_s),
    )
    needs = tuple(sorted((need for need in needs if need[2]), key=lambda need: -need[2]))
    total = sum(seconds for _, _, seconds in needs)
    return needs[0][0], ", ".join(f"{who} {seconds / total:.0%}" for _, who, seconds in needs)


def beside_idle_cores(idle: float, cores: float, would_use_them: str) -> Bottleneck:
    """Describe a job that waits for samples while cores are idle, and name a remedy that uses them."""
    words = f"the learner waits for samples, and {idle:.1f} of {cores:g} cores are idle: {would_use_them}"
    return Bottleneck("sample-bound", f"{words} would use them (`tianji profile` measures it)")
