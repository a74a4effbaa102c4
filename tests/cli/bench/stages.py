"""Open trials: this process leads, and the partners of a real ensemble take part."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import pytest

from tianji_lab.bench import ensemble as ensembles
from tianji_lab.bench.ensemble import Ensemble, Stage
from tianji_lab.bench.experiment import WAIT_S, Sent, Trial, TrialFailed, rest
from tianji_lab.bench.partner import Side
from tianji_transports.core import EngineOptions, Transport
from tianji_transports.waiting import readable


def trial_of(experiment: str, engine: str, partners: int = 1, **changes: Any) -> Trial:
    """A trial on this host."""
    usual: dict[str, Any] = {
        "experiment": experiment,
        "job": f"trial-{secrets.token_hex(8)}",
        "local": engine,
        "remote": engine,
        "hosts": dict.fromkeys(range(partners + 1), "here"),
        "nbytes": 4096,
        "window": 4,
    }
    return Trial.model_validate({**usual, **changes})


@contextmanager
def opened(ensemble: Ensemble, trial: Trial, lead: str = "") -> Iterator[Stage]:
    """Open a trial, and end whatever run is left of it.

    Args:
        ensemble: whose first members are the partners.
        trial: what it is.
        lead: engine of the leading process, if another one.
    """

    def side(trial: Trial, rank: int, options: EngineOptions) -> Side:
        return Side(trial.model_copy(update={"local": lead or trial.local}), rank, options)

    members = dict(zip(trial.partners, islice(ensemble.members, len(trial.partners)), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ensembles, "Side", side)
        with ensemble.open(trial, members) as stage:
            try:
                yield stage
            except BaseException:
                with suppress(TrialFailed):  # Partners may be waiting in the middle of a run.
                    stage.enough()
                raise


def called_off(stage: Stage) -> Mapping[int, Sent]:
    """End the run that failed; what the partners say of it."""
    stage.enough()
    endpoint = stage._side._end
    while (sent := stage.sent()) is None:
        if isinstance(endpoint, Transport):  # Some move messages only while somebody waits at them.
            rest(endpoint, stage.descriptors)
        else:
            readable(stage.descriptors, WAIT_S)
    return sent
