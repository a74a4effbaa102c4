"""What the measuring side and a probe (the process that is measured) say to each other: lines of JSON."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from tianji_cli.wire.messages import Message


class Prepare(Message):
    """Build one side of a job; answered by ``Prepared``.

    Attributes:
        key: names what is built in later steps.
        role: actor: an actor, whose fragments will be thrown away. learner: a buffer and a learner, which
            will never be left without fragments; some are recorded now, and a replay is filled with them.
        config: path of the config.
        overrides: ``SECTION.KEY=VALUE`` settings over it, those of ``measuring_settings`` last.
        directory: for what roles write, such as checkpoints; it exists, and is the probe's own.
        keep: keys of what stays; everything else that was built before is given up first.
    """

    step: Literal["prepare"] = "prepare"
    key: str
    role: Literal["actor", "learner"]
    config: str
    overrides: tuple[str, ...]
    directory: str
    keep: tuple[str, ...] = ()


class Prepared(Message):
    """Everything is built.

    Attributes:
        seconds: that it took, from the moment the step was read.
        batch_bytes: of a replay's batch; 0 on-policy.
        rho: uses of each sample; None if it is an actor, which does not know.
    """

    kind: Literal["prepared"] = "prepared"
    seconds: float
    fragment_bytes: int
    batch_bytes: int
    policy_bytes: int
    parameters: int
    rho: float | None


class Run(Message):
    """Run what was prepared as fast as it goes, on these cores; answered by ``Acted`` or ``Learned``.

    It goes on where the last run of this key ended. Windows follow one another after the warm-up. Each begins
    and ends with something finished, a fragment (actor) or a version (learner), and is as long as that takes.
    After the last one the role goes on for ``tail_s``, so that probes that were asked at about the same time
    are at work during all windows of one another.

    Attributes:
        key: what ``Prepare`` has built.
        cores: logical CPUs to be pinned to; empty leaves it to the scheduler.
        warm_s: before the first window, in seconds.
        window_s: what a window lasts at least.
        enough_s: after so long one window is enough, and one that is not finished is given up.
        limit_s: after so long it ends with what there is, no window perhaps, and without a tail.
        tail_s: after the last window.
        pause_s: how long the role sleeps each time, as one does that waits for another.
        pause_every: it sleeps after so many fragments of an actor, or versions of a learner.
    """

    step: Literal["run"] = "run"
    key: str
    cores: tuple[int, ...]
    threads: int
    warm_s: float
    window_s: float
    windows: int
    enough_s: float
    limit_s: float
    tail_s: float
    pause_s: float = 0.0
    pause_every: int = 1


class ActedWindow(Message):
    """An actor in one window.

    Attributes:
        fragments: that it filled.
        act_s: of them choosing actions.
        step_s: of them stepping environments.
    """

    wall_s: float
    fragments: int
    samples: int
    busy_s: float
    act_s: float
    step_s: float


class LearnedWindow(Message):
    """A buffer and a learner in one window.

    Nothing of it is 0.

    Attributes:
        store_s: seconds the buffer worked.
        update_s: seconds in ``Embryo.update``.
        draw_s: seconds in putting batches together, and in giving their samples new priorities.
        rest_s: seconds the learner worked otherwise: publication, counting.
    """

    wall_s: float
    fragments: int
    updates: int
    versions: int
    uses: int
    store_s: float
    update_s: float
    draw_s: float
    rest_s: float


class Acted(Message):
    """What an actor did."""

    kind: Literal["acted"] = "acted"
    windows: tuple[ActedWindow, ...]


class Learned(Message):
    """What a buffer and a learner did."""

    kind: Literal["learned"] = "learned"
    windows: tuple[LearnedWindow, ...]


class Average(Message):
    """Average arrays with the other probes of a group, over and over; answered by ``Averaged``.

    Attributes:
        store: path of the file through which they meet.
        values: float32 values of the array.
        rounds: how often, after a few that do not count.
        cores: logical CPUs to be pinned to; empty leaves it to the scheduler.
        timeout_s: how long to wait for one that does not come, or has died.
    """

    step: Literal["average"] = "average"
    rank: int
    size: int
    store: str
    values: int
    rounds: int
    cores: tuple[int, ...] = ()
    timeout_s: float = 10.0


class Averaged(Message):
    """Seconds of each round."""

    kind: Literal["averaged"] = "averaged"
    seconds: tuple[float, ...]


class Failed(Message):
    """It could not be done; the probe goes on."""

    kind: Literal["failed"] = "failed"
    cause: str


Step = Prepare | Run | Average
Answer = Prepared | Acted | Learned | Averaged | Failed
STEP: Final[TypeAdapter[Step]] = TypeAdapter(Annotated[Step, Field(discriminator="step")])
ANSWER: Final[TypeAdapter[Answer]] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])
