"""One row of a result: the measurements, their conditions, and the spread of repeated runs.

All experiments fill the same record, so that one table, one CSV and one JSON serve all of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from tianji_lab.ranges import Range

KB: Final = 1024
"""Bytes in the KB of a message, as in the paper's 512 KB."""
MB: Final = 1e6
"""Bytes in the MB of a throughput."""

ExperimentName = Literal["comm", "latency", "bandwidth", "weights"]
Work = Literal["sleep", "busy"]
Store = Literal["copy", "inplace"]


@dataclass(frozen=True)
class Record:
    """Medians over the repeats of one setting. A figure that an experiment does not have is None.

    Attributes:
        backend: engine of the edges, or two engines, inside and between hosts (``shm+zmq``).
        msg_kb: size of a message in KB of 1024 bytes.
        actors: processes beside the one that measures: senders, the one that echoes, or readers.
        hosts: of all processes.
        sample_time_s: time of an actor for a sample.
        collection_s: from the start until the last message is stored (or the last round trip is over).
        collection_min_s: shortest run.
        collection_max_s: longest run.
        msgs_per_s: messages in ``collection_s``.
        send_s: mean time to push a message, without waits for credit (T_sd in Equation 1).
        receive_s: mean time to receive and store a message (T_rv).
        predicted_s: collection time by Equation 1, from terms measured in a run of their own.
        p50_us: latency from push to stored; half a round trip; time until the slowest reader has a value.
        p95_us: 95th percentile.
        p99_us: 99th percentile.
        cpu_s: CPU seconds of both sides together.
        receiver_cpu_s: of the receiver.
        senders_cpu_s: of all senders together.
        refused: loans refused for lack of credit.
        verified: every message arrived, in order and unaltered; there is no record otherwise.
        term_sample_s: T_sp of ``predicted_s``.
        term_send_s: T_sd of ``predicted_s``.
        term_receive_s: T_rv of ``predicted_s``; includes the engine's own threads where they are the limit.
        crossing_actors: fewest actors with which the buffer is the critical path, by Equation 1.
        raw_msgs_per_s: of a plain loop over the engine's library, with one sender that takes no time for
            samples.
        raw_ratio: ``msgs_per_s`` over ``raw_msgs_per_s``; None unless there is one actor that takes no time
            for samples.
    """

    experiment: ExperimentName
    backend: str
    msg_kb: float
    actors: int
    hosts: int
    sample_time_s: float
    work: Work
    store: Store
    messages: int
    window: int
    repeats: int
    collection_s: float
    collection_min_s: float
    collection_max_s: float
    msgs_per_s: float
    mb_per_s: float | None
    send_s: float | None
    receive_s: float | None
    predicted_s: float | None
    p50_us: float | None
    p95_us: float | None
    p99_us: float | None
    cpu_s: float
    receiver_cpu_s: float
    senders_cpu_s: float
    refused: int | None
    verified: bool
    term_sample_s: float | None = None
    term_send_s: float | None = None
    term_receive_s: float | None = None
    crossing_actors: int | None = None
    raw_msgs_per_s: float | None = None
    raw_ratio: float | None = None

    @property
    def collection(self) -> Range:
        """Median, shortest and longest run."""
        return Range(self.collection_s, self.collection_min_s, self.collection_max_s)

    def document(self) -> dict[str, Any]:
        """Build the row of the JSON file."""
        return asdict(self)
