"""Measures SAC's and TD3's updates a second on one core, and their share of the rate that BLAS allows.

Hopper's sizes (11 observations, 3 actions), two layers of 256, batches of 256, one thread; in turns:

numpy   tianji's update with derivatives by hand, batches ready
drawn   as numpy, but draws each batch from a replay first
torch   tianji's update through autograd, batches ready
bare    the matrix products that one update needs, and nothing else
sb3     Stable-Baselines3's ``train``, which draws its batches, in another interpreter (``--sb3``)

    python benchmarks/sac_update.py [--algorithms sac td3] [--rounds 7] [--sb3 ENV/bin/python] [--json PATH]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

# numpy and torch read these variables when they are imported; one core gets one thread.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from actor import Loop, steps_per_s
from replay import fill

from tianji_algos import registry
from tianji_algos.batch import Batch
from tianji_algos.core import ReplayEmbryo, Spaces, build_model
from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings
from tianji_cli.telemetry.machine import cpu_model
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import FragmentLayout, common_fields
from tianji_lab.environment import busy_share

Floats = npt.NDArray[np.float32]

OBSERVATIONS, ACTIONS = 11, 3
HIDDEN: Final = (256, 256)
BATCH: Final = 256
READY: Final = 64
"""Number of batches, used in turn: more than the nearest caches hold."""
CAPACITY: Final = 20_000
SPACES: Final = Spaces(
    gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32),
    gym.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32),
)
OUTPUTS: Final = {"sac": 2 * ACTIONS, "td3": ACTIONS}
"""Number of the actor's outputs."""
TARGETS: Final = {("sac", "numpy", "bare"): 0.8, ("sac", "drawn", "sb3"): 1.6}


def embryo_of(algorithm: str, backend: str) -> ReplayEmbryo:
    """Build the update rule with its networks."""
    defaults = registry.agent_defaults(algorithm)
    networks = registry.load("model", defaults.model)
    model = build_model(networks, SPACES, networks.settings_type(hidden=HIDDEN, critic_hidden=HIDDEN), 0)
    rule = registry.load("embryo", defaults.embryo)
    embryo = rule(SPACES, model, rule.settings_type(backend=backend, batch_size=BATCH), 0)
    assert isinstance(embryo, ReplayEmbryo)
    return embryo


def ready_batches(rng: np.random.Generator) -> Iterator[Batch]:
    """Yield batches of noise, for ever."""

    def noise(*shape: int) -> Floats:
        return rng.standard_normal((BATCH, *shape), dtype=np.float32)

    actions = [rng.uniform(-1.0, 1.0, (BATCH, ACTIONS)).astype(np.float32) for _ in range(READY)]
    discount, weight = np.full(BATCH, 0.99, np.float32), np.ones(BATCH, np.float32)
    return itertools.cycle(
        [
            Batch(noise(OBSERVATIONS), {"action": action}, noise(), noise(OBSERVATIONS), discount, weight)
            for action in actions
        ]
    )


def drawn_batches(algorithm: str, rng: np.random.Generator) -> Iterator[Batch]:
    """Draw batches from a full replay, for ever."""
    agent = registry.load("agent", algorithm)
    fields = agent.fields(SPACES, agent.settings_type())
    layout = FragmentLayout(64, 1, (*common_fields(SPACES.observation), *fields))
    replay = Replay(
        layout, ReplaySettings(CAPACITY, "uniform", 1, 0.99, memory="ram"), agent_fields=("action",), seed=1
    )
    fill(replay, rng)
    arrays = BatchArrays(BatchLayout.of(layout, BATCH, ("action",)))
    while True:
        replay.sample(arrays)
        yield arrays.batch


def updating(embryo: ReplayEmbryo, batches: Iterator[Batch]) -> Loop:
    """Return a loop that makes so many updates."""

    def run(updates: int) -> None:
        for batch in itertools.islice(batches, updates):
            embryo.update(batch)

    return run


Product = tuple[Callable[..., Any], Floats, Floats, Floats]
"""Function that multiplies, its two factors, and the array for the product."""


def product(left: Floats, right: Floats, out: Floats) -> Product:
    """Choose the fastest function: NumPy's multiply for a column and a row, otherwise BLAS."""
    return (np.multiply if left.shape[1] == 1 else np.matmul), left, right, out


