"""The end of an error's sentence that says what was probably meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


def nearest(name: str, known: Iterable[str], show: Callable[[str], str] = repr, most: int = 1) -> str:
    """Ask for the nearest of what there is; empty if nothing is near.

    >>> nearest("clmbing", ["climbing", "penalty"])
    "; did you mean 'climbing'?"
    >>> nearest("zzz", ["climbing", "penalty"])
    ''
    >>> nearest("pitfal", ["pitfall", "pitfall2", "pong"], show=str.title, most=3)
    '; did you mean Pitfall or Pitfall2?'

    Args:
        name: what does not exist.
        known: what there is.
        show: writes one of these; in quotes by default.
        most: how many are named.
    """
    near = difflib.get_close_matches(name, list(known), n=most)
    return f"; did you mean {' or '.join(map(show, near))}?" if near else ""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """Ask for the nearest of what there is, or else list all of it.

    >>> nearest_or_all("zzz", ["climbing", "penalty"])
    '; they are climbing, penalty'
    """
    known = list(known)
    return nearest(name, known) or f"; they are {', '.join(known)}"
