"""`tianji profile`: measures the parts of a job, predicts what splits of the cores give, recommends one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from tianji_cli.conditions import check_machine
from tianji_cli.config.checks import check_devices
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import TianjiError, UsageError
from tianji_cli.files.directories import remove_stale
from tianji_cli.launch.mpi import launched
from tianji_cli.limits import usable_cores
from tianji_cli.quantities import several
from tianji_cli.runs.results import Result, check_places
from tianji_cli.runs.timeline.timeline import Timeline
from tianji_cli.telemetry.progress import Progress
from tianji_lab.profile import rewrite
from tianji_lab.profile.building import Subject
from tianji_lab.profile.document import document, read_earlier
from tianji_lab.profile.measure import measure_here
from tianji_lab.profile.measurements import Measured
from tianji_lab.profile.report import print_result, print_to_try, print_verified, print_written
from tianji_lab.profile.result import MeasuredJob, ProfileResult, find
from tianji_lab.profile.scaling import Cluster
from tianji_lab.profile.search import Candidate, check_gpus
from tianji_lab.profile.settings import as_settings, num_envs_options, split_of, split_values
from tianji_lab.profile.verify import ROUNDS, Verified, trace_once, verify

MB: Final = 1e6
NAME: Final = "profile"
"""Of the files that --out has."""


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
        cores: of each node; None for as many as were measured.
        nodes: how many; None for as many as the config has hosts.
        gpus: of each node; None for what this machine has.
    """

    config: str
    overrides: Sequence[str] = ()
    cores: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    link_mb_per_s: float | None = None
    verify: bool = False
    write: Path | None = None
    out: Path | None = None
    earlier: Path | None = None
    quiet: bool = False
    json_to: str | None = None

    @property
    def names_cluster(self) -> bool:
        """The user has said what the cores are that are to be split."""
        return not (self.cores is None and self.nodes is None and self.gpus is None)

    def cluster(self, measured_cores: int, hosts: int) -> Cluster:
        """Describe the machines whose cores are to be split: by default those measured, as many as hosts."""
        return Cluster(
            cores_per_node=self.cores or measured_cores,
            nodes=self.nodes or hosts,
            gpus_per_node=self.gpus or 0,
            link_bytes_per_s=None if self.link_mb_per_s is None else self.link_mb_per_s * MB,
        )


def profile(options: Options) -> int:
    """Measure, recommend, and prove it if asked to.

    Returns:
        The exit status, 0.

    Raises:
        UsageError: the command does not fit together; ConfigError: the config cannot be run.
        TianjiError: something could not be measured or written. What was found before that is shown.
    """
    _refuse_launchers()
    job = load_config(options.config, options.overrides)
    _refuse_populations(options.config, job)
    check_places(options.out, options.json_to)
    if options.write is not None:
        split = as_settings(split_values(split_of(job)))
        rewrite.rewritten(options.config, options.overrides, split, options.write)
    earlier = None if options.earlier is None else read_earlier(options.earlier, job)
    _check_cluster(options, job, earlier)
    remove_stale()
    subject = _subject(options, job, earlier)
    cluster = options.cluster(subject.measurements.cores, job.distribution.hosts)
    found = find(subject, cluster, anywhere=options.names_cluster)
    checks: list[Verified] = []
    timelines: dict[str, Timeline] = {}
    try:
        if options.json_to != "-":
            print_result(found, verifies=options.verify, writes=options.write is not None)
        if options.verify:
            checks += _verify(options, found)
            if options.out is not None:
                title, timeline = _trace(options, found)
                timelines[title] = timeline
    finally:  # What was found is no less true if a training fails, or nobody reads what is printed.
        _hand_over(options, found, checks, timelines)
    return 0


# -- what is checked before anything is measured -------------------------------------------------------


def _refuse_launchers() -> None:
    launch = launched()
    if launch is None or launch.size == 1:
        return
    raise UsageError(
        f"a launcher has started {launch.size} of these, and profile measures one host: start it once, "
        "without mpiexec or srun (--nodes N reckons what N hosts like this one would give)"
    )


def _refuse_populations(config: str, job: JobConfig) -> None:
    if job.population is not None:
        raise UsageError(
            f"{config}: population: its members are groups, and profile chooses how many groups there are; "
            "profile the config without [population], with --cores for those of one member"
        )


