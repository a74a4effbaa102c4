"""A replay in a checkpoint: its contents as ``.npy`` files, the rest as JSON. No pickle.

    SHA256SUMS                of replay.json
    replay.json               schema, settings, counters, the sampler's state, a checksum of each array
    replay_fragments.npy      ``[F, bytes]`` fragments as far as the replay needs them, the oldest first
    replay_spans.npy          ``[F, T * N]`` where samples begin, see ``SampleIndex.starts``
    replay_lengths.npy        ``[F, T * N]``, only of sequences, see ``Sequences.lengths``
    replay_flags.npy          ``[F, T * N]``, only of unrolls, see ``Unrolls``
    replay_parts.npy          ``[F, 1]``, only of unrolls, see ``Unrolls.is_part``
    replay_uses.npy           ``[F, T * N]`` uses of each step
    replay_blank.npy          ``[F, (T + 1) * N]``, only if a policy sees stacks, see ``Stacks``
    replay_priorities.npy     ``[F, T * N]``, only if the sampler keeps priorities
    replay_links.npy          ``[F, 2]`` number of each fragment's predecessor or -1, and the samples
                              accepted up to and including the fragment

Arrays are written straight from the replay's memory and read straight into it, without a second copy.
"""

from __future__ import annotations

import json
import shlex
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.errors import TianjiError
from tianji_cli.files.directories import LAST, NewestCopy
from tianji_cli.files.regular import open_regular
from tianji_cli.files.saved import CheckpointError, read_sealed, seal
from tianji_cli.roles.buffer.replay.memory import NONE, ReplayRing
from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings
from tianji_cli.roles.buffer.replay.samplers import find_sampler
from tianji_cli.wire.fragment import EPISODE_STEPS, FragmentLayout

SCHEMA: Final = 1
DOCUMENT: Final = "replay.json"
CHUNK_BYTES: Final = 1 << 24


class ReplayFileError(TianjiError):
    """A saved replay cannot be read or written; the message names the file."""


def save_replay(replay: Replay, directory: Path) -> None:
    """Write a replay into an existing directory.

    Raises:
        ReplayFileError: the disk does not take it.
    """
    ring = replay.ring
    links = np.stack([_predecessors(replay), _in_order(replay, replay.accepted_by)], axis=1)
    arrays: dict[str, list[npt.NDArray[Any]]] = {
        name: _pieces(array, width, _slots_by_age(ring, ring.oldest, ring.next))
        for name, (array, width) in _arrays_over_slots(replay).items()
    }
    arrays["links"] = [links]
    try:
        document = {
            "schema": SCHEMA,
            "layout": _fingerprint(replay.layout),
            "settings": _decisive(replay.settings),
            "births": [ring.oldest, ring.next],
            "accepted": replay.accepted,
            "env_steps": ring.env_steps,
            "stale_updates": replay.stale_updates,
            "steps_given_up": replay.steps_given_up or 0,
            "sampler": replay.sampler.state(),
            "uses": {"total": replay.uses.total, "histogram": replay.uses.histogram.tolist()},
            "checksums": {name: _write(_path(directory, name), pieces) for name, pieces in arrays.items()},
        }
        (directory / DOCUMENT).write_text(json.dumps(document, indent=1), encoding="utf-8")
        seal(directory, (DOCUMENT,))
    except OSError as cause:
        raise ReplayFileError(f"cannot write the replay to {directory}: {cause}") from cause


