"""The beds as fixtures; a test that needs one is skipped, with the reason, where it cannot be made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from beds.namespaces import Wire
from beds.slurm import Slurm
from beds.unavailable import BedUnavailableError


@pytest.fixture(scope="session")
def slurm_of_session() -> Iterator[Slurm | BedUnavailableError]:
    """One Slurm for all tests, or why there is none."""
    with ExitStack() as stack:
        try:
            bed: Slurm | BedUnavailableError = stack.enter_context(Slurm())
        except BedUnavailableError as error:
            bed = error
        yield bed


@pytest.fixture
def slurm(slurm_of_session: Slurm | BedUnavailableError) -> Iterator[Slurm]:
    """A Slurm with two idle nodes; jobs that a test leaves behind are ended."""
    if isinstance(slurm_of_session, BedUnavailableError):
        pytest.skip(str(slurm_of_session))
    yield slurm_of_session
    slurm_of_session.cancel_all()


@pytest.fixture
def wire() -> Iterator[Wire]:
    """Two hosts with 1 Gbit/s between them; their byte counters begin at nothing."""
    with ExitStack() as stack:
        try:
            bed = stack.enter_context(Wire())
        except BedUnavailableError as error:
            pytest.skip(str(error))
        yield bed
