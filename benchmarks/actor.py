"""Measures the environment steps a second of one actor on one core, policy inference included.

The actor is the one of `tianji train`: the role, the agent, fragments in loaned memory. The benchmark claims
each fragment and releases it at once. The environment alone and the policy alone take turns with the actor.
For Atari these two are not tianji's: ale_py's own vector environment, which stacks frames and clips rewards
by the config, and a plain pass of the same network in torch with actions drawn from its outputs.

    python benchmarks/actor.py --num-envs 64 256
    python benchmarks/actor.py --config configs/ppo_pong.toml --num-envs 8 16
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

# numpy and torch read these variables when they are imported; one core gets one thread.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import torch

from tianji_cli.config.edges import FRAGMENTS, POLICY
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.files.counters import ProductionFile
from tianji_cli.plan.graph import slot_name
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import make_plan
from tianji_cli.roles.actor.actor import Actor
from tianji_cli.wire.parameters import PublishedPolicy, policy_layout
from tianji_cli.worker.build import build_roles
from tianji_cli.worker.builder import Builder
from tianji_cli.worker.channels import open_transport
from tianji_envs.atari.games import find_game, read_options
from tianji_transports.core import EngineOptions

Loop = Callable[[int], None]
"""Function that makes so many steps of each environment."""

FRAGMENT_STEPS: Final = 64
WARM: Final = 30
"""Turns to warm up, and then as many to estimate the time of one turn."""


def steps_per_s(
    loops: Mapping[str, Loop], num_envs: int, repeats: int, seconds: float
) -> dict[str, list[float]]:
    """Measure the rates of loops, which take turns `repeats` times, for about `seconds` each."""
    turns = {}
    for name, run in loops.items():
        run(WARM)
        began = time.perf_counter()
        run(WARM)
        turns[name] = max(WARM, int(seconds / ((time.perf_counter() - began) / WARM)))
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(repeats):
        for name, run in loops.items():
            began = time.perf_counter()
            run(turns[name])
            rates[name].append(turns[name] * num_envs / (time.perf_counter() - began))
    return rates


@contextmanager
def acting_alone(builder: Builder) -> Iterator[Loop]:
    """Build an actor without other processes; yields a loop of its turns that also claims its fragments."""
    production = ProductionFile(None, 1)
    production.begin(0, 0)
    with open_transport(builder, EngineOptions()) as transport:
        actor = next(role for role in build_roles(builder, transport, production) if isinstance(role, Actor))
        model = builder.model()
        memory = memoryview(bytearray(policy_layout(model.parameter_count).nbytes))
        model.write_parameters(PublishedPolicy(memory).parameters)
        transport.publish(slot_name(POLICY, 0), memory, 10**9)
        triggers = actor.triggers

        def turns(number: int) -> None:
            for _ in range(number):
                for trigger in triggers:
                    if trigger.when():
                        trigger.do()
                while not actor.turn():
                    claim = transport.probe(FRAGMENTS)
                    if claim is not None:
                        claim.release()

        try:
            yield turns
        finally:
            actor.stop()
            actor.close()


def environment_alone(config: JobConfig, builder: Builder) -> Loop:
    """Build the environments of an actor; returns a loop of their steps."""
    num_envs = config.environment.num_envs
    environment = builder.environment(num_envs)
    shape = environment.observation_space.shape or ()
    observation = np.zeros((num_envs, *shape), environment.observation_space.dtype)
    reward, ended, cut = np.zeros(num_envs, np.float32), np.zeros(num_envs, bool), np.zeros(num_envs, bool)
    environment.reset(1, observation)
    actions = np.array([environment.action_space.sample() for _ in range(num_envs)])

    def steps(number: int) -> None:
        for _ in range(number):
            environment.step(actions, observation, reward, ended, cut)

    return steps


def policy_alone(config: JobConfig, builder: Builder) -> Loop:
    """Build the agent of an actor; returns a loop that chooses actions."""
    num_envs, space = config.environment.num_envs, builder.spaces.observation
    model = builder.model()
    agent = builder.agent(model, num_envs, 1)
    observation = np.zeros((num_envs, *(space.shape or ())), space.dtype)
    fields = {field.name: np.zeros((num_envs, *field.shape), field.dtype) for field in builder.layout.fields}

    def choices(number: int) -> None:
        for _ in range(number):
            agent.act(observation, fields)

    return choices


def ale_alone(config: JobConfig, builder: Builder) -> Loop:
    """Build ale_py's vector environment with the config's settings; returns a loop of its steps."""
    from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - an extra

    num_envs, options = config.environment.num_envs, read_options(config.environment.options)
    environment = AtariVectorEnv(
        find_game(config.environment.id or ""),
        num_envs,
        num_threads=1,
        img_height=options.size,
        img_width=options.size,
        stack_num=options.stack,
        frameskip=options.frame_skip,
        noop_max=options.noop_max,
        repeat_action_probability=options.sticky,
        full_action_space=options.full_action_space,
        reward_clipping=options.clip_rewards,
        use_fire_reset=options.fire_reset,
    )
    environment.reset(seed=1)
    draws = np.random.default_rng(1).integers(builder.spaces.action.n, size=(1024, num_envs))  # type: ignore[attr-defined]

    def steps(number: int) -> None:
        for i in range(number):
            environment.step(draws[i % len(draws)])

    return steps


def network_alone(config: JobConfig, builder: Builder) -> Loop:
    """Build the network; returns a loop of passes over random frames, each with a draw of actions."""
    num_envs, space = config.environment.num_envs, builder.spaces.observation
    model = builder.model().eval()
    frames = np.random.default_rng(1).integers(256, size=(num_envs, *(space.shape or ())), dtype=np.uint8)

    def passes(number: int) -> None:
        for _ in range(number):
            with torch.inference_mode():
                outputs = model(torch.from_numpy(frames))
                if isinstance(outputs, tuple):
                    torch.multinomial(outputs[0].softmax(-1), 1).numpy()
                else:
                    outputs.argmax(-1).numpy()

    return passes


def measure(config_name: str, num_envs: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Measure the actor and its two parts with ``num_envs`` environments."""
    overrides = [f"environment.num_envs={num_envs}", 'distribution.transport="inproc"']
    overrides.append(f"distribution.actor.send_size={FRAGMENT_STEPS}")
    if not load_config(config_name).learns_from_replay:
        fragment = num_envs * FRAGMENT_STEPS
        overrides += [f"training.rollout_steps={fragment}", f"training.minibatch_size={fragment}"]
    config = load_config(config_name, overrides)
    is_atari = config.environment.type == "atari"
    environment, policy = (ale_alone, network_alone) if is_atari else (environment_alone, policy_alone)
    with tempfile.TemporaryDirectory() as directory:
        job = Job("actor-alone", "", make_plan(config), Path(directory), Path(directory))
        builder = Builder(job, config, job.plan.processes[1], 0)
        with acting_alone(builder) as turns:
            loops = {
                "actor": turns,
                "environment": environment(config, builder),
                "policy": policy(config, builder),
            }
            rates = steps_per_s(loops, num_envs, repeats, seconds)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    # A share of each repeat, since a disturbance of one loop mostly disturbs its neighbours, too.
    shares = [
        actor * (1.0 / env + 1.0 / net)
        for actor, env, net in zip(rates["actor"], rates["environment"], rates["policy"], strict=True)
    ]
    return {
        "num_envs": num_envs,
        **{f"{name}_steps_per_s": median for name, median in medians.items()},
        **{f"{name}_spread": [min(values), max(values)] for name, values in rates.items()},
        "share_of_environment_and_policy": statistics.median(shares),
        "share_spread": [min(shares), max(shares)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/ppo_cartpole.toml")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each repeat")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    print(
        f"# {platform.processor() or platform.machine()}, core {core}, load {os.getloadavg()[0]:.1f}, "
        f"python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}"
    )
    print(f"# {arguments.config}: steps/s, median of {arguments.repeats}; share with its least and most")
    print(f"{'envs':>5} {'actor':>10} {'min':>10} {'max':>10} {'env alone':>10} {'policy':>10} {'share':>6}")
    rows = [measure(arguments.config, n, arguments.repeats, arguments.seconds) for n in arguments.num_envs]
    for row in rows:
        low, high = row["actor_spread"]
        least, most = row["share_spread"]
        print(
            f"{row['num_envs']:>5} {row['actor_steps_per_s']:>10.0f} {low:>10.0f} {high:>10.0f} "
            f"{row['environment_steps_per_s']:>10.0f} {row['policy_steps_per_s']:>10.0f} "
            f"{row['share_of_environment_and_policy']:>6.2f} ({least:.2f} to {most:.2f})"
        )
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"config": arguments.config, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