def restore_replay(replay: Replay, directory: Path) -> None:
    """Fill an empty replay from a saved one; later fragments are linked to none of it.

    Raises:
        ReplayFileError: the saved replay is missing, damaged, of another schema, layout or settings, or
            larger than this replay, which must not be used afterwards.
    """
    if replay.ring.next:
        raise ValueError("only an empty replay can be restored")
    path = directory / DOCUMENT
    try:
        document = json.loads(read_sealed(directory, DOCUMENT))
        _check(document, replay, path)
        oldest, past = document["births"]
        links = np.zeros((past - oldest, 2), np.int64)
        targets: dict[str, list[npt.NDArray[Any]]] = {
            name: _pieces(array, width, _slots_by_age(replay.ring, oldest, past))
            for name, (array, width) in _arrays_over_slots(replay).items()
        }
        targets["links"] = [links]
        for name, pieces in targets.items():
            _read(_path(directory, name), pieces, int(document["checksums"][name]))
        replay.restore(
            oldest,
            predecessors=links[:, 0],
            accepted_by=links[:, 1],
            accepted=int(document["accepted"]),
            env_steps=int(document["env_steps"]),
            stale_updates=int(document["stale_updates"]),
            steps_given_up=int(document.get("steps_given_up", 0)),
            sampler=document["sampler"],
        )
        replay.uses.total = int(document["uses"]["total"])
        replay.uses.histogram[:] = document["uses"]["histogram"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, CheckpointError) as cause:
        raise ReplayFileError(
            f"cannot read the replay saved in {directory}: {cause}\n"
            f"without it the run goes on with an empty one: rm -r {shlex.quote(str(directory.parent))}"
        ) from cause


def _arrays_over_slots(replay: Replay) -> dict[str, tuple[npt.NDArray[Any], int]]:
    """Return the arrays with a place for each slot, by the name of their file, and the items of a slot."""
    ring = replay.ring
    arrays: dict[str, tuple[npt.NDArray[Any], int]] = {
        "fragments": (replay.memory.bytes, ring.stride),
        "uses": (replay.uses.counts, ring.steps_each),
        **replay.index.by_slot,
    }
    if replay.sampler.priorities is not None:
        arrays["priorities"] = (replay.sampler.priorities, ring.steps_each)
    return arrays


def _slots_by_age(ring: ReplayRing, oldest: int, past: int) -> list[slice]:
    """Return the slots of fragments ``oldest`` to ``past``, in two ranges if the ring wraps between them."""
    first, count = ring.slot(oldest), past - oldest
    return [slice(first, min(first + count, ring.slots)), slice(0, max(0, first + count - ring.slots))]


def _pieces(array: npt.NDArray[Any], width: int, slots: list[slice]) -> list[npt.NDArray[Any]]:
    return [array[part.start * width : part.stop * width].reshape(-1, width) for part in slots]


