"""What a probe holds: the sides it has built, by key, and the fragments it has recorded for them."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
from torch import distributed

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import UsageError
from tianji_cli.wire import published
from tianji_lab.profile.probe.roles import Recorded
from tianji_lab.profile.probe.settings import replay_settings
from tianji_lab.profile.probe.protocol import Answer, Average, Averaged, Prepare, Prepared, Run, Step
from tianji_lab.profile.probe.sides import ActorSide, LearnerSide
from tianji_lab.profile.probe.timed_assembly import GROUP, TimedAssembly

HANDFUL: Final = 4
"""Fragments that are recorded, unless a rollout has more."""
RECORDED_BYTES: Final = 64 << 20
"""Of all recorded fragments; one is recorded however large it is."""
FIRST: Final = 3
"""Averagings that do not count: connections are made, memory is touched."""


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
        for key in self._sides.keys() - set(step.keep):
            self._sides.pop(key).close()
            gc.unfreeze()
        # As in a worker, whose collector never sees what was there before its roles.
        gc.collect()
        gc.freeze()
        torch.set_num_threads(1)
        config, directory = load_config(step.config, step.overrides), Path(step.directory)
        if step.role == "actor":
            actor = self._sides[step.key] = ActorSide(config, directory)
            return _facts(actor.assembly, None, began)
        recorded = self._fragments(config, directory)
        if config.learns_from_replay:
            settings = replay_settings(config, recorded[0].nbytes)
            config = load_config(step.config, (*step.overrides, *settings))
        learner = self._sides[step.key] = LearnerSide(config, directory, recorded)
        return _facts(learner.assembly, learner.rho, began)

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
                per_rollout = 1 if config.learns_from_replay else config.fragments_per_rollout
                most = max(1, RECORDED_BYTES // side.assembly.layout.nbytes)
                self._recorded[key] = side.record(min(max(HANDFUL, per_rollout), most))
            finally:
                side.close()
        return self._recorded[key]


def pin(cores: tuple[int, ...]) -> None:
    """Tie this process to cores, with those threads that libraries have started already."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # It has ended since.
            os.sched_setaffinity(int(thread), cores)


def average(step: Average) -> Averaged:
    """Take part in averaging over loopback, as learners that share a batch will average their gradients.

    Raises:
        RuntimeError: another process did not take part.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # It would look for an interface of the host's name.
    timeout = timedelta(seconds=step.timeout_s)
    store = distributed.FileStore(step.store, step.size)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    distributed.init_process_group("gloo", store=store, rank=step.rank, world_size=step.size, timeout=timeout)
    seconds, values = [], torch.zeros(step.values)
    try:
        for _ in range(FIRST + step.rounds):
            began = time.perf_counter()
            distributed.all_reduce(values)
            values /= step.size
            seconds.append(time.perf_counter() - began)
    finally:
        distributed.destroy_process_group()
    return Averaged(seconds=tuple(seconds[FIRST:]))


def _facts(assembly: TimedAssembly, rho: float | None, began: float) -> Prepared:
    model = assembly.role_model
    return Prepared(
        seconds=time.perf_counter() - began,
        fragment_bytes=assembly.layout.nbytes,
        batch_bytes=assembly.supply(GROUP).batch_bytes,
        policy_bytes=published.nbytes(model.parameter_count),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        rho=rho,
    )
