"""How many environment steps a second one actor makes on one core, policy inference included.

The actor is the one of `tianji train`: the role, the agent, fragments in loaned memory. Whoever claims
its fragments gives them back at once. Beside it stand the environment alone and the policy alone.

    python benchmarks/actor.py --num-envs 64 256
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before numpy and torch read them: one core is one thread.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import torch

from tianji_cli.cluster.assembly import Assembly
from tianji_cli.cluster.graph import FRAGMENTS, POLICY, slot_name
from tianji_cli.cluster.parts import Job
from tianji_cli.cluster.plan import make_plan
from tianji_cli.config.loader import load_config
from tianji_cli.data.production import ProductionFile
from tianji_cli.roles.actor import Actor


def steps_per_s(run: Callable[[int], None], steps_each: int, repeats: int, seconds: float) -> list[float]:
    """Rates of `repeats` runs of about `seconds` each; `run(n)` makes n times `steps_each` steps."""
    run(50)
    began = time.perf_counter()
    run(50)
    number = max(50, int(seconds / ((time.perf_counter() - began) / 50)))
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        run(number)
        rates.append(number * steps_each / (time.perf_counter() - began))
    return rates


def measure(config_name: str, num_envs: int, repeats: int, seconds: float) -> dict[str, Any]:
    overrides = [f"environment.num_envs={num_envs}", 'distribution.transport="inproc"']
    overrides += [f"training.rollout_steps={num_envs * 64}", "distribution.actor.send_size=64"]
    config = load_config(config_name, overrides)
    plan = make_plan(config)
    with tempfile.TemporaryDirectory() as directory:
        job = Job("actor-alone", config, plan, Path(directory), resumed=False)
        production = ProductionFile(job.production, plan.num_actors)
        assembly = Assembly(job, plan.processes[1], 0)
        with assembly.transport() as transport:
            actor = next(role for role in assembly.roles(transport) if isinstance(role, Actor))
            parameters = np.zeros(assembly.model().parameter_count, np.float32)
            assembly.model().write_parameters(parameters)
            transport.publish(slot_name(POLICY, 0), parameters.data.cast("B"), 10**9)
            triggers = actor.triggers

            def whole(number: int) -> None:
                for _ in range(number):
                    for trigger in triggers:
                        if trigger.when():
                            trigger.do()
                    while not actor.turn():
                        claim = transport.probe(FRAGMENTS)
                        if claim is not None:
                            claim.release()

            environment = assembly.environment(num_envs)
            shape = environment.observation_space.shape or ()
            observation = np.zeros((num_envs, *shape), environment.observation_space.dtype)
            reward, ended, cut = (
                np.zeros(num_envs, np.float32),
                np.zeros(num_envs, bool),
                np.zeros(num_envs, bool),
            )
            environment.reset(1, observation)
            actions = np.array([environment.action_space.sample() for _ in range(num_envs)])

            def stepping(number: int) -> None:
                for _ in range(number):
                    environment.step(actions, observation, reward, ended, cut)

            agent = assembly.agent(assembly.model(), num_envs, 1)
            agent.adopt(parameters)
            fields = {
                field.name: np.zeros((num_envs, *field.shape), field.dtype)
                for field in assembly.layout.fields
            }

            def acting(number: int) -> None:
                for _ in range(number):
                    agent.act(observation, fields)

            rates = {
                name: steps_per_s(run, num_envs, repeats, seconds)
                for name, run in (("actor", whole), ("environment", stepping), ("policy", acting))
            }
            actor.stop()
            production.remove()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ideal = 1.0 / (1.0 / medians["environment"] + 1.0 / medians["policy"])
    return {
        "num_envs": num_envs,
        **{f"{name}_steps_per_s": median for name, median in medians.items()},
        "actor_spread": [min(rates["actor"]), max(rates["actor"])],
        "share_of_environment_and_policy": medians["actor"] / ideal,
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
    print("# steps/s, median of", arguments.repeats)
    print(f"{'envs':>5} {'actor':>10} {'min':>10} {'max':>10} {'env alone':>10} {'policy':>10} {'share':>6}")
    rows = [measure(arguments.config, n, arguments.repeats, arguments.seconds) for n in arguments.num_envs]
    for row in rows:
        low, high = row["actor_spread"]
        print(
            f"{row['num_envs']:>5} {row['actor_steps_per_s']:>10.0f} {low:>10.0f} {high:>10.0f} "
            f"{row['environment_steps_per_s']:>10.0f} {row['policy_steps_per_s']:>10.0f} "
            f"{row['share_of_environment_and_policy']:>6.2f}"
        )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
