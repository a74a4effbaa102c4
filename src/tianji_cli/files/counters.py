"""Counters of an actor's production, in memory that survives its death.

Each actor writes its counts into a page of a file in the run directory that it shares with the
root. The root needs no message to know them, and a SIGKILL cannot take them away.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.files.regular import open_regular

RING: Final = 8
"""Places between which the counts of a page rotate. A reader that copies a page while its actor writes reads
places that are not written again before several more fragments are full.
"""

PAGE: Final = np.dtype(
    [
        ("incarnation", "<u8"),
        ("first_step_ns", "<i8"),
        ("pushed", "<i8"),
        ("abandoned", "<i8"),
        ("samples", "<i8", (RING,)),
        ("before", "<i8", (RING,)),
    ]
)
"""``pushed`` counts fragments, so it is the number of the one being filled. ``samples[pushed % RING]`` are
the samples in that fragment, ``before[pushed % RING]`` those of all earlier ones. Every count changes by a
single store of eight bytes, so that a page is consistent wherever its actor was killed.
"""


@dataclass(frozen=True)
class Production:
    """Copy of a page: the production of one incarnation of an actor.

    Attributes:
        produced: all samples (environment steps that are experience).
        unfinished: samples among them in the fragment being filled.
        abandoned: the actor stopped in order and gave the unfinished fragment up.
        pushed: fragments pushed.
    """

    actor: int
    incarnation: int
    first_step_ns: int
    produced: int
    unfinished: int
    abandoned: bool
    pushed: int

    @property
    def finished(self) -> int:
        """Samples in all pushed fragments."""
        return self.produced - self.unfinished


class ProductionFile:
    """Owns the pages of all actors, mapped by the root and, one each, by the actors.

    Args:
        path: the file, in the directory of the run or of the host; None for memory of this process alone.
    """

    def __init__(self, path: Path | None, actors: int | None = None) -> None:
        self.path = path
        self._memory = self._private(actors) if path is None else self._shared(path, actors)
        self.pages: npt.NDArray[np.void] = np.frombuffer(self._memory, PAGE)

    @staticmethod
    def _private(actors: int | None) -> mmap.mmap:
        assert actors is not None, "memory of one process is made, never found"
        return mmap.mmap(-1, actors * PAGE.itemsize)

    @staticmethod
    def _shared(path: Path, actors: int | None) -> mmap.mmap:
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if actors is not None else 0)
        descriptor = open_regular(path, flags, 0o600)
        try:
            if actors is not None:
                # Reserve the space now: a full disk is an error here, and not a SIGBUS in an actor later.
                os.posix_fallocate(descriptor, 0, actors * PAGE.itemsize)
            return mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)

    def begin(self, actor: int, incarnation: int) -> None:
        """Clear a page for a new incarnation of its actor."""
        self.pages[actor] = np.zeros((), PAGE)
        self.pages[actor]["incarnation"] = incarnation

    def read(self, actor: int) -> Production:
        """Copy a page."""
        page = self.pages[actor].copy()
        pushed = int(page["pushed"])
        unfinished = int(page["samples"][pushed % RING])
        return Production(
            actor=actor,
            incarnation=int(page["incarnation"]),
            first_step_ns=int(page["first_step_ns"]),
            produced=int(page["before"][pushed % RING]) + unfinished,
            unfinished=unfinished,
            abandoned=bool(page["abandoned"]),
            pushed=pushed,
        )

    @property
    def produced(self) -> int:
        """Samples that all actors have produced in their present incarnations."""
        pages = self.pages.copy()
        filling = np.arange(len(pages)), pages["pushed"] % RING
        return int((pages["before"][filling] + pages["samples"][filling]).sum())

    @property
    def first_step_ns(self) -> int | None:
        """Start of the first step of all, by ``time.monotonic_ns``; None before it."""
        began = self.pages["first_step_ns"]
        began = began[began > 0]
        return int(began.min()) if len(began) else None

    def remove(self) -> None:
        """Delete the file; the mapping lives on until its last view is gone."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class ProductionPage:
    """One actor's own page; the actor is its only writer."""

    def __init__(self, file: ProductionFile, actor: int) -> None:
        page = file.pages[actor : actor + 1]
        self._first_step_ns = page["first_step_ns"]
        self._abandoned = page["abandoned"]
        self._pushed = page["pushed"]
        self._samples = page["samples"][0]
        self._before = page["before"][0]
        self._unfinished = self._samples[0:1]

    def begin(self, now_ns: int) -> None:
        """Record the start of the first environment step, once."""
        if self._first_step_ns[0] == 0:
            self._first_step_ns[0] = now_ns

    def count(self, samples: int) -> None:
        """Count the samples of one vector step."""
        self._unfinished[0] += samples

    def push(self) -> None:
        """Count the fragment being filled as pushed. Call this before the transport's push.

        A kill between the two then leaves a fragment that was pushed and never arrived, which counts as lost;
        in the other order it would count twice.
        """
        sequence = int(self._pushed[0])
        place, following = sequence % RING, (sequence + 1) % RING
        self._samples[following] = 0
        self._before[following] = self._before[place] + self._samples[place]
        self._unfinished = self._samples[following : following + 1]
        self._pushed[0] = sequence + 1

    def abandon(self) -> None:
        """Give up the unfinished fragment: its samples are dropped, not lost."""
        self._abandoned[0] = 1
