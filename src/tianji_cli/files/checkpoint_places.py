"""Where the groups of a job keep their checkpoints: the first in ``checkpoints/`` itself, others below it.

Needs no torch: the root asks, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

BEST: Final = "best"
LAST: Final = "last"


def checkpoints_of(checkpoints: Path, group: int) -> Path:
    """Find the directory in which a group keeps its checkpoints.

    Args:
        checkpoints: ``checkpoints/`` of the run, which is group 0's.
        group: whose.
    """
    return checkpoints if group == 0 else checkpoints / f"group-{group}"


def point_best_at(checkpoints: Path, group: int) -> None:
    """Let ``best`` lead to the best policy of another group, or again to that of group 0.

    It leads to the group's own link, which its writer replaces in one step: it never leads nowhere.

    Args:
        checkpoints: ``checkpoints/`` of the run.
        group: whose policy is the best; one that has no checkpoint here is passed over.

    Raises:
        OSError: the link cannot be written.
    """
    if group:
        place = checkpoints_of(checkpoints, group) / BEST
        if (place / "model.safetensors").is_file():
            _lead(checkpoints, place.relative_to(checkpoints))
    elif _is_lent(checkpoints):
        own = sorted(checkpoints.glob(f"{BEST}-*"))
        if own:
            _lead(checkpoints, Path(own[-1].name))


def _is_lent(checkpoints: Path) -> bool:
    link = checkpoints / BEST
    return link.is_symlink() and len(Path(os.readlink(link)).parts) > 1


def _lead(checkpoints: Path, to: Path) -> None:
    temporary = checkpoints / f".{BEST}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(to, target_is_directory=True)
    temporary.replace(checkpoints / BEST)
