"""Measures the cost of a full replay: time to draw a batch and to update its priorities, and memory.

Fragments are those of the config, with contents like CartPole's. ``sample`` is a whole batch: drawing, then
gathering observations, n-step rewards and all else. ``both`` is a sample and the update of its priorities.
Memory is all that a replay keeps, compared with the size of its observations (stored once), actions, rewards
and two flags.

    python benchmarks/replay.py [--capacity STEPS] [--batch SAMPLES ...] [--samplers NAME ...] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# numpy reads these variables when it is imported; one core gets one thread.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import SAMPLERS, JobConfig
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import make_plan
from tianji_cli.roles.buffer.replay.replay import PRIORITY, Replay, ReplaySettings
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout, common_fields
from tianji_cli.worker.builder import Builder

MOST_US = 1000.0
"""Maximum microseconds of prioritised sampling and update of 512 out of a million."""
MOST_BYTES = 1.3
STORED = ("observation", "reward", "terminated", "truncated")
EPISODE_STEPS = 200
TURNS = 10


def fragment_of_noise(layout: FragmentLayout, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Make the bytes of a fragment whose episodes are about as long as CartPole's."""
    memory = np.zeros(layout.nbytes, np.uint8)
    fields = Fragment(layout, memory.data).fields
    fields["observation"][...] = rng.normal(size=fields["observation"].shape)
    fields["reward"][...] = 1.0
    ended = rng.random(fields["terminated"].shape) < 1 / EPISODE_STEPS
    fields["terminated"][...] = ended
    fields["mask"][...] = True
    fields["mask"][1:] = ~ended[:-1]
    return memory


def fill(replay: Replay, rng: np.random.Generator) -> None:
    """Accept fragments of one actor until the replay is full and drops the oldest."""
    contents = [fragment_of_noise(replay.layout, rng) for _ in range(16)]
    before = 0
    for sequence in range(replay.ring.live + 2):
        memory = replay.free
        memory[:] = contents[sequence % len(contents)].data
        fragment = Fragment(replay.layout, memory)
        fragment.begin(job=1, actor=0, incarnation=0, sequence=sequence, before=before, version=sequence)
        fragment.header["samples"] = np.count_nonzero(fragment.fields["mask"])
        before += int(fragment.header["samples"])
        replay.accept()


def microseconds(run: Callable[[], None], number: int) -> list[float]:
    """Time each of ``number`` calls, in microseconds."""
    taken = []
    for _ in range(number):
        began = time.perf_counter_ns()
        run()
        taken.append((time.perf_counter_ns() - began) / 1e3)
    return taken


def timings(replay: Replay, arrays: BatchArrays, rng: np.random.Generator, number: int) -> dict[str, Any]:
    """Time the parts in turns; returns medians in microseconds."""
    size = arrays.layout.size
    errors = rng.exponential(size=(64, size)).astype(np.float32)

    def update() -> None:
        replay.update_priorities(arrays.key, errors[rng.integers(64)])

    def both() -> None:
        replay.sample(arrays)
        update()

    def gather() -> None:
        places = arrays.key % replay.ring.slot_steps
        replay.transitions.gather(places, *np.divmod(places, replay.ring.steps_each), arrays)

    parts = {
        "draw": lambda: replay.sampler.draw(arrays.key, arrays.batch.weight),
        "gather": gather,
        "sample": lambda: replay.sample(arrays),
        "update": update,
        "both": both,
    }
    for _ in range(20):
        both()
    taken: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(TURNS):
        for name, run in parts.items():
            taken[name] += microseconds(run, number // TURNS)
    row: dict[str, Any] = {f"{name}_us": statistics.median(values) for name, values in taken.items()}
    row["both_p95_us"] = float(np.percentile(taken["both"], 95))
    return row


def stored_bytes(layout: FragmentLayout, fields: tuple[str, ...]) -> int:
    """Bytes of one step's observation, action, reward and flags."""
    specs = (spec for spec in layout.fields if spec.name in {*STORED, *fields})
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)


def builder_of(config: JobConfig) -> Builder:
    """Make the builder of the learner's process."""
    plan = make_plan(config)
    nowhere = Path(tempfile.gettempdir()) / "no-run"
    return Builder(Job("alone", "", plan, nowhere, nowhere), config, plan.processes[1], 0)


def fields_of(builder: Builder) -> tuple[str, ...]:
    """Names of the agent's fields that a batch carries."""
    common = {spec.name for spec in common_fields(builder.spaces.observation)}
    return tuple(spec.name for spec in builder.layout.fields if spec.name not in common | {PRIORITY})


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    config = load_config(options.config, options.set)
    builder, training = builder_of(config), config.replay_settings
    layout, fields = builder.layout, fields_of(builder)
    rows = []
    for sampler in options.samplers:
        settings = ReplaySettings(options.capacity, sampler, training.n_step, training.gamma, memory="ram")
        replay = Replay(layout, settings, agent_fields=fields, seed=1)
        rng = np.random.default_rng(1)
        fill(replay, rng)
        held = replay.ring.live * replay.ring.steps_each
        for size in options.batch:
            arrays = BatchArrays(BatchLayout.of(layout, size, fields))
            rows.append(
                {
                    "sampler": sampler,
                    "batch": size,
                    "capacity": held,
                    **timings(replay, arrays, rng, options.number),
                    "mb": replay.nbytes / 1e6,
                    "times_stored": replay.nbytes / (held * stored_bytes(layout, fields)),
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/dqn_cartpole.toml")
    parser.add_argument("--capacity", type=int, default=1_000_000, help="env steps")
    parser.add_argument("--batch", type=int, nargs="+", default=[512])
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS.built_in))
    parser.add_argument("--number", type=int, default=2000, help="of calls timed, of each part")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    environment = {
        "machine": f"{platform.machine()}, core {core}, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    for key, value in environment.items():
        print(f"# {key}: {value}")
    print("# median us")
    columns = ("draw_us", "gather_us", "sample_us", "update_us", "both_us", "both_p95_us")
    names = "".join(f"{name.removesuffix('_us'):>9}" for name in columns)
    print(f"{'sampler':12} {'batch':>6} {'capacity':>9}{names} {'MB':>8} {'x stored':>9}")
    rows = measure(options)
    for row in rows:
        cells = "".join(f"{row[name]:9.1f}" for name in columns)
        print(
            f"{row['sampler']:12} {row['batch']:6} {row['capacity']:9}{cells} "
            f"{row['mb']:8.1f} {row['times_stored']:9.3f}"
        )
    slow = [row for row in rows if row["sampler"] == "prioritised" and row["both_us"] > MOST_US]
    large = [row for row in rows if row["times_stored"] > MOST_BYTES]
    print(f"# prioritised sample and update within {MOST_US:g} us: {'NO' if slow else 'yes'}")
    print(f"# memory within {MOST_BYTES:g} times what is stored: {'NO' if large else 'yes'}")
    if options.json:
        Path(options.json).write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
    return 1 if slow or large else 0


if __name__ == "__main__":
    sys.exit(main())
