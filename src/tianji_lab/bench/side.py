"""One process's end of a trial: the engine's endpoint and the experiment using it, or a raw loop's end."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from tianji_lab.bench import bandwidth, comm, latency, weights
from tianji_lab.bench.experiment import Outcome, Told, Watch
from tianji_lab.bench.raw import loop
from tianji_lab.bench.raw.end import open_end
from tianji_lab.bench.trial import Run, Sent, Trial
from tianji_transports.composite import open_endpoint
from tianji_transports.core import EngineOptions

EXPERIMENTS: Final[Mapping[str, ModuleType]] = {
    "comm": comm,
    "latency": latency,
    "bandwidth": bandwidth,
    "weights": weights,
}


class Side:
    """What one process has of a trial, for as many runs as are wanted.

    Args:
        trial: what is measured.
        rank: this process's.
        options: how to reach other hosts.

    Attributes:
        address: where the others reach it.

    Raises:
        TransportError: the engine is not to be had, or does not open.
    """

    def __init__(self, trial: Trial, rank: int, options: EngineOptions) -> None:
        self._trial, self._rank = trial, rank
        self._experiment: Any = loop if trial.raw else EXPERIMENTS[trial.experiment]
        self._end: Any
        if trial.raw:
            self._end = open_end(trial.local, trial, rank, options)
        else:
            wiring = self._experiment.wiring(trial)
            self._end = open_endpoint(trial.local, trial.remote, trial.hosts, wiring, rank, options=options)
        self.address: str = self._end.address

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Learn where the others are, by rank."""
        if self._trial.raw:
            (peer,) = addresses.values()
            self._end.connect(peer)
        else:
            self._end.connect(addresses)

    def lead(self, run: Run, watch: Watch) -> Outcome:
        """Do the work of rank 0."""
        outcome: Outcome = self._experiment.lead(self._end, self._trial, run, watch)
        return outcome

    def follow(self, run: Run, told: Told) -> Sent:
        """Do the work of any other rank."""
        sent: Sent = self._experiment.follow(self._end, self._trial, run, self._rank, told)
        return sent

    def close(self) -> None:
        """Free everything."""
        self._end.close()