class Pass:
    """Matrix products of a pass through a fully connected network, with the arrays for them.

    Activations are ``[width, B]`` and weights ``[out, in]``, as in the learner.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        rng = np.random.default_rng(1)
        self._weights = [rng.standard_normal((o, i), dtype=np.float32) for i, o in pairwise(widths)]
        self._outputs = [rng.standard_normal((width, BATCH), dtype=np.float32) for width in widths]
        self._derivatives = [np.ones_like(output) for output in self._outputs]
        self._d_weights = [np.empty_like(weight) for weight in self._weights]

    def forward(self) -> list[Product]:
        """Products from the input to the outputs."""
        layers = zip(self._weights, self._outputs, self._outputs[1:], strict=False)
        return [product(weight, below, above) for weight, below, above in layers]

    def to_weights(self) -> list[Product]:
        """Products for the derivatives by all weights."""
        layers = zip(self._derivatives[1:], self._outputs, self._d_weights, strict=False)
        return self._back(first=1) + [product(above, below.T, d) for above, below, d in layers]

    def to_input(self) -> list[Product]:
        """Products for the derivatives by the input."""
        return self._back(first=0)

    def _back(self, first: int) -> list[Product]:
        layers = list(zip(self._weights, self._derivatives[1:], self._derivatives, strict=False))
        return [product(weight.T, above, below) for weight, above, below in reversed(layers[first:])]


def bare_updates(algorithm: str) -> list[list[Product]]:
    """List the products of an update; for TD3 of two updates, since only every second improves the actor."""
    actor = (OBSERVATIONS, *HIDDEN, OUTPUTS[algorithm])
    critic = (OBSERVATIONS + ACTIONS, *HIDDEN, 1)
    fit = Pass(actor).forward()
    for _ in range(2):
        fit += Pass(critic).forward()  # Target critics at the next observation.
    for _ in range(2):
        critics = Pass(critic)
        fit += critics.forward() + critics.to_weights()
    policy = Pass(actor)
    improve = policy.forward()
    for _ in range(2 if algorithm == "sac" else 1):  # TD3's actor follows only the first critic.
        judge = Pass(critic)
        improve += judge.forward() + judge.to_input()
    improve += policy.to_weights()
    return [fit + improve] if algorithm == "sac" else [fit, fit + improve]


def multiplications(algorithm: str) -> float:
    """Mean number of multiply-adds of an update."""
    updates = bare_updates(algorithm)
    counts = [out.size * left.shape[1] for _, left, _, out in itertools.chain(*updates)]
    return sum(counts) / len(updates)


def multiplying(algorithm: str) -> Loop:
    """Return a loop that makes the products of so many updates."""
    updates = itertools.cycle(bare_updates(algorithm))

    def run(number: int) -> None:
        for products in itertools.islice(updates, number):
            for multiply, left, right, out in products:
                multiply(left, right, out=out)

    return run


@contextmanager
def peer(python: str, algorithm: str) -> Iterator[Loop]:
    """Yield a loop of Stable-Baselines3's updates, in another process, which sleeps between the calls."""
    script = str(Path(__file__).parent / "peers" / "sb3_updates.py")
    sizes = ["--observations", OBSERVATIONS, "--actions", ACTIONS, "--batch", BATCH, "--hidden", *HIDDEN]
    command = [python, script, "--algorithm", algorithm, *map(str, sizes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(updates: int) -> None:
            process.stdin.write(f"{updates}\n")
            process.stdin.flush()
            if process.stdout.readline() != f"{updates}\n":
                raise SystemExit(f"{' '.join(command)}\nended with status {process.wait()}")

        try:
            yield run
        finally:
            process.stdin.close()


def measure(algorithm: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Measure updates a second in each round, all loops in turns."""
    rng = np.random.default_rng(1)
    numpy, drawn, autograd = (embryo_of(algorithm, name) for name in ("numpy", "numpy", "torch"))
    loops = {
        "numpy": updating(numpy, ready_batches(rng)),
        "drawn": updating(drawn, drawn_batches(algorithm, rng)),
        "torch": updating(autograd, ready_batches(rng)),
        "bare": multiplying(algorithm),
    }
    with peer(options.sb3, algorithm) if options.sb3 else nullcontext() as sb3:
        return steps_per_s(loops | ({"sb3": sb3} if sb3 else {}), 1, options.rounds, options.seconds)


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = np.percentile(values, (25, 50, 75)).tolist()
    return {"q1": low, "median": median, "q3": high}


def ratios(algorithm: str, rates: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Compute ratios of rates within each round, so that both sides share its disturbances."""
    pairs = [("numpy", "bare"), ("numpy", "torch"), ("numpy", "sb3"), ("drawn", "sb3")]
    return [
        {"algorithm": algorithm, "of": of, "over": over, "target": TARGETS.get((algorithm, of, over))}
        | quartiles([ours / theirs for ours, theirs in zip(rates[of], rates[over], strict=True)])
        for of, over in pairs
        if over in rates
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=sorted(OUTPUTS), default=["sac", "td3"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each, in each round")
    parser.add_argument("--sb3", metavar="PYTHON", help="has Stable-Baselines3; left out: not run")
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    busy = busy_share()
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    environment = {
        "machine": f"{cpu_model()}, core {core}, {busy:.0%} of the cores busy before",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    for key, value in environment.items():
        print(f"# {key}: {value}")
    rows, compared = [], []
    print(f"# updates/s, medians of {options.rounds} rounds of {options.seconds:g} s")
    print(f"{'algorithm':10} {'':6} {'median':>8} {'q1':>8} {'q3':>8}")
    for algorithm in options.algorithms:
        rates = measure(algorithm, options)
        compared += ratios(algorithm, rates)
        for name, values in rates.items():
            rows.append(row := {"algorithm": algorithm, "loop": name, "rates": values} | quartiles(values))
            numbers = f"{row['median']:8.1f} {row['q1']:8.1f} {row['q3']:8.1f}"
            print(f"{algorithm:10} {name:6} {numbers}", flush=True)
        gflops = 2e-9 * multiplications(algorithm) * float(np.median(rates["bare"]))
        print(f"# {algorithm}: bare products at {gflops:.0f} GFLOP/s")
    for row in compared:
        print(
            f"# {row['algorithm']}: {row['of']} over {row['over']} {row['median']:.2f} "
            f"({row['q1']:.2f} to {row['q3']:.2f}){verdict(row)}"
        )
    if options.json:
        document = {"environment": environment, "rows": rows, "ratios": compared}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(row["target"] is not None and row["median"] < row["target"] for row in compared) else 0


def verdict(row: Mapping[str, Any]) -> str:
    """Compare a ratio with its target; empty if there is none."""
    if row["target"] is None:
        return ""
    return f", at least {row['target']:g}: {'yes' if row['median'] >= row['target'] else 'NO'}"


if __name__ == "__main__":
    sys.exit(main())