def _check_cluster(options: Options, job: JobConfig, earlier: Measured | None) -> None:
    """Refuse machines that do not fit the config, or that are not here where they have to be."""
    link = options.link_mb_per_s
    if link is not None and not 0 < link < math.inf:
        raise UsageError(f"--link-mb {link:g} is no speed; 125 is one, of 1 Gbit/s")
    usable = len(usable_cores())
    measured_cores = usable if earlier is None else earlier.measurements.cores
    cluster = options.cluster(measured_cores, job.distribution.hosts)
    check_gpus(cluster, job.distribution.device)
    if earlier is None or options.verify:
        check_machine()
        check_devices(job)
    if not options.verify:
        return
    if cluster.nodes > 1:
        raise UsageError(
            f"--verify trains on this machine alone, and {cluster.nodes} nodes are to be split: "
            "--nodes 1 would be right, or leave out --verify"
        )
    # With fewer cores than are here, what is trained with would not be what was predicted: roles that have to
    # take turns in the one would have a core each in the other.
    if cluster.cores_per_node != usable:
        right = f"--cores {usable} would be right" if options.cores else "measure here, without --from"
        raise UsageError(
            f"--verify trains on this machine, which has {several(usable, 'usable core')}, and "
            f"{cluster.cores_per_node} are to be split: {right}, or leave out --verify"
        )


# -- steps ---------------------------------------------------------------------------------------------


def _subject(options: Options, job: JobConfig, earlier: Measured | None) -> MeasuredJob:
    """Measure this machine, or take what was measured earlier."""
    subject = Subject(options.config, tuple(options.overrides), job)
    if earlier is None:
        sizes = num_envs_options(options.config, options.overrides)
        return MeasuredJob.of(subject, measure_here(subject, sizes, quiet=options.quiet))
    when = {"measured": f"earlier, and taken from {options.earlier}"}
    return MeasuredJob.of(subject, replace(earlier, environment={**earlier.environment, **when}))


def _verify(options: Options, found: ProfileResult) -> list[Verified]:
    """Train with the best split that can be run, and with others."""
    candidates = found.search.to_try(_runnable(found, "--verify").split)
    if options.json_to != "-":
        print_to_try(candidates)
    with Progress(ROUNDS * len(candidates), options.quiet, ticks=True) as progress:
        checks = verify(options.config, options.overrides, candidates, progress=progress)
    if options.json_to != "-":
        print_verified(checks)
    return checks


def _trace(options: Options, found: ProfileResult) -> tuple[str, Timeline]:
    """Train with the choice once more, and trace it."""
    with Progress(1, options.quiet, ticks=True) as progress:
        progress.begin("tracing a training with the recommended split")
        return trace_once(options.config, options.overrides, _runnable(found, "--verify"))


def _runnable(found: ProfileResult, wanted_by: str) -> Candidate:
    if found.runnable is None:
        why_not = found.recommended.why_not
        raise TianjiError(f"{wanted_by}: none of these splits can be run by this tianji: {why_not}")
    return found.runnable


# -- files ---------------------------------------------------------------------------------------------


def _hand_over(
    options: Options, found: ProfileResult, checks: Sequence[Verified], timelines: Mapping[str, Timeline]
) -> None:
    """Write every file that was asked for."""
    _result(found, checks, timelines).hand_over(out=options.out, json_to=options.json_to)
    if options.write is not None:
        choice = _runnable(found, "--write")
        rewrite.write(options.config, options.overrides, choice.settings, options.write)
        if options.json_to != "-":
            print_written(options.write, choice, is_best=choice is found.recommended)


def _result(found: ProfileResult, checks: Sequence[Verified], timelines: Mapping[str, Timeline]) -> Result:
    def draw(path: Path) -> None:
        from tianji_lab.profile import plots  # noqa: PLC0415 - imports matplotlib, a second

        choice, measured = found.recommended.prediction, found.subject.measurements
        points = [*plots.measured_points(found), *plots.verified_points(checks, choice)]
        plots.draw(found.with_actors, choice, measured.cores, points, path)

    def draw_traced(path: Path) -> None:
        from tianji_cli.runs.figure import write_figure  # noqa: PLC0415 - likewise
        from tianji_cli.runs.timeline.figure import draw_timelines  # noqa: PLC0415

        write_figure(partial(draw_timelines, timelines=timelines), 1.0, path)

    figures = {NAME: draw, "timeline": draw_traced} if timelines else {NAME: draw}
    return Result(name=NAME, document=document(found, checks), figures=figures)
