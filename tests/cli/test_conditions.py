"""A run names what a machine lacks as `tianji doctor` does, before anything is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
from cli.lifecycle.conftest import BASE, merged
from cli.odd_machine import CALLS, LIMITS

TIANJI = Path(sys.executable).with_name("tianji")
ODD_MACHINE = Path(__file__).with_name("odd_machine.py")
LEFT_OVER = {"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_FD": "77", "OMPI_COMM_WORLD_RANK": "0"}
LIMIT_S = 100
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces take root")


def on_machine_without(
    lacks: str, place: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `tianji` in a directory, on a machine that lacks something."""
    command = [sys.executable, ODD_MACHINE, lacks, TIANJI, *words]
    environment = os.environ | {"COLUMNS": "200"} | variables
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a config."""
    (tmp_path / "run.toml").write_text(tomli_w.dumps(merged(BASE, {"distribution": {"pin_cores": True}})))
    return tmp_path


@pytest.fixture(scope="module")
def found_by_doctor(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The findings of `tianji doctor` on a machine that lacks everything at once, by subject."""
    place = tmp_path_factory.mktemp("open")
    place.chmod(0o777)
    done = on_machine_without(
        ",".join(("loopback", "shm", *CALLS, *LIMITS)),
        place,
        *("doctor", "--json", "-"),
        UCX_TLS="nonsense",
        **LEFT_OVER,
    )
    assert done.returncode == 1, done.stderr
    return {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}


@needs_root
@pytest.mark.parametrize(
    ("lacks", "subject", "transport"),
    [
        ("loopback", "loopback interface", "shm"),
        ("shm", "/dev/shm", "shm"),
        ("pidfd_open", "pidfd_open", "zmq"),
        ("size of files", "size of files", "inproc"),
        ("process_vm_readv", "process_vm_readv", "mpi"),
    ],
)
def test_a_run_is_refused_in_doctors_words_and_leaves_nothing(
    lacks: str, subject: str, transport: str, place: Path, found_by_doctor: dict[str, dict[str, str]]
) -> None:
    found = found_by_doctor[subject]
    done = on_machine_without(lacks, place, "train", "run.toml", "--transport", transport)
    assert done.returncode == 2
    assert done.stderr == f"tianji: error: {subject}: {found['found']}; {found['remedy']}\n"
    assert not (place / "experiments").exists()


@needs_root
def test_a_job_that_needs_no_shared_memory_does_without(place: Path) -> None:
    done = on_machine_without("shm", place, "train", "run.toml", "--transport", "zmq", "--dry-run")
    assert done.returncode == 0, done.stderr


@needs_root
def test_doctor_finds_what_keeps_no_run_from_working_but_some(
    found_by_doctor: dict[str, dict[str, str]],
) -> None:
    said = {
        subject: f"{finding['grade']}: {finding['found']}" for subject, finding in found_by_doctor.items()
    }
    assert said["open files"] == "warning: 64 allowed"
    assert said["sched_setaffinity"].startswith("warning: processes cannot be tied to cores")
    assert "UCX_TLS=nonsense" in said["UCX"]
    assert said["MPI launcher"].startswith(f"warning: {', '.join(sorted(LEFT_OVER))}: left over")
    assert said["working directory"].startswith("problem: ")
    assert "may be written to by all (mode 777)" in said["working directory"]


def test_a_run_does_without_pinning_where_it_is_refused(
    place: Path, found_by_doctor: dict[str, dict[str, str]]
) -> None:
    done = on_machine_without("sched_setaffinity", place, "train", "run.toml")
    assert done.returncode == 0, done.stderr
    assert found_by_doctor["sched_setaffinity"]["found"] in done.stderr


def test_variables_of_an_outer_launcher_are_named_and_keep_no_run_from_working(place: Path) -> None:
    done = on_machine_without("", place, "train", "run.toml", "--dry-run", **LEFT_OVER)
    assert done.returncode == 0, done.stderr
    assert f"tianji: {', '.join(sorted(LEFT_OVER))}: left over from an MPI launcher" in done.stderr


def test_a_launcher_that_can_be_reached_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from tianji_cli.launch.ranks import Launch, launched, left_over  # noqa: PLC0415

    reading, writing = os.pipe()
    for name, value in (("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("PMI_FD", str(reading))):
        monkeypatch.setenv(name, value)
    assert (launched(), left_over()) == (Launch(1, 4), [])
    os.close(reading)
    os.close(writing)
    assert launched() is None


OPENS_TOO_MUCH = """
from tianji_cli.conditions import explained
from tianji_transports import registry
from tianji_transports.wiring import Channel, Wiring
channels = [Channel(f"to-{rank}", rank, (0,), 64) for rank in range(1, 40)]
try:
    registry.create("shm", Wiring("too-much", tuple(channels), ()), 0)
except Exception as error:
    print(explained(error))
"""


def test_what_fails_in_a_run_for_want_of_something_says_so(place: Path) -> None:
    command = [sys.executable, str(ODD_MACHINE), "open files", sys.executable, "-c", OPENS_TOO_MUCH]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.startswith("iceoryx2 cannot open rank 0: "), done.stdout
    assert done.stdout.endswith("; open files: 64 allowed; ulimit -n 1024\n")


def test_standard_output_that_is_full_is_named() -> None:
    command = ["sh", "-c", 'exec "$0" list agents > /dev/full', str(TIANJI)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert "cannot write to standard output: No space left on device" in done.stderr


@pytest.mark.parametrize("words", [("train", "--env", "CartPole-v1"), ("doctor",)])
def test_a_working_directory_that_was_deleted_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["sh", "-c", 'rmdir "$0"; exec "$@"', str(gone), str(TIANJI)]
    done = subprocess.run(
        [*command, *words], cwd=gone, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert "working directory: it was deleted" in done.stdout + done.stderr


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_another_system_is_refused_before_anything_else(system: str) -> None:
    code = f"import sys; sys.platform = {system!r}; import tianji_cli.__main__"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("tianji: error: this is not Linux")
    assert done.stderr.count("\n") == 1


MAPS = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
print(flush=True)
input()
"""


def test_shared_memory_of_an_aborted_mpi_job_is_removed_and_that_of_others_is_not() -> None:
    from tianji_cli.files.directories import MPI_BEGINS_S, remove_stale  # noqa: PLC0415

    mine = [Path(f"/dev/shm/mpich_shm_{os.getpid()}_{name}") for name in ("dead", "new", "mapped")]
    dead, new, mapped = mine
    try:
        for path in mine:
            path.write_bytes(bytes(4096))
        holder = subprocess.Popen(
            [
                sys.executable,
                "-c",
                MAPS,
                str(mapped),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        before = time.time() - 2 * MPI_BEGINS_S
        for path in (dead, mapped):
            os.utime(path, (before, before))
        assert dead.name in remove_stale()
        assert not dead.exists()
        assert new.exists()
        assert mapped.exists()
        holder.communicate(b"\n", timeout=LIMIT_S)
    finally:
        for path in mine:
            path.unlink(missing_ok=True)


def test_matplotlib_says_nothing_of_its_cache_in_the_midst_of_a_display(tmp_path: Path) -> None:
    code = "from tianji_cli.main import main\ntry: main(['--version'])\nfinally: import matplotlib"
    home = tmp_path / "no-directory"
    home.write_bytes(b"")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MPL"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=variables | {"HOME": str(home), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stderr == ""
