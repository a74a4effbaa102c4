"""What a probe holds: the sides it has built, by key, and the fragments it has recorded for them."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from pathlib import Path

import torch

from tianji_algos.core import RolloutEmbryo
from tianji_cli.cluster.assembly import Assembly
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.data import published
from tianji_cli.data.batches import BatchLayout
from tianji_cli.data.replay import PRIORITY
from tianji_cli.errors import UsageError
from tianji_cli.profiling.averaging import average
from tianji_cli.profiling.probe_roles import Recorded
from tianji_cli.profiling.protocol import Answer, Average, Prepare, Prepared, Run, Step
from tianji_cli.profiling.recording import record
from tianji_cli.profiling.sides import ActorSide, LearnerSide, TimedAssembly


class Workbench:
    """Does what a probe is asked for, one step after another."""

    def __init__(self) -> None:
        self._sides: dict[str, ActorSide | LearnerSide] = {}
        self._recorded: dict[str, list[Recorded]] = {}
        self._cores = tuple(os.sched_getaffinity(0))

    def do(self, step: Step) -> Answer:
        """Do one step.

        Raises:
            UsageError: nothing of this key was prepared.
            Exception: whatever roles and libraries raise.
        """
        match step:
            case Prepare():
                return self._prepare(step)
            case Run():
                return self._run(step)
            case Average():
                pin(step.cores or self._cores)
                return average(step)

    def close(self) -> None:
        """Free what the sides hold."""
        while self._sides:
            _key, side = self._sides.popitem()
            side.close()

    def _prepare(self, step: Prepare) -> Prepared:
        began = time.perf_counter()
        if step.key in self._sides:
            self._sides.pop(step.key).close()
            gc.unfreeze()
        # As in a worker, whose collector never sees what was there before its roles.
        gc.collect()
        gc.freeze()
        torch.set_num_threads(1)
        config, directory = load_config(step.config, step.overrides), Path(step.directory)
        side: ActorSide | LearnerSide
        if step.role == "actor":
            side = ActorSide(config, directory)
        else:
            side = LearnerSide(config, directory, self._fragments(config, directory))
        self._sides[step.key] = side
        return _facts(side.assembly, config, began)

    def _run(self, step: Run) -> Answer:
        side = self._sides.get(step.key)
        if side is None:
            raise UsageError(f"nothing was prepared as {step.key!r}")
        pin(step.cores or self._cores)
        torch.set_num_threads(step.threads)
        return side.run(step)

    def _fragments(self, config: JobConfig, directory: Path) -> list[Recorded]:
        """Record fragments, or find those of a config that makes the same ones."""
        parts = (config.environment, config.agent, config.model)
        made_by = "\n".join(part.model_dump_json() for part in parts)
        key = f"{made_by}\n{config.distribution.actor.send_size}"
        if key not in self._recorded:
            side = ActorSide(config, directory)
            try:
                self._recorded[key] = record(side, config)
            finally:
                side.close()
        return self._recorded[key]


def pin(cores: tuple[int, ...]) -> None:
    """Tie this process to cores, with those threads that libraries have started already."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # It has ended since.
            os.sched_setaffinity(int(thread), cores)


def _facts(assembly: TimedAssembly, config: JobConfig, began: float) -> Prepared:
    model = assembly.model()
    batch_bytes = 0
    if config.learns_from_replay:
        rho = config.replay_settings.replay_ratio
        fields = [field.name for field in assembly._agent_fields if field.name != PRIORITY]
        batch_bytes = BatchLayout.of(assembly.layout, config.replay_settings.batch_size, fields).nbytes
    else:
        embryo = Assembly.embryo(assembly, model)
        assert isinstance(embryo, RolloutEmbryo)
        rho = embryo.uses_per_sample
    return Prepared(
        seconds=time.perf_counter() - began,
        fragment_bytes=assembly.layout.nbytes,
        batch_bytes=batch_bytes,
        policy_bytes=published.nbytes(model.parameter_count),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        rho=rho,
    )
