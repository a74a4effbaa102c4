"""What the transport costs is measured by the benchmark of transports, with messages of the job's sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lab.profile.probing import PPO, write_config

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_lab.bench.record import KB
from tianji_lab.profile import measure as transport_terms
from tianji_lab.profile.measure import (
    measure_messages,
    measure_policy,
    measured_engines,
    message_bytes,
)
from tianji_lab.profile.probe.pool import ProbeFailed


def job(*transport: str, config: str = "ppo_cartpole") -> JobConfig:
    return load_config(config, [f"distribution.{setting}" for setting in transport])


def test_the_engine_inside_a_host_is_measured_and_the_other_where_there_are_several() -> None:
    assert measured_engines(job('transport="zmq"')) == ["zmq"]
    both = 'transport={local="shm",remote="zmq"}'
    assert measured_engines(job(both)) == ["shm"]
    assert measured_engines(job(both, "hosts=2", "actor.num=2")) == ["shm", "zmq"]
    # Nothing is measured where all roles share a process.
    alone = job('transport="inproc"')
    assert measure_messages(alone, [1000]) == measure_policy(alone, 1000, [1]) == ()


@pytest.mark.usefixtures("warm_children")
def test_messages_of_the_smallest_and_the_largest_size_are_sent_and_a_policy_to_some_actors() -> None:
    small, large = measure_messages(job('transport="shm"'), [8, 300_001])
    assert (small.engine, small.nbytes, large.nbytes) == ("shm", 32, 300_008)
    assert all(figures.send_s > 0 and figures.receive_s > 0 for figures in (small, large))
    one, two = measure_policy(job('transport="zmq"'), 10_963, [1, 2])
    assert (one.actors, two.actors) == (1, 2)
    assert min(one.seconds, two.seconds) > 0


def test_a_users_engine_beside_its_config_is_measured_wherever_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, theirs = tmp_path / "here", tmp_path / "theirs"
    for directory in (here, theirs):
        directory.mkdir()
        (directory / "queue.py").write_text("raise SystemExit('a queue of somebody else')")
    (theirs / "own_engine.py").write_text(
        "from tianji_transports.zmq.transport import ZmqTransport as Engine"
    )
    config = write_config(theirs / "own.toml", PPO, distribution={"transport": "own_engine:Engine"})
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (figures,) = measure_messages(load_config(config, ["distribution.actor.send_size=16"]), [1000])
    assert figures.engine == "own_engine:Engine"


@pytest.mark.parametrize("nbytes", [1, 33, 44_480, 177_537, 10_000_001, 2**33 + 1])
def test_sizes_are_rounded_up_to_what_the_benchmark_takes_to_the_byte(nbytes: int) -> None:
    rounded = message_bytes(nbytes)
    assert nbytes <= rounded < nbytes + 32
    assert rounded % 8 == 0
    assert float(repr(rounded / KB)) * KB == rounded


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How `tianji bench` would have been called."""
    called: list[str] = []

    def call(command: list[str], _what: str) -> str:
        called.append(" ".join(command[command.index("bench") :]))
        return '{"rows": []}'

    monkeypatch.setattr(transport_terms, "_run", call)
    return called


def test_fragments_are_received_in_place_where_the_engine_lends(commands: list[str]) -> None:
    for engine, config in (("shm", "ppo_cartpole"), ("mpi", "ppo_cartpole"), ("shm", "dqn_cartpole")):
        measure_messages(job(f'transport="{engine}"', config=config), [1000])
    stores = [words.partition("--store ")[2].split()[0] for words in commands]
    assert stores == ["inplace", "copy", "inplace"], "a replay's copy is in what its buffer's work costs"
    # Large messages are fewer, and fewer of them are on their way.
    commands.clear()
    for nbytes in (1000, 20_000_000, 10_000_000_000):
        measure_messages(job(), [nbytes])
    counts = [(words.split()[6:8], words.split()[8:10]) for words in commands]
    assert counts == [
        (["--messages", "300"], ["--window", "8"]),
        (["--messages", "10"], ["--window", "8"]),
        (["--messages", "10"], ["--window", "1"]),
    ]


def test_an_engine_that_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_terms, "KB", 3 * KB)  # A size that is no multiple of a word.
    with pytest.raises(ProbeFailed, match=r"transport 'shm' cannot be measured:\n.*--msg-kb"):
        measure_messages(job(), [1000])
    words_only = "transport 'shm' was not measured: tianji bench printed no figures"
    for printed in ("", "no figures today", "[]", "{}"):
        monkeypatch.setattr(transport_terms, "_run", lambda _command, _what, printed=printed: printed)
        with pytest.raises(ProbeFailed, match=words_only):
            measure_messages(job(), [1000])


def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()")
    monkeypatch.setattr(transport_terms, "LIMIT_S", 0.5)
    with pytest.raises(ProbeFailed, match=r"^transport 'mine' was not measured within 0.5 s$"):
        transport_terms._run([sys.executable, str(script)], "transport 'mine'")
