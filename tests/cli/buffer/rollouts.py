"""Names of the fragments in a rollout."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tianji_cli.roles.buffer.rollout import StoredFragment

OpenLine = Callable[..., Any]
engines = pytest.mark.parametrize("lends", [True, False], ids=["lending", "copying"])


def names(fragments: Sequence[StoredFragment]) -> list[tuple[int, int, int]]:
    """(actor, sequence, version) of each fragment."""
    return [(one.source[0], int(one.fragment.header["sequence"]), one.version) for one in fragments]
