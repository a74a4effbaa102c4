from pathlib import Path

import pytest

from tianji_cli.roles.buffer.replay import memory as memory_limits
from tianji_cli.roles.buffer.replay.memory import ReplayMemoryError, available_bytes, in_units, place_for

MiB = 1 << 20


def kernel(directory: Path, cgroup: str) -> Path:
    proc = directory / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemAvailable: {8 << 20} kB\n")
    (proc / "self/cgroup").write_text(cgroup)
    return proc


@pytest.mark.parametrize(
    ("cgroup", "groups", "available"),
    [
        pytest.param("0::/\n", {}, 8 << 30, id="without limits all that the host has"),
        pytest.param(
            "0::/job/step\n",
            {
                "job": {"max": 500 * MiB, "current": 450 * MiB},
                "job/step": {"max": 400 * MiB, "current": 100 * MiB},
            },
            50 * MiB,
            id="the narrowest group around the process counts",
        ),
        pytest.param(
            "0::/job\n",
            {"job": {"max": "max", "current": 450 * MiB}},
            8 << 30,
            id="a group without a limit limits nothing",
        ),
        pytest.param(
            "0::/job\n",
            {"job": {"max": 500 * MiB, "current": 450 * MiB, "stat": f"anon 5\ninactive_file {200 * MiB}"}},
            250 * MiB,
            id="pages of files that would be given up are available",
        ),
        pytest.param(
            "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n",
            {
                "memory/job": {"limit_in_bytes": 300 * MiB, "usage_in_bytes": 200 * MiB},
                "memory": {"limit_in_bytes": (1 << 63) - 4096, "usage_in_bytes": 0},
            },
            100 * MiB,
            id="limits of version 1 count as well",
        ),
        pytest.param(
            "0::/\n", {"": {"max": MiB, "current": 2 * MiB}}, 0, id="over its limit nothing is left"
        ),
    ],
)
def test_memory_that_is_available(
    tmp_path: Path, cgroup: str, groups: dict[str, dict[str, object]], available: int
) -> None:
    root = tmp_path / "cgroup"
    for name, files in groups.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (root / name / f"memory.{file}").write_text(f"{content}\n")
    assert available_bytes(kernel(tmp_path, cgroup), root) == available


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
