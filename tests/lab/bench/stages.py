"""Open trials: this process leads, and the real workers of a benchmark take part."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import pytest

from tianji_lab.bench import workers as bench_workers
from tianji_lab.bench.experiment import WAIT_S, Sent, Trial, TrialFailed, rest
from tianji_lab.bench.worker import Endpoint
from tianji_lab.bench.workers import BenchWorkers, Session
from tianji_transports.core import EngineOptions, Transport
from tianji_transports.endpoint import readable


def trial_of(experiment: str, engine: str, partners: int = 1, **changes: Any) -> Trial:
    """A trial on this host."""
    usual: dict[str, Any] = {
        "experiment": experiment,
        "job": f"trial-{secrets.token_hex(8)}",
        "backend": engine,
        "actors": partners,
        "messages": 1,
        "hosts": dict.fromkeys(range(partners + 1), "here"),
        "nbytes": 4096,
        "window": 4,
    }
    return Trial.model_validate({**usual, **changes})


@contextmanager
def opened(workers: BenchWorkers, trial: Trial, lead: str = "") -> Iterator[Session]:
    """Open a trial, and end whatever run is left of it.

    Args:
        workers: the first of them take part.
        trial: what it is.
        lead: engine of the leading process, if another one.
    """

    def endpoint(trial: Trial, rank: int, options: EngineOptions) -> Endpoint:
        backend = f"{lead}+{trial.engines[1]}" if lead else trial.backend
        return Endpoint(trial.model_copy(update={"backend": backend}), rank, options)

    members = dict(zip(trial.workers, islice(workers.members, len(trial.workers)), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_workers, "Endpoint", endpoint)
        with workers.open(trial, members) as session:
            try:
                yield session
            except BaseException:
                with suppress(TrialFailed):  # Partners may be waiting in the middle of a run.
                    session.enough()
                raise


def called_off(session: Session) -> Mapping[int, Sent]:
    """End the run that failed; what the partners say of it."""
    session.enough()
    endpoint = session._endpoint._end
    while (sent := session.sent()) is None:
        if isinstance(endpoint, Transport):  # Some move messages only while somebody waits at them.
            rest(endpoint, session.descriptors)
        else:
            readable(session.descriptors, WAIT_S)
    return sent
