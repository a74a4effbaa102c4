"""`tianji join`, and a root that says what it should not."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.sessions import PATIENCE_S, Start, commands
from cli.warm import WarmCommands

from tianji_cli.wire.address import JobKey, write_new_key
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Arrive, Begin, FromRoot, Refuse, Welcome

ESCAPE = "\x1b]0;owned\x07\x1b[31m"
WELCOME = Welcome(host="b", experiment="e", run="/nowhere", files={})
BEGIN = Begin(number=0, rank=0, incarnation=0)


@pytest.fixture
def join(tmp_path: Path, warm_commands: WarmCommands) -> Iterator[Start]:
    with commands("join", cwd=tmp_path, warm=warm_commands) as begin:
        yield begin


@pytest.fixture
def root(tmp_path: Path) -> Iterator[ControlServer]:
    server = ControlServer(write_new_key(tmp_path / "job.key"))
    yield server
    server.close()


def answered(join: Start, root: ControlServer, tmp_path: Path, *answers: FromRoot | bytes) -> tuple[int, str]:
    """Have a host join, and answer it; gives its exit status and what it said."""
    host = join(root.address.address, "--key", str(tmp_path / "job.key"))
    while not (heard := root.receive()):
        root.wait(0.1)
        assert host.poll() is None, host.communicate()
    arrival = heard[0]
    assert isinstance(arrival, Arrive)
    for answer in answers:
        if isinstance(answer, bytes):
            root._router.send_multipart([root._identities[arrival.node], answer])
        else:
            root.send(arrival.node, answer)
    while host.poll() is None:
        root.wait(0.05)
        root.receive()
    return host.returncode, host.communicate(timeout=PATIENCE_S)[1]


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "large"])
def test_a_key_that_is_no_file_is_refused_at_once(join: Start, tmp_path: Path, kind: str) -> None:
    key = tmp_path / "key"
    match kind:
        case "fifo":
            os.mkfifo(key, 0o600)
        case "device":
            key.symlink_to("/dev/zero")
        case "directory":
            key.mkdir(0o700)
        case _:
            key.touch(0o600)
            os.truncate(key, 1 << 30)
    host = join("tcp://127.0.0.1:1", "--key", str(key))
    _, said = host.communicate(timeout=PATIENCE_S)
    assert host.returncode == 2
    assert said.startswith("tianji: error: ")
    assert "key" in said
    assert said.count("\n") <= 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_key_of_somebody_else_s_is_refused(tmp_path: Path, join: Start) -> None:
    write_new_key(tmp_path / "job.key")
    os.chown(tmp_path / "job.key", 54_321, -1)
    host = join("tcp://127.0.0.1:1", "--key", str(tmp_path / "job.key"))
    _, said = host.communicate(timeout=PATIENCE_S)
    assert host.returncode == 2
    assert "is owned by user 54321" in said
    assert "copy it to a directory of your own" in said


def test_a_key_in_a_directory_that_all_may_write_to_is_refused(tmp_path: Path, join: Start) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    write_new_key(tmp_path / "open/job.key")
    host = join("tcp://127.0.0.1:1", "--key", "open/job.key")
    _, said = host.communicate(timeout=PATIENCE_S)
    assert host.returncode == 2
    assert "may be written to by all" in said


def test_what_the_root_says_reaches_the_terminal_without_escape_sequences(
    join: Start, root: ControlServer, tmp_path: Path
) -> None:
    status, said = answered(join, root, tmp_path, Refuse(reason=f"no\n{ESCAPE}room"))
    assert status == 2
    assert "refuses this host: no \N{REPLACEMENT CHARACTER}]0;owned" in said
    welcome = WELCOME.model_copy(update={"experiment": f"e{ESCAPE}", "host": f"b{ESCAPE}"})
    status, more = answered(join, root, tmp_path, welcome, BEGIN)
    assert status == 1
    assert "joined e\N{REPLACEMENT CHARACTER}" in more
    assert "\x1b" not in said + more


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"files": {"../evil.py": b""}}, "is no path below extensions"),
        ({"files": {"a.py": b"", "a.py/b.py": b""}}, "File exists"),
        ({"files": {"a\0.py": b""}}, "null"),
    ],
)
def test_a_welcome_that_cannot_be_used_is_blamed_on_the_root(
    join: Start, root: ControlServer, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    welcome = WELCOME.model_copy(update=changes)
    status, said = answered(join, root, tmp_path, welcome)
    assert status == 1
    assert (
        f"tianji: error: the root at {root.address.address} sent a welcome that cannot be used here" in said
    )
    assert why in said


def test_an_order_that_cannot_be_used_is_blamed_on_the_root(
    join: Start, root: ControlServer, tmp_path: Path
) -> None:
    status, said = answered(join, root, tmp_path, WELCOME, BEGIN)
    assert status == 1
    assert f"the root at {root.address.address} sent an order that cannot be used here" in said
    assert "it was not said of which job" in said


def test_what_is_none_of_the_protocol_after_a_welcome_ends_joining_too(
    join: Start, root: ControlServer, tmp_path: Path
) -> None:
    status, said = answered(join, root, tmp_path, WELCOME, b'{"kind": "prepare"}')
    assert status == 1
    assert f"what {root.address.address} says makes no sense to this version of tianji" in said


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff",
        b'{"kind": "welcome"}',
        b'{"kind": "shout"}',
    ],
)
def test_an_answer_that_is_none_of_the_protocol_ends_joining_at_once(
    join: Start, root: ControlServer, tmp_path: Path, answer: bytes
) -> None:
    status, said = answered(join, root, tmp_path, answer)
    assert status == 1
    assert f"what {root.address.address} says makes no sense to this version of tianji" in said


def test_a_key_of_another_job_is_no_secret_to_anybody_but_refused(
    join: Start, root: ControlServer, tmp_path: Path
) -> None:
    JobKey.new().write(tmp_path / "other.key")
    host = join(root.address.address, "--key", str(tmp_path / "other.key"))
    while host.poll() is None:
        root.wait(0.05)
        root.receive()
    assert host.returncode == 2
    assert "does not know this key" in host.communicate()[1]