def _in_order(replay: Replay, by_slot: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    ring = replay.ring
    return np.concatenate([by_slot[part] for part in _slots_by_age(ring, ring.oldest, ring.next)])


def _predecessors(replay: Replay) -> npt.NDArray[np.int64]:
    """Return the number of each fragment's predecessor, counted from the oldest fragment, or ``NONE``."""
    insertions = _in_order(replay, replay.index.links.predecessor)
    return np.where(insertions >= replay.ring.oldest, insertions - replay.ring.oldest, NONE)


def _fingerprint(layout: FragmentLayout) -> str:
    """Identify a layout as earlier versions did: float32 returns, no lengths; a replay keeps neither."""
    narrow = {"episode_return": np.dtype(np.float32)}
    fields = tuple(
        replace(spec, dtype=narrow.get(spec.name, spec.dtype))
        for spec in layout.fields
        if spec.name != EPISODE_STEPS
    )
    return f"{replace(layout, fields=fields).fingerprint:016x}"


def _check(document: Any, replay: Replay, path: Path) -> None:
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise ReplayFileError(f"{path} is not of schema {SCHEMA}, which this version reads")
    if document["layout"] != _fingerprint(replay.layout):
        raise ReplayFileError(
            f"{path} is of other fragments than the config's: spaces, fields, T or N differ"
        )
    for name, wanted in _decisive(replay.settings).items():
        saved = document["settings"].get(name)
        if saved != wanted:
            raise ReplayFileError(f"{path} was saved with {name} = {saved}, and the config has {wanted}")
    oldest, past = document["births"]
    if not 0 <= oldest <= past:
        raise ValueError(f"{path.name} counts fragments from {oldest} to {past}")
    if past - oldest > replay.ring.live:
        steps = (past - oldest) * replay.ring.steps_each
        raise ReplayFileError(
            f"{path} holds {steps} env steps, more than the capacity of the config's buffer"
        )


def _decisive(settings: ReplaySettings) -> dict[str, Any]:
    """Return the settings that decide the meaning of a saved replay."""
    of_sampler = find_sampler(settings.sampler).decisive
    names = ("sampler", "n_step", "gamma", "sequence_steps", *of_sampler)
    unroll = None if settings.unroll is None else [settings.unroll.burn_in, settings.unroll.learnt]
    return {**{name: getattr(settings, name) for name in names}, "unroll": unroll}


def _path(directory: Path, name: str) -> Path:
    return directory / f"replay_{name}.npy"


def _write(path: Path, pieces: list[npt.NDArray[Any]]) -> int:
    """Write the pieces of one array, one after the other, and return their checksum."""
    shape = (sum(len(piece) for piece in pieces), *pieces[0].shape[1:])
    descr = np.lib.format.dtype_to_descr(pieces[0].dtype)
    checksum = 0
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        for piece in pieces:
            for chunk in _chunks(piece):
                file.write(chunk)
                checksum = zlib.crc32(chunk, checksum)
    return checksum


def _read(path: Path, pieces: list[npt.NDArray[Any]], checksum: int) -> None:
    """Read one array into separate pieces, and check its checksum."""
    wanted, dtype = (sum(len(piece) for piece in pieces), *pieces[0].shape[1:]), pieces[0].dtype
    with open(open_regular(path), "rb") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{path.name} is of another version of the format")
        shape, fortran_order, found = np.lib.format.read_array_header_1_0(file)
        if (shape, fortran_order, found) != (wanted, False, dtype):
            raise ValueError(f"{path.name} has {found} {list(shape)}, not {dtype} {list(wanted)}")
        computed = 0
        for chunk in (chunk for piece in pieces for chunk in _chunks(piece)):
            file.readinto(chunk)
            computed = zlib.crc32(chunk, computed)
        if computed != checksum or file.read(1):
            raise ValueError(f"{path.name} is damaged")


def _chunks(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    flat = array.reshape(-1).view(np.uint8).data
    for start in range(0, len(flat), CHUNK_BYTES):
        yield flat[start : start + CHUNK_BYTES]


def replay_directory(checkpoints: Path, number: int, buffers: int) -> Path:
    """Return the directory that a buffer of a group, one of so many, saves its replay in.

    Raises:
        ReplayFileError: another number of buffers has saved the group's replay.
    """
    names = ["replay" if buffers == 1 else f"replay-{one}-of-{buffers}" for one in range(buffers)]
    others = [one for one in sorted(checkpoints.glob("replay*")) if (one / LAST).exists()]
    if others := [one for one in others if one.name not in names]:
        raise ReplayFileError(
            f"{others[0]} was saved by another number of buffers than distribution.buffer.num = {buffers}\n"
            f"without it the run goes on with an empty replay: rm -r {shlex.join(map(str, others))}"
        )
    return checkpoints / names[number]


class ReplayKeeper:
    """Saves a replay periodically; only the newest copy stays.

    Args:
        directory: as of ``replay_directory``; the process that holds the replay owns it.
    """

    def __init__(self, replay: Replay, directory: Path, every_s: float) -> None:
        self._replay = replay
        self._copy = NewestCopy(directory, every_s)

    def restore(self) -> bool:
        """Fill the replay from the last copy; return False if there is none.

        Raises:
            ReplayFileError: the copy is damaged, or of another config.
        """
        if self._copy.place is None:
            return False
        restore_replay(self._replay, self._copy.place)
        return True

    def is_due(self) -> bool:
        """Whether it is time for another copy."""
        return self._copy.is_due

    def save(self) -> bool:
        """Write a copy, then remove the one before.

        Raises:
            ReplayFileError: the disk does not take the copy; the one before is untouched.
        """
        try:
            with self._copy.replaced(f"{self._replay.accepted:012d}") as place:
                save_replay(self._replay, place)
        except OSError as cause:
            directory = self._copy.directory
            raise ReplayFileError(f"cannot write the replay to {directory}: {cause}") from cause
        return True
