"""Measures environment steps a second of SMAX on one core: tianji's environment, and loops over JaxMARL's.

All play the same scenario with the same random actions, N battles at once, and take turns. JAX compiles the
loop `scan` as a whole, so nothing leaves it; `calls` has one compiled call a step, as a program that acts
from outside JAX must. Both use JaxMARL's own `step`, which begins ended battles anew, and its own limit,
which ends battles after 101 steps; tianji's battles end after 100.

    python benchmarks/smax.py [--scenario 3m] [--num-envs 32 64] [--repeats 5] [--seconds 2] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

# JAX and numpy read these variables when they are imported; one core gets one thread.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jaxmarl.environments.smax import HeuristicEnemySMAX, map_name_to_scenario

from tianji_envs.teams.smax import SMAXFactory

ROUND: Final = 200
"""Steps of each battle between two looks at the clock."""
Loop = Callable[[], int]
"""Function that makes ROUND steps of each battle; returns the steps of experience, all battles together."""
finished: Any = jax.block_until_ready


def bare(scenario: str, draws: jax.Array) -> tuple[Loop, Loop]:
    """Build JaxMARL's environment; returns the compiled loop, and the loop of compiled calls.

    Args:
        scenario: name of the scenario.
        draws: actions, ``[ROUND, N, M]``.
    """
    env: Any = HeuristicEnemySMAX(scenario=map_name_to_scenario(scenario))  # type: ignore[no-untyped-call]
    num_envs = draws.shape[1]

    def step(carry: Any, chosen: jax.Array) -> Any:
        key, states = carry
        key, now = jax.random.split(key)
        actions = {agent: chosen[:, i] for i, agent in enumerate(env.agents)}
        seen, states, rewards, ended, _ = jax.vmap(env.step)(jax.random.split(now, num_envs), states, actions)
        return (key, states), (seen, rewards, ended)

    def sum_up(carry: Any, chosen: jax.Array) -> Any:
        # The sum uses the outputs that a policy would need; otherwise the compiler would not compute them.
        carry, shown = step(carry, chosen)
        return carry, sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(shown))

    one = jax.jit(step, donate_argnums=0)
    many = jax.jit(lambda carry: jax.lax.scan(sum_up, carry, draws), donate_argnums=0)
    kept = []
    for seed in (1, 2):
        key = jax.random.PRNGKey(seed)
        kept.append((key, jax.vmap(env.reset)(jax.random.split(key, num_envs))[1]))
    in_turn = list(draws)

    def scan() -> int:
        kept[0] = finished(many(kept[0]))[0]
        return ROUND * num_envs

    def calls() -> int:
        for chosen in in_turn:
            kept[1], shown = one(kept[1], chosen)
            finished(shown)
        return ROUND * num_envs

    return scan, calls


def ours(scenario: str, draws: np.ndarray[Any, Any]) -> Loop:
    """Build tianji's environment; returns a loop of steps that writes records, as in an actor."""
    num_envs = draws.shape[1]
    environment = SMAXFactory().make(scenario, num_envs)
    observation = np.zeros(num_envs, environment.observation_space.dtype)
    reward, ended, cut = np.zeros(num_envs, np.float32), np.zeros(num_envs, bool), np.zeros(num_envs, bool)
    environment.reset(1, observation)

    def steps() -> int:
        made: int = ROUND * num_envs
        for actions in draws:
            made -= int(np.count_nonzero(ended | cut))  # These steps only begin new battles.
            environment.step(actions, observation, reward, ended, cut)
        return made

    return steps


def rates_of(loops: Mapping[str, Loop], repeats: int, seconds: float) -> dict[str, list[float]]:
    """Measure steps a second of the loops, which take turns, after one round of each to compile."""
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        loop()
    for _ in range(repeats):
        for name, loop in loops.items():
            made, began_s = 0, time.perf_counter()
            while (spent_s := time.perf_counter() - began_s) < seconds:
                made += loop()
            rates[name].append(made / spent_s)
    return rates


def measure(scenario: str, num_envs: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Measure the three loops with ``num_envs`` battles at once."""
    env: Any = HeuristicEnemySMAX(scenario=map_name_to_scenario(scenario))  # type: ignore[no-untyped-call]
    actions = env.action_space(env.agents[0]).n
    draws = np.random.default_rng(1).integers(actions, size=(ROUND, num_envs, len(env.agents)))
    scan, calls = bare(scenario, jnp.asarray(draws, jnp.int32))
    loops = {"scan": scan, "calls": calls, "tianji": ours(scenario, draws)}
    rates = rates_of(loops, repeats, seconds)
    return {
        "scenario": scenario,
        "num_envs": num_envs,
        **{f"{name}_steps_per_s": statistics.median(values) for name, values in rates.items()},
        **{
            # A ratio of each repeat, since a disturbance of one loop mostly disturbs its neighbours, too.
            f"of_{name}": statistics.median(np.divide(rates["tianji"], rates[name]).tolist())
            for name in ("scan", "calls")
        },
        "rates": rates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenario", default="3m")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[32])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each repeat")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    print(f"# {platform.machine()}, core {core}, load {os.getloadavg()[0]:.1f}, jax {jax.__version__}")
    print(f"{'scenario':<10} {'N':>4} {'scan':>9} {'calls':>9} {'tianji':>9} {'of scan':>8} {'of calls':>9}")
    rows = []
    for num_envs in options.num_envs:
        row = measure(options.scenario, num_envs, options.repeats, options.seconds)
        rows.append(row)
        print(
            f"{options.scenario:<10} {num_envs:>4} {row['scan_steps_per_s']:>9.0f} "
            f"{row['calls_steps_per_s']:>9.0f} {row['tianji_steps_per_s']:>9.0f} "
            f"{row['of_scan']:>8.2f} {row['of_calls']:>9.2f}",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
