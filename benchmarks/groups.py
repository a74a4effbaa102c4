"""Does grouping cost throughput? Two groups with half the actors each against one group, on the same cores.

Both train the same config on all usable cores: one group with 2 actors and a learner, and two groups with an
actor and a learner each. Every learner has the same rollout and minibatches, and every actor the same number
of environments, so that a sample costs the same work in both. The difference: two groups have two learners,
whose parameters the root averages every ``sync_interval`` updates, and one process more. Processes are not
pinned: the scheduler places three or four of them on two cores. Trainings take turns, so that a disturbance
of the machine disturbs both.

    python benchmarks/groups.py [--repeats 5] [--seconds 8] [--actors 2] [--set KEY=VALUE ...]

Do two groups learn? See `benchmarks/learning.py --config ppo_cartpole_groups --seeds 1 2 3 4 5`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tianji_lab.environment import busy_share, in_short
from tianji_lab.ranges import Range
from tianji_lab.training import Entry, Training, read_training, train_in_turns

MOST = 0.10
"""Maximum share of one group's throughput that two groups may lose."""
QUANTITIES = ("produced", "received", "consumed")


def entry(groups: int, options: argparse.Namespace) -> Entry:
    """Settings of the trainings with one number of groups."""
    settings = (
        *options.set,
        "distribution.pin_cores=false",
        f"distribution.groups={groups}",
        f"distribution.actor.num={options.actors // groups}",
        f"experiment.stop={{ wall_s = {options.seconds:g} }}",
        "experiment.eval_episodes=0",
        "experiment.checkpoint_every_s=1e9",
    )
    return Entry(f"groups-{groups}", options.config, settings)


def figures(training: Training) -> dict[str, Any]:
    """Take the rates a second of a training, and how often the root averaged."""
    rates = {name: getattr(training, f"{name}_per_s") for name in QUANTITIES}
    return {**rates, "seed": training.seed, "averaging": training.averaging or {"rounds": 0, "missed": []}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/ppo_cartpole.toml")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each training")
    parser.add_argument("--actors", type=int, default=2, help="in all; an even number")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all trainings")
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    if options.actors < 2 or options.actors % 2:
        parser.error(f"--actors {options.actors}: an even number of actors can be halved")
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least one training of each is compared")
    busy = busy_share()
    print(
        f"# {in_short(busy)}; "
        f"{options.config}, {options.actors} actors in all, {options.repeats} x {options.seconds:g} s"
    )
    found = train_both(options)
    costs = report(found)
    good = judge(costs["consumed"], rounds_of(found[2]))
    if options.json:
        document = {"config": options.config, "busy": busy, "costs": costs, "trainings": found}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0 if good else 1


def train_both(options: argparse.Namespace) -> dict[int, list[dict[str, Any]]]:
    """Train one group and two groups with each seed; returns the trainings by number of groups."""
    table = {groups: entry(groups, options) for groups in (1, 2)}
    seeds, read = range(1, options.repeats + 1), partial(read_training, settles=True)
    found = train_in_turns(table, seeds, None, read=read)
    return {groups: [figures(one) for one in of.trainings] for groups, of in found.items()}


def rounds_of(trainings: list[dict[str, Any]]) -> list[int]:
    """Number of the root's averages in each training."""
    return [one["averaging"]["rounds"] for one in trainings]


def report(found: dict[int, list[dict[str, Any]]]) -> dict[str, float]:
    """Print the rates, and the cost of two groups; returns the cost as a share of each rate."""
    print(f"{'groups':>6} " + " ".join(f"{name + '/s':>31}" for name in QUANTITIES) + "  averages, each")
    for groups, trainings in found.items():
        cells = [Range.of([one[name] for one in trainings]).written("{:,.0f}".format) for name in QUANTITIES]
        print(f"{groups:>6} " + " ".join(f"{cell:>31}" for cell in cells) + f"  {rounds_of(trainings)}")
    costs = {name: cost(found, name) for name in QUANTITIES}
    for name, share in costs.items():
        pairs = [two[name] / one[name] - 1 for one, two in zip(found[1], found[2], strict=True)]
        by_pairs = ", ".join(f"{pair:+.1%}" for pair in pairs)
        print(f"# {name}: two groups {-share:+.1%} by medians; by pairs {by_pairs}")
    return costs


def judge(consumed: float, rounds: list[int]) -> bool:
    """Whether grouping costs at most ``MOST``; False if the root never averaged in some training."""
    if not all(rounds):
        print(
            f"# the two groups were never averaged in {rounds.count(0)} of {len(rounds)} trainings: ", end=""
        )
        print("that says nothing of grouping; a higher --seconds would have them averaged: NO")
        return False
    good = consumed <= MOST
    print(f"# grouping costs at most {MOST:.0%} of what is consumed a second: {'yes' if good else 'NO'}")
    return good


def cost(found: dict[int, list[dict[str, Any]]], name: str) -> float:
    """Share of one group's median rate that two groups lose."""
    one, two = (statistics.median(training[name] for training in found[groups]) for groups in (1, 2))
    return float(1 - two / one)


if __name__ == "__main__":
    sys.exit(main())
