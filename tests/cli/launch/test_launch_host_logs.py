"""Claims about what a joined host hands the root of its workers' logs."""

from __future__ import annotations

from pathlib import Path

from tianji_cli.files.regular import LOG_BYTES
from tianji_cli.launch.host import PIECE_BYTES, HostLog
from tianji_cli.wire.messages import MOST_BYTES as MOST_OF_A_MESSAGE
from tianji_cli.wire.messages import Wrote, decode_to_root, encode


def test_a_log_that_grows_is_handed_out_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "actor-3.log"
    log = HostLog(path)
    assert log.piece() == b"", "it is not there yet"
    path.write_bytes(b"one\n")
    assert (log.piece(), log.piece()) == (b"one\n", b"")
    more = bytes(range(256)) * 4096
    with path.open("ab") as file:
        file.write(more)
    pieces = [log.piece(), *log.rest()]
    assert b"".join(pieces) == more
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert list(log.rest()) == []


def test_of_a_flood_the_beginning_and_the_end_are_handed_out_and_what_lacks_is_counted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "actor-3.log"
    lines = b"".join(b"%09d\n" % i for i in range(100_000))
    path.write_bytes(lines)
    log = HostLog(path, most=300_000)
    assert log.piece() == lines[:PIECE_BYTES]
    whole = lines[:PIECE_BYTES] + b"".join(log.rest())
    said = b"\n[tianji: what comes here is left out]\n"
    assert whole == lines[:300_000] + said + lines[-PIECE_BYTES:]
    with path.open("ab") as file:
        file.write(b"a later life\n")
    assert list(log.rest()) == [b"a later life\n"]


def test_a_log_just_above_the_bound_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "actor-3.log"
    path.write_bytes(bytes(LOG_BYTES + PIECE_BYTES))
    assert sum(map(len, HostLog(path).rest())) == LOG_BYTES + PIECE_BYTES


def test_a_piece_of_any_bytes_fits_into_a_message(tmp_path: Path) -> None:
    wrote = Wrote(node="host-1", number=0, output=b"\0\xff" * (PIECE_BYTES // 2))
    assert len(encode(wrote)) < MOST_OF_A_MESSAGE
    assert decode_to_root(encode(wrote), ranks=1) == wrote
