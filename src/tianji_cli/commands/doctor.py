"""`tianji doctor`: looks for problems that keep a training from running on this machine. No torch."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil
from packaging.requirements import Requirement

from tianji_cli.commands.options import Json
from tianji_cli.conditions import LOOKS, Finding, Grade, judged
from tianji_cli.files.directories import remove_stale
from tianji_cli.launch.ranks import LEFT_OVER, left_over
from tianji_cli.limits import cores_granted
from tianji_cli.telemetry.machine import cores
from tianji_cli.telemetry.progress import Progress
from tianji_cli.telemetry.tables import print_table, write_json
from tianji_transports import registry as transports
from tianji_transports.errors import TransportError

NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia")
GIB: Final = 1 << 30


def examine(json_to: Json = None) -> int:
    """Print all findings; the exit status is 1 if a problem would keep a training from running.

    Example: tianji doctor --json -
    """
    findings: list[Finding] = []
    with Progress(len(_LOOKS), json_to == "-", ticks=True, plain=False) as progress:
        for look in _LOOKS:
            progress.begin(look.__name__.replace("_", " "))
            findings += look()
            progress.done()
    return show_findings(findings, "this machine", "nothing keeps a training from running here", json_to)


def show_findings(findings: Sequence[Finding], title: str, fine: str, json_to: str | None) -> int:
    """Print findings, and remedies for those that are not ok.

    Args:
        fine: text to print if all are ok.

    Returns:
        The exit status: 1 if one is a problem.
    """
    problems = [finding for finding in findings if finding.grade == "problem"]
    document = {"findings": [asdict(finding) for finding in findings], "problems": len(problems)}
    if write_json(document, json_to):
        rows = [(finding.subject, finding.grade, finding.found) for finding in findings]
        print_table(("what", "", "found"), rows, title)
        for finding in findings:
            if finding.grade != "ok":
                sys.stdout.write(
                    f"\n{finding.grade}: {finding.subject}: {finding.found}\n    {finding.remedy}\n"
                )
        if all(finding.grade == "ok" for finding in findings):
            sys.stdout.write(f"\n{fine}\n")
    return 1 if problems else 0


def stale() -> Iterator[Finding]:
    """Remove the remains of killed jobs."""
    removed = remove_stale()
    yield Finding("left behind by killed jobs", f"removed: {', '.join(removed)}" if removed else "nothing")


def system() -> Iterator[Finding]:
    """Python, operating system, cores and memory."""
    yield Finding("tianji", metadata.version("tianji"))
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("system", platform.platform())
    remedy = "allow two at least (taskset, docker run --cpus): actor and learner will take turns"
    yield judged("cores", cores(), cores_granted() >= 2, remedy)
    memory = psutil.virtual_memory()
    found = f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f}"
    remedy = "each process takes about 0.2 GiB; free some or use fewer actors"
    yield judged("memory", found, memory.available >= GIB, remedy)


def torch() -> Iterator[Finding]:
    """Version and device of the installed torch, read without importing it."""
    version = _version("torch")
    if version is None:
        yield Finding("torch", "not installed", "problem", "pip install torch")
        return
    yield Finding("torch", version)
    cuda = _cuda_of_torch()
    yield Finding("CUDA in torch", "built without it" if cuda is None else f"built for {cuda}")
    yield from gpus(wanted=cuda is not None)


def _cuda_of_torch() -> str | None:
    """Read torch's CUDA version from its own file; None if it is built without CUDA."""
    # The version of torch is not enough: the usual build is for CUDA on some systems and not on others.
    package = importlib.util.find_spec("torch")
    if package is None or package.origin is None:
        return None
    text = Path(package.origin).with_name("version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b.*=\s*['\"](.+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def gpus(*, wanted: bool, driver: Path = NVIDIA_DRIVER) -> Iterator[Finding]:
    """GPUs of the NVIDIA driver."""
    if not (driver / "version").is_file():
        # WSL2 has a driver elsewhere.
        yield Finding("GPUs", f"no NVIDIA driver in {driver}: without one, training runs on the CPU")
        return
    words = (driver / "version").read_text(encoding="utf-8").split("  ")
    number = len(list((driver / "gpus").glob("*")))
    found = f"{number}; driver {words[min(1, len(words) - 1)].strip()}"
    remedy = "install torch built for CUDA, and train with --device cuda"
    yield judged("GPUs", found, wanted or not number, remedy)


def packages() -> Iterator[Finding]:
    """Installed versions of the dependencies."""
    extras = ("", *(metadata.metadata("tianji").get_all("Provides-Extra") or ()))
    for requirement in map(Requirement, metadata.requires("tianji") or ()):
        extra = next((extra for extra in extras if _applies(requirement, extra)), "dev")
        if requirement.name == "torch" or extra == "dev":
            continue
        names = _asked_for(requirement)
        lacking = [name for name in names if _version(name) is None]
        if not lacking:
            yield from (Finding(name, _version(name) or "") for name in names)
        elif extra:
            yield Finding(", ".join(lacking), f"not installed; optional: pip install 'tianji[{extra}]'")
        else:
            yield Finding(requirement.name, "not installed", "problem", f"pip install {requirement.name}")


def _applies(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement applies on this machine, with an extra, or with none ("")."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _asked_for(requirement: Requirement) -> list[str]:
    """List the packages of a requirement; "gymnasium[box2d]" asks for those of gymnasium's extra."""
    if not requirement.extras or _version(requirement.name) is None:
        return [requirement.name]
    below = [Requirement(text) for text in metadata.requires(requirement.name) or ()]
    wanted = requirement.extras
    return [
        each.name
        for each in below
        if not _applies(each, "") and any(_applies(each, extra) for extra in wanted)
    ]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def engines() -> Iterator[Finding]:
    """Whether each transport loads."""
    for engine in transports.available():
        subject = f"transport {engine.name}"
        if engine.error is None:
            yield Finding(subject, "loads")
        else:
            grade: Grade = "problem" if engine.name == "shm" else "warning"
            yield Finding(subject, "does not load", grade, str(engine.error))


def launchers() -> Iterator[Finding]:
    """Warn of variables that an MPI launcher has left over."""
    if names := left_over():
        yield Finding(
            "MPI launcher", f"{', '.join(names)}: {LEFT_OVER}", "warning", f"unset {' '.join(names)}"
        )


def ucx() -> Iterator[Finding]:
    """Transports and devices of UCX on this machine, and its environment variables."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("UCX_"))
    try:
        from tianji_transports.ucx.library import describe  # noqa: PLC0415 - an extra, and takes 0.3 s

        found = describe()
    except ImportError as error:
        yield Finding("UCX", f"not to be had ({error}); optional: pip install 'tianji[ucx]'")
        return
    except TransportError as error:
        remedy = "unset the UCX_ variables that are not meant" if settings else "reinstall it"
        yield Finding("UCX", str(error), "warning", remedy)
        return
    yield Finding("UCX", found.version)
    yield Finding("UCX variables", ", ".join(settings) or "none set")
    yield Finding("UCX inside a host", ", ".join(found.local) or "nothing but TCP")
    yield Finding("UCX between hosts", ", ".join(found.remote) or "nothing")
    adapters = ", ".join(found.infiniband) or "no device"
    yield Finding("InfiniBand", adapters)


_LOOKS: Final[Sequence[Callable[[], Iterator[Finding]]]] = (
    stale,
    system,
    *LOOKS,
    torch,
    engines,
    launchers,
    ucx,
    packages,
)
