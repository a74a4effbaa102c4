"""Checkpoints, read without torch: their places, counters, sums, ``state.json``.

``SHA256SUMS`` has the sums of a checkpoint's files at the time of writing, in the format of ``sha256sum -c``.
SHA-256 runs at about 1 GB/s, which a checkpoint's tensors are worth; the arrays of a replay have a CRC
each, three times as fast, in a document that is summed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from tianji_cli.config.schema import Stop
from tianji_cli.errors import TianjiError, UsageError
from tianji_cli.files.directories import copy_files, replace_link
from tianji_cli.files.regular import MOST_DOCUMENT_BYTES, open_regular, read_regular, read_toml
from tianji_cli.files.rundir import RunDirectory

BEST: Final = "best"
LAST: Final = "last"
MOST_SESSIONS: Final = 10_000
"""More sessions than any run has."""
EVALUATED: Final = "evaluated"
"""Directory of the policy with the best evaluation during training, in runs that evaluate."""


def checkpoints_of(checkpoints: Path, group: int) -> Path:
    """Return the directory of a group's checkpoints."""
    return checkpoints if group == 0 else checkpoints / f"group-{group}"


def point_best_at(checkpoints: Path, group: int) -> None:
    """Point ``best`` at the best policy of another group, or back at that of group 0.

    It leads to the group's own link, which its writer replaces in one step, so ``best`` is never broken.

    Args:
        group: group with the best policy; ignored if it has no checkpoint here.

    Raises:
        OSError: the link cannot be written.
    """
    if group:
        place = checkpoints_of(checkpoints, group) / BEST
        if (place / "model.safetensors").is_file():
            replace_link(checkpoints / BEST, place.relative_to(checkpoints))
    elif (own := own_best(checkpoints)) != checkpoints / BEST:
        replace_link(checkpoints / BEST, own.name)


def own_best(checkpoints: Path) -> Path:
    """Return the path of a group's own best policy, also while ``best`` leads to another group's."""
    link = checkpoints / BEST
    if link.is_symlink() and Path(os.readlink(link)).parts[0].startswith("group-"):
        return max(checkpoints.glob(f"{BEST}-*"), default=link)
    return link


@dataclass
class Progress:
    """Counters of a learner, over all sessions of a run.

    Attributes:
        env_steps: samples received from the actors.
        consumed: sample uses in updates.
        updates: gradient updates.
        version: version of the newest published policy.
        train_s: seconds since the first environment step, less the pauses between sessions.
        sessions: number of times the run was resumed, whether or not these sessions saved anything.
    """

    env_steps: int = 0
    consumed: int = 0
    updates: int = 0
    version: int = 0
    train_s: float = 0.0
    sessions: int = 0

    @classmethod
    def checked(cls, saved: Any) -> Self:
        """Validate saved counters.

        Raises:
            ValueError: a counter is unknown, negative or no number.
            TypeError: the counters are no table.
        """
        if not isinstance(saved, Mapping):
            raise TypeError("the counters are no table")
        wanted = {field.name: field.type for field in fields(cls)}
        if unknown := saved.keys() - wanted.keys():
            raise ValueError(f"there is no counter {min(unknown)!r}")
        for name, value in saved.items():
            whole = isinstance(value, int) and not isinstance(value, bool)
            number = whole or (wanted[name] == "float" and isinstance(value, float) and math.isfinite(value))
            if not number or value < 0:
                raise ValueError(f"{name} is {value!r}")
        return cls(**saved)


SUMS: Final = "SHA256SUMS"
_LINE: Final = re.compile(r"([0-9a-f]{64})  ([^/\n]+)")


class CheckpointError(TianjiError):
    """A checkpoint cannot be read or written; the message names the file."""


