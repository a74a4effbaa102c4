"""`tianji profile`: measures the parts of a job, lists splits of the cores, and races the best of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
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
from tianji_cli.launch.ranks import launched
from tianji_cli.limits import usable_cores
from tianji_cli.quantities import several
from tianji_cli.runs.results import Result, check_places
from tianji_cli.runs.timeline.timeline import Timeline
from tianji_cli.telemetry.progress import Progress
from tianji_lab.environment import busy_share
from tianji_lab.profile import rewrite
from tianji_lab.profile.candidates import Candidates
from tianji_lab.profile.model import Cluster, Model
from tianji_lab.profile.parts import Measured, measure_parts
from tianji_lab.profile.race import RACE_S, VERIFIED_S, race, verify
from tianji_lab.profile.report import print_profile, print_written
from tianji_lab.profile.result import Profile, read_earlier
from tianji_lab.profile.split import num_envs_options, split_of
from tianji_lab.profile.trainer import Trainer

MB: Final = 1e6
NAME: Final = "profile"
"""File name stem of the results."""
SHOWN: Final = 6
"""Maximum candidates in the report."""


@dataclass(frozen=True)
class Options:
    """Options of the command line.

    Attributes:
        cores: cores of each node; None for as many as were measured.
        nodes: number of nodes; None for as many as the config has hosts.
        gpus: GPUs of each node, for another machine than this; None for this one's.
        race_s: seconds of the race.
    """

    config: str
    overrides: Sequence[str] = ()
    cores: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    link_mb_per_s: float | None = None
    race_s: float = RACE_S
    verify: bool = False
    write: Path | None = None
    out: Path | None = None
    earlier: Path | None = None
    quiet: bool = False
    json_to: str | None = None

    @property
    def names_cluster(self) -> bool:
        """Whether the user names the cores that are split."""
        return not (self.cores is None and self.nodes is None and self.gpus is None)

    def cluster(self, measured_cores: int, hosts: int) -> Cluster:
        """Describe the machines whose cores are split; the config's hosts, like the measured, by default."""
        return Cluster(
            cores_per_node=self.cores or measured_cores,
            nodes=self.nodes or hosts,
            gpus_per_node=self.gpus or 0,
            link_bytes_per_s=None if self.link_mb_per_s is None else self.link_mb_per_s * MB,
        )


def profile(options: Options) -> int:
    """Measure, list, race and recommend.

    Returns:
        The exit status, 0.

    Raises:
        UsageError: the command does not fit together; ConfigError: the config cannot be run.
        TianjiError: a measurement or a write failed.
    """
    _refuse_launchers()
    job = load_config(options.config, options.overrides)
    _refuse_populations(options.config, job)
    check_places(options.out, options.json_to)
    if options.write is not None:
        split = split_of(job).settings
        rewrite.rewritten(options.config, options.overrides, split, options.write)
    earlier = None if options.earlier is None else read_earlier(options.earlier, job)
    _check_cluster(options, job, earlier)
    remove_stale()
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(0, options.quiet, ticks=True))
        if earlier is not None and not options.verify:
            found, candidates = _profile(options, job, _as_earlier(options, earlier))
            racers = []
        else:
            trainer, measured = _measured(options, progress, stack)
            found, candidates = _profile(options, job, measured)
            is_here = found.model.cluster == replace(found.hosts, nodes=1)
            racers = candidates.to_race() if is_here else []
        timeline = None
        try:
            if racers:
                found = replace(found, race=race(trainer, racers, options.race_s, progress))
            if racers and options.verify:
                found = replace(found, verified=verify(trainer, found.racers, progress))
                if options.out is not None:
                    progress.begin("tracing a training with the recommended split")
                    timeline = trainer.train(found.recommended.settings, VERIFIED_S, traced=True).timeline
        finally:  # The results stay true if a training fails, or if the output's pipe has gone.
            stack.close()
            try:
                if options.json_to != "-":
                    print_profile(found, writes=options.write is not None)
            finally:
                _hand_over(options, found, timeline, is_whole=not racers or found.race is not None)
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
    """Refuse machines that do not fit the config, or that ``--verify`` cannot train on."""
    link = options.link_mb_per_s
    if link is not None and not 0 < link < math.inf:
        raise UsageError(f"--link-mb {link:g} is no speed; 125 is one, of 1 Gbit/s")
    usable = len(usable_cores())
    measured_cores = usable if earlier is None else earlier.measurements.cores
    cluster = options.cluster(measured_cores, job.distribution.hosts.max)
    if cluster.gpus_per_node and not job.distribution.device.startswith("cuda"):
        raise UsageError(
            f"--gpus {cluster.gpus_per_node}: the config's learners compute on {job.distribution.device!r}; "
            "--set distribution.device=cuda gives each a GPU"
        )
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
    # With fewer cores than this machine has, trainings would not match predictions: roles that take turns in
    # the prediction would have a core each in the training.
    if cluster.cores_per_node != usable:
        right = f"--cores {usable} would be right" if options.cores else "measure here, without --from"
        raise UsageError(
            f"--verify trains on this machine, which has {several(usable, 'usable core')}, and "
            f"{cluster.cores_per_node} are to be split: {right}, or leave out --verify"
        )


