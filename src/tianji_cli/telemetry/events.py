"""TensorBoard event files, written in this thread and without TensorFlow or torch."""

from __future__ import annotations

import socket
import statistics
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tianji_cli.telemetry.appending import AppendOnlyFile
from tianji_cli.telemetry.snapshot import Snapshot


class EventFile:
    """Owns one event file; a resumed run adds a second one beside it, as TensorBoard expects.

    Args:
        directory: that TensorBoard is pointed at.
        resumed_at: step from which TensorBoard is to forget what earlier files say.

    Raises:
        OSError: the file cannot be made or written.
    """

    def __init__(self, directory: Path, resumed_at: int | None = None) -> None:
        # Importing protobuf and the CRC costs a tenth of a second, which only a run that starts should pay.
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]  # noqa: PLC0415
        from tensorboard.compat.tensorflow_stub import pywrap_tensorflow  # type: ignore[import-untyped]  # noqa: PLC0415

        self._event, self._summary, self._crc = (
            event_pb2.Event,
            summary_pb2.Summary,
            pywrap_tensorflow.masked_crc32c,
        )
        now = time.time()
        # TensorBoard reads files in the order of their names and takes those with "tfevents" in them.
        self._file = AppendOnlyFile(directory / f"events.out.tfevents.{now:017.6f}.{socket.gethostname()}")
        self._write(self._event(wall_time=now, file_version="brain.Event:2"))
        if resumed_at is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(self._event(wall_time=now, step=resumed_at, session_log=start))

    def append(self, snapshot: Snapshot) -> None:
        """Append the scalars of one snapshot, over environment steps.

        Raises:
            OSError: they do not fit.
        """
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars(snapshot)]
        self._write(
            self._event(wall_time=time.time(), step=snapshot.env_steps, summary=self._summary(value=values))
        )

    def close(self) -> None:
        """Close the file. Harmless when repeated."""
        self._file.close()

    def _write(self, event: Any) -> None:
        """Frame one event as a TFRecord: length, its CRC, data, its CRC."""
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        self._file.append(
            length + struct.pack("<I", self._crc(length)) + data + struct.pack("<I", self._crc(data))
        )


def scalars(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """List what is known in a snapshot as (TensorBoard tag, value)."""
    yield from _of_episodes(snapshot)
    yield "rate/produced_per_s", snapshot.produced_per_s
    yield "rate/received_per_s", snapshot.received_per_s
    yield "rate/consumed_per_s", snapshot.consumed_per_s
    if snapshot.replay_ratio_actual is not None:
        yield "replay_ratio/actual", snapshot.replay_ratio_actual
    yield "replay_ratio/target", snapshot.replay_ratio_target
    if snapshot.lag is not None:
        for name, lag in vars(snapshot.lag).items():
            yield f"policy_lag/{name}", lag
    for tag, spread in (("sample_age", snapshot.age), ("sample_uses", snapshot.uses)):
        if spread is not None:
            for name, value in vars(spread).items():
                yield f"{tag}/{name}", value
    if snapshot.replay is not None:
        yield "replay/size", snapshot.replay.size
        yield "replay/stale_priorities", snapshot.stale_priorities
    if snapshot.steps_given_up is not None:
        yield "replay/steps_given_up", snapshot.steps_given_up
    for name, loss in snapshot.losses.items():
        yield f"loss/{name}", loss
    yield from _of_groups(snapshot)
    yield "learner/updates", snapshot.updates
    yield "learner/version", snapshot.version
    for kind in dict.fromkeys(role.role for role in snapshot.roles):
        busy = [role.busy for role in snapshot.roles if role.role == kind and role.busy is not None]
        if busy:
            yield f"busy/{kind}", statistics.median(busy)


def _of_episodes(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    if snapshot.mean_100 is not None:
        yield "return/mean_100", snapshot.mean_100
    if snapshot.win_rate is not None:
        yield "episodes/win_rate", snapshot.win_rate
    yield "return/episodes", snapshot.episodes


def _of_groups(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    for group in snapshot.by_group:
        if group.mean_100 is not None:
            yield f"return/mean_100_of_group_{group.group}", group.mean_100
    if snapshot.averaging is not None:
        yield "averaging/rounds", snapshot.averaging.rounds
        yield "averaging/missed", sum(snapshot.averaging.missed)