def seal(directory: Path, names: Sequence[str]) -> None:
    """Write the sums of files in a directory.

    Raises:
        OSError: a file cannot be read, or the disk does not take it.
    """
    lines = []
    for name in names:
        with (directory / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    (directory / SUMS).write_text("".join(lines), encoding="utf-8")


def read_sealed(directory: Path, name: str) -> bytes:
    """Read a file and check its sum, even while a writer replaces its directory.

    Raises:
        CheckpointError: the file cannot be read, or has changed since; the message names an older checkpoint
            that is whole.
    """
    while True:
        before = _identity(directory)
        try:
            return _read_sealed(directory, name)
        except (CheckpointError, OSError):
            if _identity(directory) == before:
                raise
            # The writer has replaced the directory meanwhile, and the file belonged to the former one.


def _identity(directory: Path) -> tuple[int, int, int] | None:
    """Return the identity of the directory that a path or a link leads to; None if there is none."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _read_sealed(directory: Path, name: str) -> bytes:
    try:
        content, expected = _read(directory / name), _sums(directory).get(name)
    except FileNotFoundError as cause:
        if Path(cause.filename) == directory / SUMS:
            raise CheckpointError(_unsealed(directory)) from cause
        raise CheckpointError(f"cannot read {directory / name}: {cause.strerror}") from cause
    except OSError as cause:
        raise CheckpointError(f"cannot read {directory / name}: {cause.strerror}") from cause
    if hashlib.sha256(content).hexdigest() != expected:
        what = f"its SHA-256 is not the one in {SUMS}" if expected else f"{SUMS} does not name it"
        raise CheckpointError(f"{directory / name} is damaged: {what}\n{_way_out(directory)}")
    return content


def is_whole(directory: Path) -> bool:
    """Whether every file of a sealed directory is unchanged."""
    try:
        sums = _sums(directory).items()
        return bool(sums) and all(
            hashlib.sha256(_read(directory / name)).hexdigest() == expected for name, expected in sums
        )
    except OSError:
        return False


def _read(path: Path) -> bytes:
    with open(open_regular(path), "rb") as file:
        return file.read()


def _sums(directory: Path) -> dict[str, str]:
    text = read_regular(directory / SUMS, MOST_DOCUMENT_BYTES).decode("utf-8", "replace")
    return {found[2]: found[1] for line in text.splitlines() if (found := _LINE.fullmatch(line))}


def _unsealed(directory: Path) -> str:
    place = shlex.quote(str(directory))
    names = " ".join(sorted(shlex.quote(path.name) for path in directory.iterdir()))
    return (
        f"{directory} has no {SUMS}: it is not whole, or an earlier version of tianji has written it\n"
        f"if you know it to be good: (cd {place} && sha256sum {names} > {SUMS})"
    )


def _way_out(directory: Path) -> str:
    """Describe the newest whole checkpoint beside one that is damaged."""
    damaged = directory.resolve()
    beside = sorted((path for path in directory.parent.iterdir() if path.name.isdecimal()), reverse=True)
    for path in beside:
        if path != damaged and path.resolve() != damaged and is_whole(path):
            in_its_place = (
                f"ln -sfn {path.name} {shlex.quote(str(directory))}" if directory.is_symlink() else ""
            )
            return f"{path.name} beside it is whole" + (in_its_place and f", to go on with: {in_its_place}")
    return "no other checkpoint beside it is whole"


SCHEMA: Final = 1
MODEL: Final = "model.safetensors"
TRAINING: Final = "training.safetensors"
STATE: Final = "state.json"


def load_state(directory: Path) -> dict[str, Any]:
    """Read the ``state.json`` of a checkpoint to be resumed.

    Raises:
        CheckpointError: it is missing, damaged, of another schema, or has impossible values.
    """
    document, path = load_document(directory), directory / STATE
    try:
        Progress.checked(document["progress"])
        _check_episodes(document["episodes"])
        if not isinstance(document["embryo"], dict):
            raise TypeError("embryo is no table")
        _check_member(document.get("member", {}))
    except (ValueError, TypeError, KeyError) as cause:
        raise CheckpointError(f"{path} has what cannot be: {cause}") from cause
    return document


def load_document(directory: Path) -> dict[str, Any]:
    """Read the ``state.json`` of any checkpoint, the best policy's included, and check its schema.

    Raises:
        CheckpointError: it is missing, damaged, or of another schema.
    """
    path = directory / STATE
    try:
        document = json.loads(read_sealed(directory, STATE))
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{path} is no JSON: {cause}") from cause
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise CheckpointError(f"{path} is not of schema {SCHEMA}, which this version reads")
    return document


def _check_episodes(episodes: Any) -> None:
    best = episodes["best_mean"]
    if best is not None and not math.isfinite(best):
        raise ValueError(f"best_mean is {best}")
    if not 0 <= (episodes.get("best_win_rate") or 0.0) <= 1:
        raise ValueError(f"best_win_rate is {episodes['best_win_rate']}")
    for threshold, seconds in episodes["time_to"]:
        if not math.isfinite(threshold) or not 0 <= (seconds or 0.0) < math.inf:
            raise ValueError(f"time_to says {seconds} for {threshold}")


def _check_member(member: Any) -> None:
    if not isinstance(member, dict) or not isinstance(member.get("hyperparameters", {}), dict):
        raise TypeError("member is no table with hyperparameters")


def saved_progress(checkpoints: Path, groups: int) -> tuple[Progress, ...]:
    """Read the saved counters that a session continues from, by group. Needs no torch.

    A group that has saved nothing, or that was left out of a session after its last checkpoint, begins with
    the policy of group 0, and counts from 0.

    Raises:
        UsageError: there is no checkpoint that can be read.
    """
    found = [_saved(checkpoints)]
    for group in range(1, groups):
        place = checkpoints_of(checkpoints, group)
        of_group = _saved(place) if (place / LAST).exists() else None
        # A kill between the first checkpoints of two groups leaves checkpoints of different sessions.
        if of_group is None or group >= _fewest_groups(checkpoints, of_group.sessions, found[0].sessions):
            of_group = Progress(sessions=found[0].sessions)
        found.append(of_group)
    return tuple(found)


def _fewest_groups(checkpoints: Path, since: int, until: int) -> float:
    """Return the smallest number of groups of the sessions after ``since``, up to ``until``."""
    run, fewest = RunDirectory(checkpoints.parent), math.inf
    for session in range(since + 2, until + 2) if until - since < MOST_SESSIONS else ():
        try:
            config = read_toml(run.config_of(session))
            fewest = min(fewest, config["distribution"].get("groups", 1))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # An unreadable config does not show that a group was left out.
    return fewest


def saved_members(checkpoints: Path, groups: int) -> list[dict[str, Any] | None]:
    """Read the last hyperparameters of each member of a population; None for a member that has none.

    Raises:
        CheckpointError: a checkpoint is damaged.
    """
    places = [checkpoints_of(checkpoints, group) / LAST for group in range(groups)]
    members = [load_state(place).get("member", {}) if place.exists() else {} for place in places]
    return [member.get("hyperparameters") for member in members]


def best_evaluation(checkpoints: Path) -> float | None:
    """Read the mean return of the best evaluation during training; None if there was none.

    Raises:
        CheckpointError: its checkpoint is damaged.
    """
    place = checkpoints / EVALUATED / BEST
    if not place.exists():
        return None
    evaluation = load_document(place).get("evaluation")  # Before the first, the link leads to ``last``.
    if evaluation is None:
        return None
    mean = evaluation.get("mean") if isinstance(evaluation, dict) else None
    if not isinstance(mean, float) or not math.isfinite(mean):
        raise CheckpointError(f"{place / STATE} has what cannot be: evaluation is {evaluation!r}")
    return mean


def link_best_to_best_evaluated(checkpoints: Path) -> None:
    """Link ``best`` to the best evaluated policy; before there is one, that is the newest checkpoint.

    Call this before anything is trained: afterwards another process owns the links inside ``evaluated``.
    """
    evaluated = checkpoints / EVALUATED
    evaluated.mkdir(parents=True, exist_ok=True)
    if not (evaluated / BEST).is_symlink():
        (evaluated / BEST).symlink_to(Path("..") / LAST)
    replace_link(checkpoints / BEST, Path(EVALUATED) / BEST)


def keep_best(checkpoints: Path, session: int) -> str:
    """Keep the best policy of the sessions up to ``session`` under a name of its own; nothing else changes.

    Returns:
        Name of the checkpoint that keeps it.

    Raises:
        OSError: it cannot be copied.
    """
    kept, best = checkpoints / f"session-{session}", checkpoints / BEST
    temporary = checkpoints / f".{kept.name}.{os.getpid()}"
    if best.is_dir() and not kept.exists():
        try:
            copy_files(best, temporary)
            temporary.rename(kept)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return kept.name


def begin_own_best(checkpoints: Path) -> None:
    """Forget the best evaluated policy, so that a new one can be found.

    Call this when everything that training needs exists, before anything is trained or evaluated.

    Raises:
        OSError: a link cannot be written.
    """
    temporary = checkpoints / f".{BEST}.{os.getpid()}"
    if (checkpoints / EVALUATED / BEST).is_symlink():
        # Not made inside ``evaluated``: an examiner that is still being built cleans up there.
        temporary.symlink_to(Path("..") / LAST)
        temporary.replace(checkpoints / EVALUATED / BEST)


def goals_reached(checkpoints: Path, stop: Stop, groups: int, *, own_best: bool = False) -> dict[str, str]:
    """Return the stop rules that the saved progress of a run already meets, over all its sessions.

    ``wall_s`` is none of them: it limits each session anew.

    Args:
        own_best: the next session begins a new best policy, so that rules on returns do not hold yet.

    Returns:
        The present value, in words, by the name of the rule.

    Raises:
        UsageError: there is no checkpoint that can be read.
    """
    progress = saved_progress(checkpoints, groups)
    places = [checkpoints_of(checkpoints, group) for group in range(groups)]
    episodes = [load_state(place / LAST)["episodes"] for place in places if (place / LAST).exists()]
    mean, win_rate = (
        max((float(of_group[key]) for of_group in episodes if of_group.get(key) is not None), default=None)
        for key in ("best_mean", "best_win_rate")
    )
    values: dict[str, float | None] = {"env_steps": sum(of_group.env_steps for of_group in progress)}
    if not own_best:
        values |= {"mean_return": mean, "win_rate": win_rate, "evaluation": best_evaluation(checkpoints)}
    return stop.reached(values, saved=True)


def _saved(place: Path) -> Progress:
    return Progress.checked(_state(place)["progress"])


def _state(place: Path) -> dict[str, Any]:
    """Read the state of the last checkpoint, and check the sums of that checkpoint and of the best policy."""
    try:
        for name in (MODEL, TRAINING):
            read_sealed(place / LAST, name)
        state = load_state(place / LAST)
        if state["episodes"]["best_mean"] is not None and os.path.lexists(place / BEST):
            read_sealed(place / BEST, MODEL)
    except CheckpointError as cause:
        raise UsageError(f"{place.parent} has no readable checkpoint to go on from: {cause}") from cause
    return state
