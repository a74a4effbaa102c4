"""The same points as were trained, and points beyond this machine, in the simulation of `tianji profile`.

It is calibrated: what each role takes was measured on this machine, alone and with all cores at work. In it
each role has a core of its own. It says nothing of learning, and so nothing of the time to a return.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tianji_cli.config.loader import load_config
from tianji_cli.errors import UsageError
from tianji_cli.quantities import several
from tianji_lab.model.costs import Split
from tianji_lab.model.prediction import predict
from tianji_lab.model.simulation import Simulation, simulate
from tianji_lab.profile.building import Subject
from tianji_lab.profile.document import read_earlier
from tianji_lab.profile.measure import measure_here
from tianji_lab.profile.measurements import Measured
from tianji_lab.profile.result import MeasuredJob
from tianji_lab.profile.scaling import Cluster
from tianji_lab.profile.settings import as_settings, host_values
from tianji_lab.scaling.study import Study

NODES: Final = 8
"""Of the paper's cluster."""
ACTORS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
BUDGET_S: Final = 20.0
"""Of measuring: less than a profile takes, which compares numbers of environments."""
MB: Final = 1e6


@dataclass(frozen=True)
class Machines:
    """The machines that are simulated, all like this one but for their cores.

    Attributes:
        nodes: at most; None for as many as the points need, and ``NODES`` where groups vary.
    """

    nodes: int | None
    node_cores: int
    link_mb_per_s: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """A point that was simulated.

    Attributes:
        nodes: that these are on.
        came: what came of it; None: it cannot be simulated.
    """

    split: Split
    nodes: int
    came: Simulation | None
    why_not: str = ""
    extrapolated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Simulations:
    """What was simulated, and what from.

    Attributes:
        assumes: what is taken for granted, in sentences.
        warnings: what speaks against the measurements.
        measurements: as `tianji profile` writes them, so that ``--from`` can read them again.
    """

    points: tuple[Simulated, ...] = ()
    rho: float = 1.0
    assumes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    measurements: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def simulate_study(study: Study, machines: Machines, earlier: Measured | None, *, quiet: bool) -> Simulations:
    """Simulate the points of a study, and those beyond this machine, from what was measured before or is now.

    Raises:
        ProbeFailed: something could not be measured.
    """
    if study.job.distribution.one_process:
        said = "nothing was simulated: the roles of a group share one thread (transport = inproc)"
        return Simulations(warnings=(said,))
    subject = measured_job(study, earlier, quiet=quiet)
    points = tuple(_simulated(subject, split, machines) for split in splits(study, machines))
    return Simulations(
        points,
        subject.measurements.rho,
        assumptions(subject, machines, has_groups=any(point.split.groups > 1 for point in points)),
        tuple(f"in what was measured for the simulation: {said}" for said in subject.warnings),
        subject.measurements.model_dump(mode="json"),
        subject.environment,
    )


def read_profile(path: Path, study: Study) -> Measured:
    """Take measurements from a file of `tianji profile`, or of an earlier `tianji bench scaling`.

    Raises:
        UsageError: there are none, or they are of no use for these trainings.
    """
    try:
        return read_earlier(path, load_config(study.config, _reaching_far(study)))
    except UsageError:
        return read_earlier(path, study.job)


def measured_job(study: Study, earlier: Measured | None, *, quiet: bool) -> MeasuredJob:
    """Measure the parts of a study's job, or take what was measured before."""
    overrides = _reaching_far(study)
    subject = Subject(study.config, overrides, load_config(study.config, overrides))
    if earlier is None:
        earlier = measure_here(subject, (subject.num_envs,), quiet=quiet, budget_s=BUDGET_S)
    return MeasuredJob.of(subject, earlier)


def splits(study: Study, machines: Machines) -> list[Split]:
    """List the points that are trained, and those beyond."""
    trained = [setting.split for setting in study.settings] + [refused.split for refused in study.refused]
    beyond = _with_groups if study.of.axis == "groups" else _with_actors
    wanted = {*trained, *(beyond(trained[0], machines) if study.figure not in {"table1", "12b"} else ())}
    return sorted(wanted, key=lambda split: (split.groups, split.actors))


def _with_groups(like: Split, machines: Machines) -> Iterator[Split]:
    """Yield powers of two, and as many groups as there is room for."""
    of_group = replace(like, groups=1).cores
    nodes = machines.nodes or NODES
    in_a_node = machines.node_cores // of_group
    most = nodes * in_a_node if in_a_node else nodes // math.ceil(of_group / machines.node_cores)
    groups = 1
    while groups < most:
        yield replace(like, groups=groups)
        groups *= 2
    if most:
        yield replace(like, groups=most)


def _with_actors(like: Split, machines: Machines) -> Iterator[Split]:
    for actors in ACTORS:
        split = replace(like, actors=actors)
        if machines.nodes is None or _nodes(split, machines) <= machines.nodes:
            yield split


def _nodes(split: Split, machines: Machines) -> int:
    """Count the nodes on which each role of a split has a core, and each group that can is on one of them."""
    of_group = replace(split, groups=1).cores
    in_a_node = machines.node_cores // of_group
    if in_a_node:
        return math.ceil(split.groups / in_a_node)
    return split.groups * math.ceil(of_group / machines.node_cores)


def _simulated(subject: MeasuredJob, split: Split, machines: Machines) -> Simulated:
    nodes = _nodes(split, machines)
    link = machines.link_mb_per_s * MB
    costs = subject.costs(Cluster(machines.node_cores, nodes, link_bytes_per_s=link)).at(split)
    workload = subject.workload(split)
    try:
        # Who is in whose way is the model's to say: the simulation knows no cores.
        came = simulate(split, workload, costs, contention=predict(split, workload, costs).contention)
    except ValueError as error:
        return Simulated(split, nodes, None, str(error))
    return Simulated(split, nodes, came, extrapolated=costs.extrapolated)


def assumptions(subject: MeasuredJob, machines: Machines, *, has_groups: bool) -> tuple[str, ...]:
    """Describe what a simulation takes for granted."""
    measured = subject.measurements
    alike = (
        "groups are alike: one is simulated and its rates are multiplied; all that they share is the root, "
        "which averages their parameters, and the root's link"
    )
    return (
        "every role has a core of its own, and other cores at work slow it down as they do here",
        f"each piece of work takes what it took on this machine, of {several(measured.cores, 'core')}",
        f"nodes have {several(machines.node_cores, 'core')} each, and as many are taken as the roles need",
        f"the link of each node carries {machines.link_mb_per_s:g} MB/s (--link-mb names another speed)",
        *([alike] if has_groups else []),
        "whether anything is learned in that time is not simulated",
    )


def _reaching_far(study: Study) -> tuple[str, ...]:
    """Settings under which what goes between hosts is measured, too: the simulation has many."""
    hosts = max(2, study.job.distribution.hosts)
    return (*study.overrides, *as_settings(host_values(study.job, hosts)))
