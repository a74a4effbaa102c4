from pathlib import Path

import pytest

from tianji_cli.roles.buffer.replay import memory as memory_limits
from tianji_cli.roles.buffer.replay.memory import (
    ReplayMemoryError,
    available_bytes,
    in_units,
    place_for,
)

MiB = 1 << 20


def kernel(directory: Path, cgroup: str, *, available_kb: int = 8 << 20) -> Path:
    proc = directory / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemAvailable: {available_kb} kB\n")
    (proc / "self/cgroup").write_text(cgroup)
    return proc


def group(directory: Path, **files: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(f"{content}\n")


def test_without_limits_it_is_what_the_host_has(tmp_path: Path) -> None:
    assert available_bytes(kernel(tmp_path, "0::/\n"), tmp_path / "cgroup") == 8 << 30


def test_the_narrowest_group_around_the_process_counts(tmp_path: Path) -> None:
    proc, root = kernel(tmp_path, "0::/job/step\n"), tmp_path / "cgroup"
    group(root / "job", memory__max=500 * MiB, memory__current=450 * MiB)
    group(root / "job/step", memory__max=400 * MiB, memory__current=100 * MiB)
    assert available_bytes(proc, root) == 50 * MiB


def test_a_group_without_a_limit_limits_nothing(tmp_path: Path) -> None:
    proc, root = kernel(tmp_path, "0::/job\n"), tmp_path / "cgroup"
    group(root / "job", memory__max="max", memory__current=450 * MiB)
    assert available_bytes(proc, root) == 8 << 30


def test_pages_of_files_that_would_be_given_up_are_available(tmp_path: Path) -> None:
    proc, root = kernel(tmp_path, "0::/job\n"), tmp_path / "cgroup"
    group(
        root / "job",
        memory__max=500 * MiB,
        memory__current=450 * MiB,
        memory__stat=f"anon 5\ninactive_file {200 * MiB}",
    )
    assert available_bytes(proc, root) == 250 * MiB


def test_limits_of_version_1_count_as_well(tmp_path: Path) -> None:
    proc, root = kernel(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n"), tmp_path / "cgroup"
    group(root / "memory/job", memory__limit_in_bytes=300 * MiB, memory__usage_in_bytes=200 * MiB)
    group(root / "memory", memory__limit_in_bytes=(1 << 63) - 4096, memory__usage_in_bytes=0)
    assert available_bytes(proc, root) == 100 * MiB


def test_of_a_group_over_its_limit_nothing_is_left(tmp_path: Path) -> None:
    proc, root = kernel(tmp_path, "0::/\n"), tmp_path / "cgroup"
    group(root, memory__max=MiB, memory__current=2 * MiB)
    assert available_bytes(proc, root) == 0


def test_this_host_has_some() -> None:
    assert MiB < available_bytes() < 1 << 50


def test_auto_takes_a_file_only_if_memory_does_not_suffice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limits, "available_bytes", lambda: 100)
    assert place_for("auto", 90, 80, 10, tmp_path) is None
    assert place_for("auto", 91, 80, 10, tmp_path) == tmp_path
    assert place_for("ram", 90, 80, 10, tmp_path) is None
    assert place_for("mmap", 20, 10, 10, tmp_path) == tmp_path
    with pytest.raises(ReplayMemoryError, match=r'at most 9, or memory = "mmap", would do'):
        place_for("ram", 91, 80, 10, tmp_path)
    with pytest.raises(ReplayMemoryError, match="at most 9 would do"):
        place_for("auto", 180, 80, 10, tmp_path)  # Even the bookkeeping is too much.


def test_a_disk_that_is_too_small_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReplayMemoryError, match=f"on the disk of {tmp_path} are free"):
        place_for("mmap", 1 << 60, 1 << 60, 10, tmp_path)
    with pytest.raises(ReplayMemoryError, match="there is no directory"):
        place_for("mmap", 10, 10, 10, tmp_path / "missing")


def test_sizes_are_said_in_decimal_units() -> None:
    assert (in_units(5_000_000), in_units(2_340_000_000)) == ("5.0 MB", "2.3 GB")
