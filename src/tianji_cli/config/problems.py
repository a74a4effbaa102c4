"""One thing that is wrong with a config, and the search for the name that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

LONGEST: Final = 200
"""Characters of a value in a message."""

_LONG: Final = re.compile(
    rf"""(?<!\w)(['"])(?:\\.|(?!\1)[^\\]){{{LONGEST - 1},}}\1(?!\w)|\S{{{LONGEST + 1},}}""", re.DOTALL
)

Path = tuple[str, ...]
"""Where a value stands in a config: section, key, and whatever lies below the key."""


@dataclass(frozen=True)
class Problem:
    """One line of a ``ConfigError``: ``where: key: what; remedy``.

    Attributes:
        where: the file (or ``--set``) that set the value.
        key: dotted path of the value; empty if the file as a whole is meant.
        what: what is wrong.
        remedy: what would be right; may be empty.
    """

    where: str
    key: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        what = f"{self.what}; {self.remedy}" if self.remedy else self.what
        key = self.key if len(self.key) <= LONGEST else f"{self.key[: LONGEST - 3]}..."
        # What a user's own module raises may have several lines.
        return " ".join(": ".join(part for part in (self.where, key, cut(what)) if part).split())


def cut(text: str) -> str:
    """Shorten the values in a message: a value stands in quotes, or has no blank in it."""
    return _LONG.sub(lambda value: f"{value[0][: LONGEST - 4]}...{value[1] or ''}", text)


def dotted(path: Iterable[str]) -> str:
    """Write a path the way ``--set`` takes it.

    >>> dotted(("distribution", "actor", "num"))
    'distribution.actor.num'
    """
    return ".".join(path)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Find the known name that a misspelt one was probably meant to be, whatever its case.

    >>> nearest("learning_rat", ["gamma", "learning_rate"])
    'learning_rate'
    >>> nearest("zzz", ["gamma"]) is None
    True
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, known: Sequence[str], kind: str) -> str:
    """Say which known name was probably meant, or else which there are.

    >>> did_you_mean("pppo", ["ppo", "dqn"], "agents")
    "did you mean 'ppo'?"
    >>> did_you_mean("zzz", ["ppo", "dqn"], "agents")
    'the agents are: dqn, ppo'
    """
    near = nearest(name, known)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"the {kind} are: {', '.join(sorted(known))}" if known else f"there are no {kind}"
