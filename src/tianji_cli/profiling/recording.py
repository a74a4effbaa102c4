"""Has an actor make a few fragments with the initial policy, which a learner is then fed with."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from tianji_cli.config.schema import JobConfig
from tianji_cli.data.fragment import Fragment
from tianji_cli.data.replay import PRIORITY
from tianji_cli.profiling.probe_roles import Recorded
from tianji_cli.profiling.sides import ActorSide
from tianji_cli.roles.loop import run_in_turns

HANDFUL: Final = 4
"""Fragments that are recorded, unless a rollout has more."""

MOST_BYTES: Final = 64 << 20
"""Of all recorded fragments; one is recorded however large it is."""

LIMIT_S: Final = 1.0
"""What has been recorded by then has to do."""


class Recorder:
    """Attends a loop until enough is recorded.

    Args:
        side: whose actor is recorded.
        fragments: how many are wanted.
    """

    def __init__(self, side: ActorSide, fragments: int) -> None:
        self.fragments: list[Recorded] = []
        side.sink.taken = self.fragments
        self._side = side
        self._wanted = fragments
        self._until = time.perf_counter() + LIMIT_S

    def attend(self) -> bool:
        """Go on while more is wanted and there is time for it, but until a vector step was made."""
        in_time = time.perf_counter() < self._until or self._side.stepping.calls == 0
        return in_time and len(self.fragments) < self._wanted


def record(side: ActorSide, config: JobConfig) -> list[Recorded]:
    """Record fragments; more than a second is spent on it only if a single vector step takes longer."""
    layout = side.assembly.layout
    per_rollout = 1 if config.learns_from_replay else config.fragments_per_rollout
    wanted = min(max(HANDFUL, per_rollout), max(1, MOST_BYTES // layout.nbytes))
    recorder = Recorder(side, wanted)
    run_in_turns([side.actor, side.sink], recorder, lambda _seconds: None)
    return recorder.fragments[:wanted] or [_completed(side)]


def _completed(side: ActorSide) -> Recorded:
    """Fill up the fragment that a slow environment has not finished by repeating its rows."""
    layout, rows = side.assembly.layout, side.stepping.calls
    unfinished = side.actor._fragment
    assert unfinished is not None
    recorded = np.zeros(layout.nbytes, np.uint8)
    fragment = Fragment(layout, recorded.data)
    fragment.header[...] = unfinished.header
    for name, array in fragment.fields.items():
        array[...] = unfinished.fields[name][np.arange(len(array)) % rows]
    mask = fragment.fields["mask"]
    if PRIORITY in fragment.fields:
        fragment.fields[PRIORITY][...] = mask
    fragment.header["samples"] = np.count_nonzero(mask)
    return recorded
