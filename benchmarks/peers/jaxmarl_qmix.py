"""JaxMARL's own QMIX on a map of SMAX: the peer of configs/qmix_3m.toml.

JaxMARL's package does not have the baselines, so this needs a checkout of its repository. The settings come
from there; training and tests are JaxMARL's code, called as its own command calls it, without a vmap over
seeds. The training is one compiled program that cannot end early, so it runs in a process that is killed
after its time. It reports the values of each update that JaxMARL would log to wandb.

    python benchmarks/peers/jaxmarl_qmix.py --jaxmarl CHECKOUT [--map 3m] [--minutes 30] [--env-steps N]
        [--set HIDDEN_SIZE=64 ...] [--json OUT]

JaxMARL's battles last 101 steps at most (it ends them on the step after max_steps = 100), tianji's 100.
Exploration falls over a share of --env-steps, so choose about as many steps as fit into the time.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from record import arguments, process_started_s, write

BASELINE: Final = Path("baselines/QLearning/qmix_rnn.py")
SETTINGS: Final = Path("config/alg/ql_rnn_smax.yaml")
"""Path of the settings from the baseline's directory."""
STARTED: Final = "started"
PACKAGES: Final = ("jaxmarl", "jax", "flax", "optax", "flashbax")
WON: Final = "returned_won_episode"
RETURN: Final = "returned_episode_returns"


def find_baseline(place: Path) -> Path:
    """Find the baseline's file in a checkout, or check the named file; exits if it is missing."""
    baseline = place / BASELINE if place.is_dir() else place
    for needed in (baseline, baseline.parent / SETTINGS):
        if not needed.is_file():
            sys.exit(f"{needed} is missing: --jaxmarl names a checkout of github.com/FLAIROx/JaxMARL")
    return baseline


def read_settings(baseline: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Read JaxMARL's settings for SMAX, with the command line's changes."""
    from omegaconf import OmegaConf  # noqa: PLC0415 - only the peer's environment has it

    settings = OmegaConf.merge(
        OmegaConf.load(baseline.parent / SETTINGS),
        {"MAP_NAME": options["map"], "TOTAL_TIMESTEPS": options["env_steps"], "WANDB_MODE": "offline"},
        OmegaConf.from_dotlist(options["set"]),
    )
    found = OmegaConf.to_container(settings)
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


def load(baseline: Path, log: Any) -> ModuleType:
    """Import the baseline's file with ``log`` in place of ``wandb.log``."""
    wandb = ModuleType("wandb")
    wandb.log = log  # type: ignore[attr-defined]
    sys.modules["wandb"] = wandb
    spec = importlib.util.spec_from_file_location("jaxmarl_baseline", baseline)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(baseline: Path, settings: dict[str, Any], seed: int, reports: str) -> None:
    """Train to the end of the steps; writes a line for each update, with the time at which it ended."""
    import jax  # noqa: PLC0415 - its threads belong in the child process

    with Path(reports).open("w", buffering=1) as lines:

        def log(metrics: Mapping[str, Any]) -> None:
            row = {name: float(value) for name, value in metrics.items()}
            lines.write(json.dumps({"at_s": time.monotonic()} | row) + "\n")

        module = load(baseline, log)
        environment, _ = module.env_from_config(copy.deepcopy(settings))
        key = jax.random.PRNGKey(seed)
        compiled = jax.jit(module.make_train(settings, environment)).lower(key).compile()
        lines.write(json.dumps({STARTED: time.monotonic()}) + "\n")
        jax.block_until_ready(compiled(key))


def whole_lines(reports: str) -> list[dict[str, Any]]:
    """Read the reports' whole lines; the last one may be cut off."""
    return [json.loads(line) for line in Path(reports).read_bytes().split(b"\n")[:-1]]


def curve_of(rows: Sequence[Mapping[str, Any]], first_step_s: float) -> dict[str, list[float]]:
    """Take the points at which JaxMARL's test of the greedy policy has new results."""
    curve: dict[str, list[float]] = {"train_s": [], "env_steps": [], "win_rate": [], "mean_return": []}
    before = None
    for row in rows:
        found = row[f"test_{WON}"], row[f"test_{RETURN}"]
        if found == before:
            continue
        before = found
        for name, value in zip(curve, (row["at_s"] - first_step_s, row["env_step"], *found), strict=True):
            curve[name].append(value)
    return curve


def report(options: Any, settings: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum up a training that has ended or was killed; exits if it made no update."""
    from importlib.metadata import version  # noqa: PLC0415 - versions in the peer's environment

    rows = sorted((line for line in lines if STARTED not in line), key=lambda row: row["update_steps"])
    if not rows:
        sys.exit("no update was over in this time: --minutes should allow for compiling, too")
    first_step_s = lines[0][STARTED]
    train_s = rows[-1]["at_s"] - first_step_s
    curve = curve_of(rows, first_step_s)
    return {
        "peer": "jaxmarl",
        "map": options.map,
        "seed": options.seed,
        "start_s": first_step_s - process_started_s(),
        "train_s": train_s,
        "env_steps": rows[-1]["env_step"],
        "updates": rows[-1]["grad_steps"],
        "produced_per_s": rows[-1]["env_step"] / train_s,
        "win_rate": curve["win_rate"][-1],
        "best_win_rate": max(curve["win_rate"]),
        "mean_return": curve["mean_return"][-1],
        "curve": curve,
        "settings": dict(settings),
        "versions": {name: version(name) for name in PACKAGES},
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jaxmarl", type=Path, required=True, help="a checkout of their repository")
    parser.add_argument("--map", default="3m")
    parser.add_argument("--minutes", type=float, default=30.0, help="of wall time, compiling included")
    parser.add_argument("--env-steps", type=int, default=10_000_000, help="over which their schedules run")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="in place of their settings"
    )
    options = parser.parse_args()
    baseline = find_baseline(options.jaxmarl)
    settings = read_settings(baseline, vars(options))
    with tempfile.TemporaryDirectory() as place:
        reports = str(Path(place) / "reports")
        child = multiprocessing.get_context("spawn").Process(
            target=train, args=(baseline, settings, options.seed, reports)
        )
        child.start()
        try:
            child.join(60 * options.minutes)
            if child.exitcode:
                sys.exit(f"training failed with exit status {child.exitcode}")
        finally:
            child.kill()
            child.join()
        write(report(options, settings, whole_lines(reports)), options.json)


if __name__ == "__main__":
    main()