# -- steps ---------------------------------------------------------------------------------------------


def _as_earlier(options: Options, earlier: Measured) -> Measured:
    words = {"measured": f"earlier, and taken from {options.earlier}"}
    return replace(earlier, environment={**earlier.environment, **words})


def _measured(options: Options, progress: Progress, stack: ExitStack) -> tuple[Trainer, Measured]:
    """Measure this machine; the trainer stays for a race."""
    busy = busy_share()
    progress.begin("importing torch, building environment and model once")
    trainer = stack.enter_context(Trainer(options.config, options.overrides))
    sizes = num_envs_options(options.config, options.overrides)
    return trainer, measure_parts(trainer, sizes=sizes, busy=busy, progress=progress)


def _profile(options: Options, job: JobConfig, measured: Measured) -> tuple[Profile, Candidates]:
    """Predict all splits of the cluster."""
    measurements = measured.measurements
    cluster = options.cluster(measurements.cores, job.distribution.hosts.max)
    hosts = Cluster(measurements.cores, job.distribution.hosts.max, link_bytes_per_s=cluster.link_bytes_per_s)
    model = Model(job, measurements, cluster)
    sizes = [size for size in num_envs_options(options.config, options.overrides) if model.knows(size)]
    elsewhere = options.names_cluster and cluster != hosts
    candidates = Candidates(options.config, options.overrides, model, sizes, elsewhere=elsewhere)
    found = Profile(
        config=options.config,
        overrides=options.overrides,
        measured=measured,
        hosts=hosts,
        model=model,
        listed=[*candidates.best(SHOWN), *candidates.apart],
    )
    return found, candidates


def _hand_over(options: Options, found: Profile, timeline: Timeline | None, *, is_whole: bool) -> None:
    """Write all requested files.

    Args:
        is_whole: whether the deciding race is over; otherwise no config is written.
    """
    _result(found, timeline).hand_over(out=options.out, json_to=options.json_to)
    if options.write is None or not is_whole:
        return
    best = found.recommended
    if best.why_not is not None:
        raise TianjiError(f"--write: no split of these cores is recommended: {best.why_not}")
    rewrite.write(options.config, options.overrides, best.settings, options.write)
    if options.json_to != "-":
        print_written(options.write, best)


def _result(found: Profile, timeline: Timeline | None) -> Result:
    def draw(path: Path) -> None:
        from tianji_lab.profile.plots import draw  # noqa: PLC0415 - imports matplotlib, a second

        draw(found, path)

    def draw_traced(path: Path) -> None:
        from tianji_cli.runs.timeline.figure import draw_timelines  # noqa: PLC0415
        from tianji_cli.telemetry.figures import write_figure  # noqa: PLC0415

        assert timeline is not None
        timelines = {found.recommended.split.name: timeline}
        write_figure(partial(draw_timelines, timelines=timelines), 1.0, path)

    figures = {NAME: draw, "timeline": draw_traced} if timeline is not None else {NAME: draw}
    return Result(name=NAME, document=found.document(), figures=figures)
