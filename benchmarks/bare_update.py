"""Measures the updates a second of an update rule with ready batches and no other work.

    python benchmarks/bare_update.py [--config PATH] [--seconds S] [--cores N ...] [--set KEY=VALUE ...]

With ``--busy`` it steps the environments instead, like an actor that never waits, until it is killed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time

# numpy and torch read these variables when they are imported; a caller with more cores sets them.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
import torch
from replay import builder_of, fields_of, fill

from tianji_algos.core import ReplayEmbryo
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.worker.builder import Builder

READY = 64
"""Number of batches, used in turn: more than the nearest caches hold."""
CAPACITY = 20_000
ROUND = 50
"""Updates between two looks at the clock, and to warm up."""


def updates_per_s(builder: Builder, config: JobConfig, seconds: float) -> float:
    """Update for ``seconds``; returns updates a second."""
    training, fields = config.replay_settings, fields_of(builder)
    settings = ReplaySettings(CAPACITY, "uniform", training.n_step, training.gamma, memory="ram")
    replay = Replay(builder.layout, settings, agent_fields=fields, seed=1)
    fill(replay, np.random.default_rng(1))
    ready = [BatchArrays(BatchLayout.of(builder.layout, training.batch_size, fields)) for _ in range(READY)]
    for arrays in ready:
        replay.sample(arrays)
    embryo = builder.trained_embryo()  # It computes on the config's device.
    assert isinstance(embryo, ReplayEmbryo)
    batches = itertools.cycle([arrays.batch for arrays in ready])
    for batch in itertools.islice(batches, ROUND):
        embryo.update(batch)
    began, updates, taken = time.perf_counter(), 0, 0.0
    while taken < seconds:
        for batch in itertools.islice(batches, ROUND):
            embryo.update(batch)
        updates += ROUND
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken = time.perf_counter() - began
    return updates / taken


def step_environments(builder: Builder, config: JobConfig) -> None:
    """Choose actions and step the environments, for ever."""
    number = config.environment.num_envs
    agent, environment = builder.agent(builder.model(), number, 1), builder.environment(number)
    row = {spec.name: np.zeros((number, *spec.shape), spec.dtype) for spec in builder.layout.fields}
    environment.reset(1, row["observation"])
    while True:
        actions = agent.act(row["observation"], row)
        environment.step(actions, row["observation"], row["reward"], row["terminated"], row["truncated"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/dqn_cartpole.toml")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--cores", type=int, nargs="+", default=[min(os.sched_getaffinity(0))])
    parser.add_argument("--busy", action="store_true", help="step environments instead")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    os.sched_setaffinity(0, options.cores)
    torch.set_num_threads(len(options.cores))
    config = load_config(options.config, options.set)
    builder = builder_of(config)
    if options.busy:
        step_environments(builder, config)
    print(updates_per_s(builder, config, options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
