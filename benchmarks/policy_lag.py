"""Does V-trace hold where samples are old? CartPole with a policy lag that is forced up, actors in step.

A buffer that holds k rollouts hands out samples of which one in k is new, and up to k - 1 earlier policies
made the others (`distribution.buffer.rollouts = k`). The benchmark compares

- IMPALA, with V-trace, as in Espeholt et al. (2018);
- the same actor-critic without a correction: samples count as if the current policy had made them;
- plain PPO, as in Schulman et al. (2017): clipped, four epochs, advantages and values from when the samples
  were made;
- PPO whose ratios are not clipped.

All have the same network, environments, rollouts, minibatches, optimizer and env steps; PPO makes four times
the updates. First the script chooses the learning rate of each method at each lag from the same rates, by the
interquartile mean of the last return, with seeds that it does not use again. The measures are the mean return
of the last 100 episodes at the end, and the highest value of this mean: interquartile means over seeds with
95 % bootstrap intervals.

    python benchmarks/policy_lag.py [--lags 1 16 64] [--seeds 10] [--rates 1e-3 2e-3 4e-3] [--png PATH] ...
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from tianji_cli.errors import RunFailed
from tianji_cli.telemetry.figures import COLORS, GREY, write_figure
from tianji_lab.environment import busy_share, in_short
from tianji_lab.ranges import Range
from tianji_lab.training import read_summary, train_once

ALIKE: Final = (
    'distribution.mode="sync"',
    "distribution.pin_cores=false",
    "distribution.actor.send_size=32",
    "environment.num_envs=32",
    "experiment.eval_episodes=0",
    "model.hidden=[64, 64]",
    "model.shared=true",
    "training.rollout_steps=2048",
    "training.minibatch_size=512",
    'training.optimizer="adam"',
    'training.learning_rate_schedule="constant"',
    "training.max_grad_norm=0.5",
    "training.entropy_coef=0.0",
    "training.reward_scale=0.1",
)
IMPALA: Final = "configs/impala_cartpole.toml"
PPO: Final = "configs/ppo_cartpole.toml"
PLAIN: Final = ("training.epochs=4", "training.gae_lambda=0.95", 'training.normalize_advantage="minibatch"')
METHODS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "V-trace": (IMPALA, ()),
    "uncorrected": (IMPALA, ('training.correction="none"',)),
    "PPO": (PPO, (*PLAIN, "training.clip_range=0.2")),
    "PPO, not clipped": (PPO, (*PLAIN, "training.clip_range=1e6")),
}
TUNING_SEED: Final = 1001
"""First of the seeds for the choice of learning rates."""
SOLVED: Final = 475.0


@dataclass(frozen=True)
class Trial:
    """Settings of one training."""

    method: str
    lag: int
    rate: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """Result of a trial.

    Attributes:
        staleness: mean policy lag of the samples used, in versions.
        last: mean return of the last 100 episodes.
        best: highest value of this mean.
    """

    trial: Trial
    staleness: float
    last: float
    best: float


def train(trial: Trial, env_steps: int, place: Path) -> Outcome:
    """Train a trial.

    Raises:
        RunFailed: the training ended before 100 episodes or one update.
    """
    config, overrides = METHODS[trial.method]
    settings = [
        *ALIKE,
        *overrides,
        f"distribution.buffer.rollouts={trial.lag}",
        f"training.learning_rate={trial.rate!r}",
        f"experiment.seed={trial.seed}",
        f"experiment.stop={{ env_steps = {env_steps} }}",
    ]
    name = f"{list(METHODS).index(trial.method)}-{trial.lag}-{trial.rate:g}-{trial.seed}"
    summary = read_summary(train_once(config, settings, name=name, place=place))
    returns, staleness = summary["returns"], summary["staleness"]["mean"]
    if returns["best_mean_100"] is None or staleness is None:
        raise RunFailed(
            f"{trial.method} ended before 100 episodes or one update: --env-steps {env_steps} should be more"
        )
    return Outcome(trial, staleness, returns["mean_100"], returns["best_mean_100"])


def train_all(trials: Sequence[Trial], options: argparse.Namespace) -> list[Outcome]:
    """Train all trials, ``at_once`` at a time."""
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.at_once) as threads:
        return list(threads.map(partial(train, env_steps=options.env_steps, place=Path(place)), trials))


def of_last(outcomes: Sequence[Outcome]) -> Range:
    """Estimate the interquartile mean of the last return."""
    return Range.estimated([outcome.last for outcome in outcomes])


def choose_rates(options: argparse.Namespace) -> dict[tuple[str, int], float]:
    """Choose the learning rate of each method at each lag."""
    seeds = range(TUNING_SEED, TUNING_SEED + options.tuning_seeds)
    trials = [
        Trial(method, lag, rate, seed)
        for method in METHODS
        for lag in options.lags
        for rate in options.rates
        for seed in seeds
    ]
    outcomes = train_all(trials, options) if len(options.rates) > 1 else []
    chosen = {}
    for method in METHODS:
        for lag in options.lags:
            found = {
                rate: of_last([o for o in outcomes if o.trial in group]).middle
                for rate in options.rates
                if (group := [Trial(method, lag, rate, seed) for seed in seeds]) and outcomes
            }
            chosen[method, lag] = max(found, key=lambda rate: found[rate]) if found else options.rates[0]
            tried = ", ".join(f"{rate:g}: {last:.0f}" for rate, last in found.items())
            print(f"# {method}, lag {lag}: learning rate {chosen[method, lag]:g} ({tried})", flush=True)
    return chosen


def measure(options: argparse.Namespace) -> dict[tuple[str, int], list[Outcome]]:
    """Choose learning rates, and train every method at every lag with every seed."""
    rates = choose_rates(options)
    trials = [
        Trial(method, lag, rate, seed)
        for (method, lag), rate in rates.items()
        for seed in range(1, options.seeds + 1)
    ]
    found: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in train_all(trials, options):
        found.setdefault((outcome.trial.method, outcome.trial.lag), []).append(outcome)
    return found


def report(found: Mapping[tuple[str, int], Sequence[Outcome]]) -> None:
    """Print a row for each method and lag."""
    header = ("method", "rollouts", "policy lag", "last return", "best return", f"at {SOLVED:g} last")
    print(f"{header[0]:<17} {header[1]:>8} {header[2]:>10} {header[3]:>22} {header[4]:>22} {header[5]:>11}")
    for (method, lag), outcomes in found.items():
        last, best = of_last(outcomes), Range.estimated([outcome.best for outcome in outcomes])
        cells = [of.written("{:.0f}".format) for of in (last, best)]
        staleness = np.mean([outcome.staleness for outcome in outcomes])
        solved = f"{sum(outcome.last >= SOLVED for outcome in outcomes)}/{len(outcomes)}"
        print(f"{method:<17} {lag:>8} {staleness:>10.1f} {cells[0]:>22} {cells[1]:>22} {solved:>11}")


def draw(found: Mapping[tuple[str, int], Sequence[Outcome]], lags: Sequence[int], path: Path) -> None:
    """Draw the last return over the policy lag, a line and its interval for each method."""

    def draw_into(figure: Figure) -> None:
        axes = figure.subplots()
        for method, color in zip(METHODS, COLORS, strict=False):
            groups = [found[method, lag] for lag in lags]
            x = [np.mean([outcome.staleness for outcome in group]) for group in groups]
            bands = [of_last(group) for group in groups]
            axes.plot(x, [band.middle for band in bands], color=color, marker="o", label=method)
            low, high = ([getattr(band, side) for band in bands] for side in ("low", "high"))
            axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
        axes.axhline(SOLVED, color=GREY, linestyle="--", linewidth=0.9)
        axes.set_xlabel("Mean policy lag of the samples (versions)")
        axes.set_ylabel("Mean return at the end")
        axes.set_ylim(bottom=0)
        axes.legend()

    write_figure(draw_into, 2.6, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="+", default=[1, 16, 64], help="rollouts in the buffer")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning-seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3], help="to choose from")
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--at-once", type=int, default=1, help="trainings; results do not depend on it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    print(f"# {in_short(busy_share())}; seeds 1 to {options.seeds}, {options.env_steps} env steps")
    try:
        found = measure(options)
    except RunFailed as failed:
        sys.exit(str(failed))
    report(found)
    if options.png is not None:
        draw(found, options.lags, options.png)
    if options.json is not None:
        rows = [asdict(outcome) for outcomes in found.values() for outcome in outcomes]
        document = {"env_steps": options.env_steps, "alike": ALIKE, "methods": METHODS, "trainings": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
