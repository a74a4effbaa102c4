"""Claims about trainings over several hosts: who takes part, how they come in, and what if they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.sessions import stale_shared_memory

from tianji_cli.errors import RunFailed, UsageError
from tianji_lab.scaling import hosts
from tianji_lab.scaling.hosts import Others, others_of, train_over_hosts

pytestmark = pytest.mark.usefixtures("warm_children")

HERE = "127.0.0.1"
TWO_HOSTS = ("distribution.hosts=2", "distribution.transport={local='shm', remote='zmq'}")
ALLOCATION = {"SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_CPUS_ON_NODE": "40"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a ``scontrol`` of our own in the path; this host is n1."""

    def install(script: str) -> None:
        program = tmp_path / "scontrol"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setenv("SLURMD_NODENAME", "n1")

    return install


def test_hosts_are_reached_by_ssh_whose_shell_words_survive_or_by_any_command() -> None:
    others = others_of(["b", "c"], None, HERE, {})
    assert others == Others(("b", "c"), "ssh -o BatchMode=yes {host}", HERE)
    assert others is not None
    command = others.join("c", "tcp://10.0.0.1:5", Path("/runs of me/job.key"))
    assert command[:4] == ["ssh", "-o", "BatchMode=yes", "c"]
    assert command[4].endswith("tianji")
    assert command[5:] == ["join", "tcp://10.0.0.1:5", "--key", "'/runs of me/job.key'", "--quiet"]
    others = others_of(["b"], "ip netns exec {host}-net", HERE, {})
    assert others is not None
    command = others.join("b", "tcp://10.0.0.1:5", Path("/a b/job.key"))
    assert command[:4] == ["ip", "netns", "exec", "b-net"]
    assert "/a b/job.key" in command, "there is no shell"


def test_an_allocation_s_other_nodes_take_part(slurm: Callable[[str], None]) -> None:
    slurm('[ "$3" = "n[1-3]" ] && printf "n1\\nn2\\nn3\\n"')
    others = others_of(None, None, HERE, ALLOCATION)
    assert others is not None
    assert others.names == ("n2", "n3")
    command = "srun --mpi=none --overlap -N1 -n1 --cpus-per-task=40 -w"
    assert " ".join(others.join("n3", "tcp://h:1", Path("k"))).startswith(command)
    slurm("exit 1")
    with pytest.raises(UsageError, match="--hosts names them"):
        others_of(None, None, HERE, ALLOCATION)


def test_without_hosts_and_allocation_there_are_no_others() -> None:
    assert others_of(None, None, None, {}) is None
    assert others_of(None, None, None, {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1"}) is None
    assert others_of([], None, None, ALLOCATION) is None, "an allocation is not used against one's will"


@pytest.mark.parametrize(
    ("names", "join_with", "said"),
    [
        (None, "ssh {host}", "there are none"),
        (["b", "b"], None, "twice"),
        (["b"], " ", "names no command"),
        (["b"], "ssh '{host}", "is no command: No closing quotation"),
        (["b", "c"], "ssh b", "the same place for 2 hosts"),
    ],
)
def test_what_names_no_way_is_refused(names: list[str] | None, join_with: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        others_of(names, join_with, HERE, {})


def test_an_address_of_somebody_else_is_refused(config: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no address of this host"):
        train_over_hosts(
            config, TWO_HOSTS, others=Others(("b",), "env", "192.0.2.1"), name="new", place=tmp_path
        )


def test_a_host_that_is_brought_in_takes_part(config: str, tmp_path: Path) -> None:
    stale = stale_shared_memory()
    settings = [*TWO_HOSTS, "distribution.actor.num=2", "experiment.eval_episodes=0"]
    # Another host that is this one: as far as tianji knows, they are two.
    run = train_over_hosts(config, settings, others=Others(("b",), "env", HERE), name="new", place=tmp_path)
    summary = json.loads(run.summary.read_text())
    assert summary["status"] == "finished"
    assert summary["transport"] == "shm+zmq"
    assert len({role["host"] for role in summary["roles"]}) == 2
    assert not (run.path / "job.key").exists()
    assert stale_shared_memory() <= stale


@pytest.mark.parametrize(
    ("join_with", "settings", "said"),
    [
        ("sh -c 'echo no such host >&2; exit 3'", (), "host b did not take part:\nno such host"),
        ("true", (), "host b did not take part:\nexit status 0"),
        ("no-such-program", (), "cannot run no-such-program"),
        ("env", ("training.gamma=2.0",), r"training\.gamma"),
    ],
)
def test_a_host_that_cannot_take_part_ends_the_training_in_order(
    config: str, tmp_path: Path, join_with: str, settings: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RunFailed, match=said):
        train_over_hosts(
            config,
            (*TWO_HOSTS, *settings),
            others=Others(("b",), join_with, HERE),
            name="new",
            place=tmp_path,
        )
    assert not (tmp_path / "new" / "1" / "job.key").exists()


def test_hosts_that_do_not_arrive_are_not_waited_for(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "ARRIVE_S", 0.5)
    others = Others(("b", "c"), "sh -c 'exec sleep 100'", HERE)
    with pytest.raises(RunFailed, match=r"b, c: not all of them have joined within 0\.5 s"):
        train_over_hosts(config, TWO_HOSTS, others=others, name="new", place=tmp_path)
