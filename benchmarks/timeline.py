"""Draws Figure 1 of the paper from traces: one config trained by six schedules, one below the other.

    Serial   one process does all in turn
    Gorila   actors wait for each new policy, and the learner for their samples
    SEED     actors only step; their actions come from a process that has the policy
    A3C      serial workers, each with parameters of its own; they add their changes to shared ones
    Ape-X    a replay in a process of its own draws a batch once the last one's priorities are there
    TianJi   no process waits for another as long as none gets too far ahead

All but A3C are trainings by `tianji train`. Its schedule is emulated here: the roles of the serial training
take turns in two processes, which exchange parameters without a lock. Ape-X learns by DQN, since PPO has no
priorities. A lane is a process. Of several rounds the figure shows the fastest training of each schedule.

    python benchmarks/timeline.py [--config PATH] [--set KEY=VALUE] [--seconds 3] [--rounds 3] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # Of a worker of A3C.

import numpy as np

from tianji_cli.config.loader import load_config
from tianji_cli.files.counters import ProductionFile
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.files.traces import SPAN, TracedProcess, TracePlace, TraceResult
from tianji_cli.launch.children import run_child
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import make_plan
from tianji_cli.quantities import count, share
from tianji_cli.roles.role import run_in_turns
from tianji_cli.runs.campaign import training_command
from tianji_cli.runs.timeline.chrome import read_chrome
from tianji_cli.runs.timeline.figure import draw_timelines
from tianji_cli.runs.timeline.timeline import Lane, Timeline, read_timeline
from tianji_cli.telemetry.figures import write_figure
from tianji_cli.wire.messages import MOST_SPANS, SpansOf, Trace
from tianji_cli.worker.build import build_roles
from tianji_cli.worker.builder import Builder
from tianji_cli.worker.channels import open_transport
from tianji_cli.worker.tracer import Tracer
from tianji_lab.environment import busy_share, cpu_model
from tianji_transports.core import EngineOptions

SERIAL: Final = ('distribution.transport="inproc"', 'distribution.mode="sync"', "distribution.actor.num=1")
A3C: Final = "A3C (schedule emulated)"
WAYS: Final = {
    "Serial": SERIAL,
    "Gorila": ('distribution.mode="sync"',),
    "SEED": ('distribution.inference={ device = "cpu" }',),
    A3C: SERIAL,
    "Ape-X": (
        'agent={ type = "dqn", priorities = true }',
        "training={ batch_size = 128, replay_ratio = 12.0, warmup_steps = 512, publish_every = 16 }",
        'distribution.buffer={ colocate = false, sampler = "prioritised", priority_updates = "sync" }',
    ),
    "TianJi": (),
}
"""Settings of each schedule; SEED is left out where there are no such settings."""
WORKERS: Final = 2
STARTS_S: Final = 3.0
"""Seconds of training that are not traced."""
END_S: Final = 60.0


def train(options: argparse.Namespace, way: str, place: Path) -> tuple[float, Timeline] | None:
    """Train by a schedule; returns env steps a second and the timeline, None without such settings."""
    ends = f"experiment.stop={{ wall_s = {options.seconds + STARTS_S:g} }}"
    words = ("--name", way, "--out", str(place), "--quiet", "--trace", f"{options.seconds:g}")
    command = training_command([*options.set, ends, *WAYS[way]], options.config, *words)
    ended, _ = run_child(command, patience_s=END_S)
    if ended.status == 2 and way == "SEED":  # The config is refused.
        print(f"SEED is left out: {ended.last_words}", flush=True)
        return None
    if ended.status != 0:
        raise SystemExit(f"the training {way} failed:\n{ended.last_words}")
    run = RunDirectory.find(way, place)
    return json.loads(run.summary.read_text())["produced_per_s"], read_chrome(run.trace)


def worker_builder(options: argparse.Namespace, number: int, place: Path) -> Builder:
    """Build the parts of a worker of A3C, which are those of a serial training."""
    config = load_config(options.config, [*options.set, *SERIAL, f"experiment.seed={number + 1}"])
    (directory := place / f"worker-{number}").mkdir()
    job = Job(f"a3c-{number}-{place.name}", "", make_plan(config), directory, directory)
    return Builder(job, config, job.plan.processes[1], 0)


def work(number: int, options: argparse.Namespace, place: Path, shared: Any, rates: Any, start: Any) -> None:
    """Be a worker of A3C: train serially, exchange parameters after each rollout, and leave the spans."""
    builder, counters = worker_builder(options, number, place), ProductionFile(None, 1)
    counters.begin(0, 0)
    with open_transport(builder, EngineOptions()) as transport:
        roles = build_roles(builder, transport, counters)
        learner: Any = roles[-1]
        publish, model = learner.publish_policy, learner._embryo.model
        parameters = np.frombuffer(shared, np.float32)
        before, own = parameters.copy(), np.empty_like(parameters)
        model.read_parameters(before)

        def exchange() -> bool:
            model.write_parameters(own)
            np.add(parameters, own - before, out=parameters)  # Others may do so, too (Recht et al., 2011).
            before[:] = parameters
            model.read_parameters(before)
            return bool(publish())

        def turns_until(moment_s: float) -> int:
            handler: Any = SimpleNamespace(handle=lambda: time.monotonic() < moment_s)
            run_in_turns(roles, handler, sleeper.sleep)
            return counters.read(0).produced

        def keep(message: object) -> None:
            if isinstance(message, SpansOf):
                TracePlace(place).append_spans(number, message.spans)

        learner.publish_policy, sleeper = exchange, SimpleNamespace(sleep=transport.wait)
        control: Any = SimpleNamespace(send=keep)
        tracer = Tracer(control, number, shares_clock=True)
        start.wait()
        began_s = time.monotonic() + STARTS_S
        made = -turns_until(began_s)
        tracer.begin(Trace(trace=1, until_s=1e9, most_spans=MOST_SPANS), roles, sleeper, [])
        made += turns_until(began_s + options.seconds)
        tracer.end()
        rates[2 * number : 2 * number + 2] = began_s, made / options.seconds


def emulate_a3c(options: argparse.Namespace, place: Path) -> tuple[float, Timeline]:
    """Train by workers that exchange parameters; returns what ``train`` does."""
    builder, spawn = worker_builder(options, WORKERS, place), multiprocessing.get_context("spawn")
    shared = spawn.RawArray("f", builder.model().parameter_count)
    builder.model().write_parameters(np.frombuffer(shared, np.float32))
    rates, start = spawn.RawArray("d", 2 * WORKERS), spawn.Barrier(WORKERS)
    given = options, place, shared, rates, start
    workers = [spawn.Process(target=work, args=(number, *given)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise SystemExit(f"a worker of A3C ended with status {worker.exitcode}")
    process = TracedProcess(rank=0, title="worker", roles=builder.process.roles, host="", cores=())
    processes = tuple(process.model_copy(update={"rank": rank}) for rank in range(WORKERS))
    began_s = max(rates[::2])
    result = TraceResult(began_s=began_s, ended_s=began_s + options.seconds, processes=processes)
    return sum(rates[1::2]), read_timeline(A3C, TracePlace(place), result)


def by_process(timeline: Timeline) -> Timeline:
    """Put the roles of each process into one lane."""
    lanes: list[Lane] = []
    for process in timeline.processes:
        if own := [lane for lane in timeline.lanes if lane.process is process]:
            spans = np.concatenate([np.array(lane.spans, SPAN) for lane in own])
            spans = spans[np.lexsort((-spans["ended_s"], spans["began_s"]))]
            is_worker = {"actor", "learner"} <= {lane.role.partition(" ")[0] for lane in own}
            name = f"worker {len(lanes)}" if is_worker else own[-1].role
            lanes.append(Lane(name, process, spans, timeline.seconds))
    return Timeline(timeline.name, timeline.seconds, timeline.processes, lanes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default=str(Path(__file__).with_suffix(".toml")))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each training that are traced")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="of figure-1.png")
    options = parser.parse_args()
    print(f"# machine: {cpu_model()}\n# busy before: {share(busy_share())}", flush=True)
    fastest: dict[str, tuple[float, Timeline]] = {}
    for way in [*WAYS] * options.rounds:
        with tempfile.TemporaryDirectory() as place:
            found = (emulate_a3c if way == A3C else partial(train, way=way))(options, place=Path(place))
        if found is not None:
            per_s, timeline = found[0], by_process(found[1])
            busy = ", ".join(f"{lane.role} {share(lane.busy)}" for lane in timeline.lanes)
            print(f"{way:24} {count(per_s)} env steps/s; busy: {busy}", flush=True)
            fastest[way] = max(fastest.get(way, (0.0, timeline)), (per_s, timeline), key=lambda one: one[0])
    timelines = {}
    for way, (per_s, timeline) in fastest.items():
        idle = 1.0 - float(np.mean([lane.busy for lane in timeline.lanes]))
        timelines[f"{way}: {count(per_s)} env steps/s, {share(idle)} idle"] = timeline
    options.out.mkdir(parents=True, exist_ok=True)
    write_figure(partial(draw_timelines, timelines=timelines), 1.0, options.out / "figure-1.png")


if __name__ == "__main__":
    main()
