"""Counters of samples that an actor makes or a user role passes on, in memory that survives the process.

Each actor writes its counts into a page of a file in the run directory that it shares with the root, and each
user role on the path of fragments into one for each actor before it. The root needs no message to know them,
and a SIGKILL cannot take them away.
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
"""Places between which the counts of a page rotate. A reader that copies a page while its writer goes on
reads places that are not written again before several more fragments are full.
"""

COUNTS: Final = ("unfinished", "finished", "dropped", "lost", "pushed", "recent")
"""Counts of a page in their order; the first four of them together are all samples."""

PAGE: Final = np.dtype(
    [
        ("incarnation", "<u8"),
        ("first_step_ns", "<i8"),
        ("turn", "<i8"),
        ("counts", "<i8", (RING, len(COUNTS))),
    ]
)
"""``counts[turn % RING]`` are the counts of now: they are complete before ``turn`` leads to them. Every count
changes by a single store of eight bytes, so that a page is consistent wherever its process was killed.
"""


@dataclass(frozen=True)
class Production:
    """Copy of a page: what one incarnation of an actor has made, or a role has done with its samples.

    Attributes:
        number: of the page; an actor's page has the actor's number.
        incarnation: of the actor; the newest from which a role has claimed.
        unfinished: samples in the fragment that an actor fills, or that a role has in hand.
        finished: samples in all pushed fragments.
        dropped: samples that were given up: those of an actor's last fragment, which it stopped filling, or
            those that a role left out on purpose, of all incarnations of the actor.
        lost: samples that a role had in hand when it was killed, or when it claimed the next fragment.
        pushed: fragments pushed.
        recent: those dropped samples of this incarnation after which no others were pushed.
    """

    number: int
    incarnation: int
    first_step_ns: int
    unfinished: int
    finished: int
    dropped: int
    lost: int
    pushed: int
    recent: int

    @property
    def produced(self) -> int:
        """All samples (environment steps that are experience) that were made, or claimed."""
        return self.unfinished + self.finished + self.dropped + self.lost


class ProductionFile:
    """Owns the pages of all processes, mapped by the root and by the processes that write them.

    Args:
        path: the file, in the directory of the run or of the host; None for memory of this process alone.
        pages: number of pages of a new file, those of the actors first; None opens one that is there.
    """

    def __init__(self, path: Path | None, pages: int | None = None) -> None:
        self.path = path
        self._memory = self._private(pages) if path is None else self._shared(path, pages)
        self.pages: npt.NDArray[np.void] = np.frombuffer(self._memory, PAGE)

    @staticmethod
    def _private(pages: int | None) -> mmap.mmap:
        assert pages is not None, "memory of one process is made, never found"
        return mmap.mmap(-1, pages * PAGE.itemsize)

    @staticmethod
    def _shared(path: Path, pages: int | None) -> mmap.mmap:
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if pages is not None else 0)
        descriptor = open_regular(path, flags, 0o600)
        try:
            if pages is not None:
                # Reserve the space now: a full disk is an error here, and not a SIGBUS in an actor later.
                os.posix_fallocate(descriptor, 0, pages * PAGE.itemsize)
            return mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)

    def begin(self, actor: int, incarnation: int) -> None:
        """Clear a page for a new incarnation of its actor."""
        self.pages[actor] = np.zeros((), PAGE)
        self.pages[actor]["incarnation"] = incarnation

    def read(self, number: int) -> Production:
        """Copy a page."""
        page = self.pages[number].copy()
        counts = page["counts"][page["turn"] % RING].tolist()
        return Production(number, int(page["incarnation"]), int(page["first_step_ns"]), *counts)

    def produced(self, actors: int) -> int:
        """Add up the samples that so many actors have produced in their present incarnations."""
        pages = self.pages[:actors].copy()
        return int(pages["counts"][np.arange(actors), pages["turn"] % RING, :4].sum())

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
    """One process's own page: of an actor, or of what a role does with an actor's samples."""

    def __init__(self, file: ProductionFile, number: int) -> None:
        page = file.pages[number : number + 1]
        self._incarnation = page["incarnation"]
        self._first_step_ns = page["first_step_ns"]
        self._turn = page["turn"]
        self._counts = page["counts"][0]
        self._now = self._counts[int(self._turn[0]) % RING]

    def begin(self, now_ns: int) -> None:
        """Record the start of the first environment step, once."""
        if self._first_step_ns[0] == 0:
            self._first_step_ns[0] = now_ns

    def count(self, samples: int) -> None:
        """Count the samples of one vector step."""
        self._now[0] += samples

    def claim(self, incarnation: int, samples: int) -> None:
        """Count the samples of a fragment that has come into the role's hands."""
        held, finished, dropped, lost, pushed, recent = self._now.tolist()
        recent = recent if incarnation == self._incarnation[0] else 0
        self._turn_to((held + samples, finished, dropped, lost, pushed, recent))
        self._incarnation[0] = incarnation

    def push(self, samples: int | None = None) -> None:
        """Count the fragment being filled, or one in hand with its samples, as pushed.

        Call this before the transport's push: a kill between the two then leaves a fragment that was pushed
        and never arrived, which counts as lost; in the other order it would count twice.
        """
        held, finished, dropped, lost, pushed, _ = self._now.tolist()
        sent = held if samples is None else samples
        self._turn_to((held - sent, finished + sent, dropped, lost, pushed + 1, 0))

    def drop(self, samples: int | None = None) -> None:
        """Give up the fragment being filled, or one in hand: its samples are dropped, not lost."""
        held, finished, dropped, lost, pushed, recent = self._now.tolist()
        gone = held if samples is None else samples
        self._turn_to((held - gone, finished, dropped + gone, lost, pushed, recent + gone))

    def lose(self, samples: int | None = None) -> None:
        """Count samples in hand as lost, or all of them: of a process before, or not sent on."""
        held, finished, dropped, lost, pushed, recent = self._now.tolist()
        gone = held if samples is None else samples
        self._turn_to((held - gone, finished, dropped, lost + gone, pushed, recent))

    @property
    def finished(self) -> int:
        """Samples in all pushed fragments."""
        return int(self._now[1])

    @property
    def dropped(self) -> int:
        """Samples that were given up."""
        return int(self._now[2])

    def _turn_to(self, counts: tuple[int, ...]) -> None:
        following = int(self._turn[0]) + 1
        self._now = self._counts[following % RING]
        self._now[:] = counts
        self._turn[0] = following
