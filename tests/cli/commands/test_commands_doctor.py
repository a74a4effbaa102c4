"""`tianji doctor` says what would keep a training from running, and how to mend it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import pytest

from tianji_cli import conditions
from tianji_cli.commands import doctor
from tianji_cli.conditions import MIB, Finding
from tianji_transports import registry
from tianji_transports.errors import BrokenEngineError
from tianji_transports.registry import Availability

Usage = namedtuple("Usage", "total used free")


def test_this_machine_can_train_and_doctor_needs_no_torch_to_say_so(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code = (
        "import sys; from tianji_cli.commands.doctor import examine; "
        f"status = examine({str(report)!r}); assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    document = json.loads(report.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert document["problems"] == 0
    subjects = {finding["subject"] for finding in document["findings"]}
    assert {"python", "cores", "memory", "/dev/shm", "torch", "transport shm", "numpy"} <= subjects


@pytest.mark.parametrize(
    ("free", "grade"), [(2048 * MIB, "ok"), (63 * MIB, "warning"), (MIB // 8, "problem")]
)
def test_little_shared_memory_is_answered_with_dockers_option(
    free: int, grade: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(conditions.shutil, "disk_usage", lambda _: Usage(free, 0, free))
    (finding,) = conditions.shared_memory(tmp_path)
    assert finding.grade == grade
    assert ("--shm-size" in finding.remedy) == (grade != "ok")


def test_no_shared_memory_at_all_is_a_problem(tmp_path: Path) -> None:
    (finding,) = conditions.shared_memory(tmp_path / "missing")
    assert finding.grade == "problem"


def test_one_core_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    cores = next(finding for finding in doctor.system() if finding.subject == "cores")
    assert cores.grade == "warning"
    assert cores.found.startswith("1 usable")


def test_a_missing_dependency_is_a_problem_and_a_missing_extra_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requirements = {
        "tianji": [
            "no-such-lib>=2",
            "numpy",
            "no-such-extra>=1; extra == 'marl'",
            "gymnasium[deep]; extra == 'box2d'",
        ],
        "gymnasium": [
            "no-such-deep; extra == 'deep'",
            "only-for-python-2; python_version < '3' and extra == 'deep'",
            "unrelated; extra == 'other'",
        ],
    }
    monkeypatch.setattr(metadata, "requires", requirements.get)
    findings = {finding.subject: finding for finding in doctor.packages()}
    assert findings["no-such-lib"] == Finding(
        "no-such-lib", "not installed", "problem", "pip install no-such-lib"
    )
    assert findings["numpy"].found == metadata.version("numpy")
    assert findings["no-such-extra"].grade == "ok"
    assert "pip install 'tianji[marl]'" in findings["no-such-extra"].found
    assert "pip install 'tianji[box2d]'" in findings["no-such-deep"].found
    assert set(findings) == {"no-such-lib", "numpy", "no-such-extra", "no-such-deep"}


def test_a_problem_gives_status_1_and_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Availability("shm", None, BrokenEngineError("libfoo.so is from another planet"))
    monkeypatch.setattr(registry, "available", lambda: [broken])
    assert doctor.examine(None) == 1
    shown = capsys.readouterr().out
    assert "problem: transport shm: does not load\n    libfoo.so is from another planet" in shown


def test_what_was_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "remove_stale", lambda: ["tianji-0-aaaa", "tianji-0-bbbb"])
    (finding,) = doctor.stale()
    assert finding.found == "removed: tianji-0-aaaa, tianji-0-bbbb"


def test_ucx_shows_its_version_its_variables_and_what_it_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    found = {finding.subject: finding.found for finding in doctor.ucx()}
    assert found["UCX"].startswith("1.")
    assert found["UCX variables"] == "UCX_TLS=tcp,self"
    assert found["UCX inside a host"] == "nothing but TCP"
    assert found["UCX between hosts"].startswith("tcp/")
    assert found["InfiniBand"] == "no device"


def test_a_missing_ucx_is_answered_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tianji_transports.ucx.library", None)
    (finding,) = doctor.ucx()
    assert "pip install 'tianji[ucx]'" in finding.found


def test_gpus_are_named_and_a_torch_that_cannot_use_them_is_a_warning(tmp_path: Path) -> None:
    (nothing,) = doctor.gpus(wanted=True, driver=tmp_path)
    assert nothing.found.startswith(f"no NVIDIA driver in {tmp_path}")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 1\n"
    )
    for number in range(2):
        (tmp_path / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    (fits,) = doctor.gpus(wanted=True, driver=tmp_path)
    assert (fits.found, fits.grade) == ("2; driver 570.86.15", "ok")
    (unused,) = doctor.gpus(wanted=False, driver=tmp_path)
    assert unused.grade == "warning"
    assert "--device cuda" in unused.remedy


@pytest.mark.parametrize(
    ("line", "found"),
    [("cuda: Optional[str] = '12.8'", "built for 12.8"), ("cuda: Optional[str] = None", "built without it")],
)
def test_what_torch_was_built_for_is_read_from_its_own_file_and_not_guessed_from_its_version(
    line: str, found: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in (("__init__.py", ""), ("version.py", f"__version__ = '2.9.0'\n{line}\nhip = None\n")):
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(metadata, "version", lambda _: "2.9.0")
    findings = {finding.subject: finding.found for finding in doctor.torch()}
    assert (findings["torch"], findings["CUDA in torch"]) == ("2.9.0", found)
