"""Predicts the trained points, and points beyond this machine, with the model of `tianji profile`.

Each role has a core of its own. The model does not cover learning, and so predicts no time to a return.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tianji_cli.quantities import several
from tianji_cli.telemetry.progress import Progress
from tianji_lab.environment import busy_share, warnings
from tianji_lab.profile.model import Cluster, Model, Prediction
from tianji_lab.profile.parts import Measured, measure_parts
from tianji_lab.profile.split import Split
from tianji_lab.profile.trainer import Trainer
from tianji_lab.scaling.study import Study

NODES: Final = 8
"""Nodes of the paper's cluster."""
ACTORS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
MB: Final = 1e6


@dataclass(frozen=True)
class Machines:
    """Machines of the predictions, all like this one except for their cores and links.

    Attributes:
        nodes: maximum; None for as many as the points need, and ``NODES`` where groups vary.
    """

    nodes: int | None
    node_cores: int
    link_mb_per_s: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """A predicted point.

    Attributes:
        nodes: on which it was predicted.
        extrapolated: descriptions of everything that goes beyond the measurements.
    """

    prediction: Prediction
    nodes: int
    extrapolated: tuple[str, ...] = ()

    @property
    def split(self) -> Split:
        """Split of the prediction."""
        return self.prediction.split


@dataclass(frozen=True)
class Predictions:
    """Predicted points, and the measurements behind them.

    Attributes:
        assumes: assumptions, in sentences.
        warnings: against the measurements.
        measurements: in the format of `tianji profile`, so that ``--from`` can read them again.
    """

    points: tuple[Predicted, ...] = ()
    rho: float = 1.0
    assumes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    measurements: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def predict_study(study: Study, machines: Machines, earlier: Measured | None, *, quiet: bool) -> Predictions:
    """Predict the points of a study, and points beyond this machine; measures if there is nothing earlier.

    Raises:
        RunFailed: a measurement failed.
    """
    if study.job.distribution.one_process:
        words = "nothing was predicted: the roles of a group share one thread (transport = inproc)"
        return Predictions(warnings=(words,))
    measured = _measured(study, quiet=quiet) if earlier is None else earlier
    points = tuple(_predicted(study, measured, split, machines) for split in splits(study, machines))
    return Predictions(
        points,
        measured.measurements.rho,
        assumptions(measured, machines, has_groups=any(point.split.groups > 1 for point in points)),
        tuple(f"in what was measured for the model: {one}" for one in warnings(measured.measurements.busy)),
        measured.measurements.model_dump(mode="json"),
        measured.environment,
    )


def _measured(study: Study, *, quiet: bool) -> Measured:
    """Measure the parts of a study's job on this machine."""
    busy, sizes = busy_share(), (study.job.environment.num_envs,)
    with Progress(0, quiet, ticks=True) as progress, Trainer(study.config, study.overrides) as trainer:
        return measure_parts(trainer, sizes=sizes, busy=busy, progress=progress)


def splits(study: Study, machines: Machines) -> list[Split]:
    """List the splits that are trained, and those beyond this machine."""
    trained = [*(setting.split for setting in study.settings), *study.refused]
    beyond = _with_groups if study.of.axis == "groups" else _with_actors
    wanted = {*trained, *(beyond(trained[0], machines) if study.figure not in {"table1", "12b"} else ())}
    return sorted(wanted, key=lambda split: (split.groups, split.actors))


def _with_groups(like: Split, machines: Machines) -> Iterator[Split]:
    """Yield splits with powers of two of groups, and with as many groups as there is room for."""
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
    """Count the nodes that give each role of a split a core; each group that fits is on one node."""
    of_group = replace(split, groups=1).cores
    in_a_node = machines.node_cores // of_group
    if in_a_node:
        return math.ceil(split.groups / in_a_node)
    return split.groups * math.ceil(of_group / machines.node_cores)


def _predicted(study: Study, measured: Measured, split: Split, machines: Machines) -> Predicted:
    nodes = _nodes(split, machines)
    cluster = Cluster(machines.node_cores, nodes, link_bytes_per_s=machines.link_mb_per_s * MB)
    model = Model(study.job, measured.measurements, cluster)
    return Predicted(model.predict(split), nodes, tuple(model.extrapolated(split)))


def assumptions(measured: Measured, machines: Machines, *, has_groups: bool) -> tuple[str, ...]:
    """List the assumptions of a prediction."""
    alike = "groups are alike, and averaging their parameters holds none of them up"
    return (
        "every role has a core of its own, and other cores at work slow it down as they do here",
        f"each piece of work takes what it took on this machine, of "
        f"{several(measured.measurements.cores, 'core')}",
        f"nodes have {several(machines.node_cores, 'core')} each, and as many are taken as the roles need",
        f"the link of each node carries {machines.link_mb_per_s:g} MB/s (--link-mb names another speed)",
        *([alike] if has_groups else []),
        "whether anything is learned in that time is not predicted",
    )
