"""The number of cores that affinity and the quotas of control groups leave, and plans for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tianji_cli import limits
from tianji_cli.config.loader import load_config
from tianji_cli.limits import (
    CpuLimit,
    core_list,
    cores_granted,
    cpu_limit,
    pins_by_default,
    usable_cores,
)
from tianji_cli.plan.plan import this_host
from tianji_cli.telemetry.machine import cores

LIMIT_S = 60
V1 = Path("/sys/fs/cgroup/cpu")


def tree(place: Path, line: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A process's control groups as the kernel shows them: a machine has them in one of two versions."""
    for name, content in {"proc/self/cgroup": line, **files}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return place / "proc", place / "cgroup"


STAT = "nr_periods 230\nnr_throttled 149\nthrottled_usec 6500000"


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("0::/a/b", {"cgroup/a/b/cpu.max": "50000 100000", "cgroup/a/b/cpu.stat": STAT}, (0.5, 230, 149)),
        ("0::/a/b", {"cgroup/a/b/cpu.max": "max 100000", "cgroup/a/cpu.max": "150000 100000"}, (1.5, 0, 0)),
        ("0::/a/b", {"cgroup/a/b/cpu.max": "max 100000"}, None),
        ("0::/", {"cgroup/cpu.max": "200000 100000"}, (2.0, 0, 0)),
        (
            "4:cpu,cpuacct:/docker/1",
            {"cgroup/cpu/cpu.cfs_quota_us": "50000", "cgroup/cpu/cpu.cfs_period_us": "100000"},
            (0.5, 0, 0),
        ),
        ("4:cpu:/", {"cgroup/cpu/cpu.cfs_quota_us": "-1", "cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:memory:/", {"cgroup/cpu/cpu.cfs_quota_us": "1", "cgroup/cpu/cpu.cfs_period_us": "2"}, None),
    ],
)
def test_a_quota_is_the_least_of_a_process_s_groups(
    line: str, files: dict[str, str], limit: tuple[float, int, int] | None, tmp_path: Path
) -> None:
    assert cpu_limit(*tree(tmp_path, line, files)) == (None if limit is None else CpuLimit(*limit))


@pytest.mark.parametrize(("quota", "planned"), [(0.5, 1), (1.0, 1), (2.5, 3), (8.0, 4)])
def test_plans_have_the_cores_that_affinity_and_quota_allow(
    quota: float, planned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(limits, "cpu_limit", lambda: CpuLimit(quota, 0, 0))
    monkeypatch.setattr(limits, "can_pin", lambda: True)
    assert cores_granted() == min(quota, 4)
    assert len(usable_cores()) == len(this_host().cores) == planned
    assert pins_by_default() == (quota >= 4)
    assert cores().startswith(f"{min(quota, 4):g} usable of ")
    job = load_config("configs/ppo_cartpole.toml", ["distribution.actor.cores=1"])
    assert job.distribution.actor.num.max <= planned
    assert not job.distribution.pin_cores or quota >= 4


def test_cores_are_used_numa_node_by_numa_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1, 8)))
    monkeypatch.setattr(limits, "cpu_limit", lambda: None)
    for node, cores_of_node in enumerate(("0-1,4-5\n", "2-3,6-7\n", "\n")):  # The last has memory alone.
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}/cpulist").write_text(cores_of_node)
    assert usable_cores(tmp_path) == (1, 4, 5, 2, 3, 6, 7)
    assert usable_cores(tmp_path / "none") == (1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("text", "listed"), [("3", (3,)), ("2-4,12", (2, 3, 4, 12)), ("5,1-2,2", (1, 2, 5)), (" 0-1\n", (0, 1))]
)
def test_a_list_of_cores_is_read_as_the_kernel_writes_it(text: str, listed: tuple[int, ...]) -> None:
    assert core_list(text) == listed


@pytest.mark.parametrize("text", ["", "two", "9-2", "1-", "-1", "1,,2", "1-2-3", "99999"])
def test_what_is_no_list_of_cores_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match='list of cores such as "2-9,12"'):
        core_list(text)


def test_the_share_of_throttled_periods_is_counted_from_a_moment_on() -> None:
    earlier, later = CpuLimit(0.5, 100, 50), CpuLimit(0.5, 200, 115)
    assert later.throttled_since(earlier) == 0.65
    assert later.throttled_since(later) == later.throttled_since(None) == 0.0


@pytest.fixture
def group() -> Iterator[Path | None]:
    """A real control group with a tenth of a core, where one can be made: most containers forbid it."""
    for place, files in ((V1, {"cpu.cfs_quota_us": "10000"}), (V1.parent, {"cpu.max": "10000 100000"})):
        group = place / f"tianji-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for name, content in files.items():
                with (group / name).open("r+") as file:
                    file.write(content)
        except OSError:
            group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    yield None


BUSY = """
import os, sys, time
from tianji_cli.limits import cores_granted, cpu_limit
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
before = cpu_limit()
until = time.monotonic() + 60
while cpu_limit().throttled - before.throttled < 3 and time.monotonic() < until:
    pass
print(cores_granted(), cpu_limit().throttled_since(before) > 0)
"""


def test_a_real_quota_and_its_throttling_are_seen(group: Path | None) -> None:
    if group is None:
        assert 0 < cores_granted() <= len(os.sched_getaffinity(0))
        return
    command = [sys.executable, "-c", BUSY, str(group / "cgroup.procs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "0.1 True\n", done.stderr
