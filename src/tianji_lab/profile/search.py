"""Looks for the split of a cluster's cores with the highest throughput (M_L + M_A = M in Equation 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from tianji_cli.config.loader import load_config
from tianji_cli.config.source import read
from tianji_cli.errors import ConfigError, UsageError
from tianji_cli.telemetry.bottleneck import BALANCED
from tianji_lab.model.costs import CostTable
from tianji_lab.model.prediction import Prediction, predict
from tianji_lab.model.split import Split
from tianji_lab.model.workload import Workload
from tianji_lab.profile.scaling import Cluster
from tianji_lab.profile.settings import (
    ACTORS,
    GROUPS,
    HOSTS,
    LEARNERS,
    PINNED,
    as_settings,
    host_values,
    split_of,
    split_values,
)
from tianji_lab.profile.splits import Splits

SHOWN: Final = 5
"""Candidates that a user is shown."""

TRIED: Final = 5
"""Splits that are trained with to prove a choice, itself among them."""

TIE: Final = 0.01
"""Throughputs that lie no further apart than this share are the same."""

REFUSED_ALONE: Final = (GROUPS, HOSTS)
"""Settings whose value, once refused, is refused with every other split."""


@dataclass(frozen=True)
class Candidate:
    """A split, and what is to be expected of it.

    Attributes:
        prediction: what it gives.
        settings: ``SECTION.KEY=VALUE`` settings that give the config this split.
        changes: keys of those that say something else than the config.
        why_not: why it cannot be run; None if it can.
    """

    prediction: Prediction
    settings: tuple[str, ...]
    changes: tuple[str, ...]
    why_not: str | None

    @property
    def split(self) -> Split:
        """The split."""
        return self.prediction.split

    @property
    def runnable(self) -> bool:
        """Whether the config with this split is valid."""
        return self.why_not is None


class Search:
    """Compares the splits of a cluster.

    Args:
        config: path or name of the config, which is valid.
        overrides: ``SECTION.KEY=VALUE`` settings over it.
        cluster: whose cores are to be split: all of them, or as many as have something to do.
        num_envs: numbers of environments of an actor for which costs are known.
        workload: of each split.
        costs: of each split.

    Raises:
        UsageError: there are GPUs for learners that use none.
    """

    def __init__(
        self,
        config: str,
        overrides: Sequence[str],
        *,
        cluster: Cluster,
        num_envs: Sequence[int],
        workload: Callable[[Split], Workload],
        costs: CostTable,
    ) -> None:
        self._config = config
        self._overrides = tuple(overrides)
        self._cluster = cluster
        self._workload = workload
        self._costs = costs
        self._job = load_config(config, overrides)
        self._of_hosts = host_values(self._job, cluster.nodes)
        self._configured = split_values(split_of(self._job)) | {HOSTS: str(self._job.distribution.hosts)}
        said = read(config, overrides).origins
        self._unsaid = [key for key in (ACTORS, PINNED) if tuple(key.split(".")) not in said]
        self._refused: dict[tuple[str, str], str] = {}
        check_gpus(cluster, self._job.distribution.device)
        self._splits = Splits(self._job, cluster, num_envs)
        splits = list(self._splits)
        own = split_of(self._job)
        if own not in splits and cluster.nodes == self._job.distribution.hosts:
            splits.append(own)  # Roles that take turns on too few cores can be the best there is.
        predictions = [self.predict(split) for split in splits]
        trimmed = self._without_idle_actors(predictions)
        self._all = list({found.split: found for found in (*predictions, *trimmed)}.values())
        self._predictions = list(_worth_sharing(self._all, own))

    def predict(self, split: Split) -> Prediction:
        """Reckon what a split gives on this cluster."""
        return predict(split, self._workload(split), self._costs.at(split), self._cluster.cores)

    def _without_idle_actors(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """Reckon with no more actors than a learner can follow, where all cores would be more.

        Equation 4 wants production and consumption in balance, and all cores used. Where only one of these
        can be, actors that wait for the learner most of the time would but make samples older.
        """
        for found in predictions:
            if found.bottleneck.kind == "training-bound":
                of_each = found.rho * found.production / found.split.actors
                enough = math.ceil((1 + BALANCED) * found.consumption / of_each)
                fewer = replace(found.split, actors=min(enough, found.split.actors))
                # With cores enough for all roles, there is the like of it that is pinned.
                if fewer != found.split and (fewer.pinned or fewer.cores > self._cluster.cores):
                    yield self.predict(fewer)

    def best(self, most: int = SHOWN) -> list[Candidate]:
        """Find the best splits, best first, whether they can be run or not.

        Where none of them can be, the best one that can comes after them, if there is any.

        Raises:
            UsageError: nodes are too small.
        """
        ranked = Ranking(self._predictions, self._rank)
        found = [self._candidate(prediction) for prediction in ranked.take(most)]
        if not found:
            raise UsageError("a learner and its buffer find no room on one node: --cores should be more")
        return found if any(one.runnable for one in found) else [*found, *self.runnable(1)]

    def runnable(self, most: int = SHOWN) -> list[Candidate]:
        """Find the best splits that can be run, best first; there may be none."""
        return self._runnable_of(self._predictions, most)

    def like_the_config(self) -> Candidate | None:
        """Find the best split that can be run with the config's own numbers of groups and learners.

        Other numbers of them learn differently, which throughput says nothing of.
        """
        own = [found for found in self._predictions if self._is_like_the_config(found.split)]
        return next(iter(self._runnable_of(own, 1)), None)

    def _is_like_the_config(self, split: Split) -> bool:
        values = split_values(split)
        return all(values[key] == self._configured[key] for key in (GROUPS, LEARNERS))

    def _runnable_of(self, predictions: Iterable[Prediction], most: int) -> list[Candidate]:
        ranked, found = Ranking(predictions, self._rank), list[Candidate]()
        for prediction in ranked:
            if self._refusal(prediction.split) is None:
                found.append(self._candidate(prediction))
                if len(found) == most:
                    break
            else:
                ranked.leave_out(lambda other: self._known_refusal(other.split) is not None)
        return found

    def to_try(self, choice: Split) -> list[Candidate]:
        """Find splits that can be run to prove that one of them is the best of all: it comes first.

        The others are the config's own; the best whose roles share cores, or have cores of their own, other
        than the choice's; the choice with pins, or without; and then those next to it.
        """
        wanted = dict.fromkeys(
            (
                choice,
                split_of(self._job),
                *self._best_of_other_kind(choice),
                *self._splits.next_to(choice),
            )
        )
        runnable = (split for split in wanted if self._refusal(split) is None)
        return [self._candidate(self.predict(split)) for split in islice(runnable, TRIED)]

    def _best_of_other_kind(self, choice: Split) -> list[Split]:
        """Find the best split that shares cores if the choice does not, or the other way round."""
        others = [
            found
            for found in self._all
            if found.split.pinned != choice.pinned and _learns_alike(found.split) == _learns_alike(choice)
        ]
        return [candidate.split for candidate in self._runnable_of(others, 1)]

    def _candidate(self, prediction: Prediction) -> Candidate:
        split = prediction.split
        settings = as_settings(self._values(split))
        return Candidate(prediction, tuple(settings), self._changes(split), self._refusal(split))

    def _rank(self, prediction: Prediction) -> tuple[int, int, float]:
        """Order what has the same throughput."""
        split = prediction.split
        environments = split.groups * split.actors * split.num_envs
        return len(self._changes(split)), environments, -prediction.throughput

    def _changes(self, split: Split) -> tuple[str, ...]:
        """List keys that change; where any does, what the config left to the machine has to be said, too."""
        changed = [key for key, value in self._values(split).items() if value != self._configured.get(key)]
        return tuple(dict.fromkeys([*changed, *self._unsaid])) if changed else ()

    def _values(self, split: Split) -> dict[str, str]:
        return split_values(split) | self._of_hosts

    def _known_refusal(self, split: Split) -> str | None:
        of_values = (self._refused.get(pair) for pair in self._values(split).items())
        return next((why for why in of_values if why is not None), None)

    def _refusal(self, split: Split) -> str | None:
        """Say why a split cannot be run. Milliseconds each: not to be asked of all there are."""
        if (known := self._known_refusal(split)) is not None:
            return known
        values = self._values(split)
        try:
            load_config(self._config, [*self._overrides, *as_settings(values)])
        except ConfigError as error:
            reasons = {problem.key: str(replace(problem, where="")) for problem in error.problems}
            for key in REFUSED_ALONE:
                if key in reasons:
                    self._refused[key, values[key]] = reasons[key]
            return next(iter(reasons.values()))
        return None


def _learns_alike(split: Split) -> tuple[int, int, int]:
    return split.groups, split.learners, split.num_envs


def _worth_sharing(predictions: Sequence[Prediction], own: Split) -> Iterator[Prediction]:
    """Yield all but those whose roles share cores for nothing: with cores of their own they do as much."""
    pinned: dict[tuple[int, int, int], float] = {}
    for found in predictions:
        if found.split.pinned:
            key = _learns_alike(found.split)
            pinned[key] = max(found.throughput, pinned.get(key, 0.0))
    for found in predictions:
        least = (1 + TIE) * pinned.get(_learns_alike(found.split), 0.0)
        if found.split.pinned or found.split == own or found.throughput > least:
            yield found


class Ranking:
    """Predictions, best first: throughputs that are the same are ordered by what else counts.

    Args:
        predictions: in any order.
        rank: of predictions whose throughputs are the same; the least comes first.
    """

    def __init__(
        self, predictions: Iterable[Prediction], rank: Callable[[Prediction], tuple[float, ...]]
    ) -> None:
        self._left = sorted(predictions, key=lambda found: -found.throughput)
        self._rank = rank

    def __iter__(self) -> Iterator[Prediction]:
        while self._left:
            least = (1 - TIE) * self._left[0].throughput
            end = next((i for i, found in enumerate(self._left) if found.throughput < least), len(self._left))
            yield self._left.pop(min(range(end), key=lambda i: self._rank(self._left[i])))

    def take(self, most: int) -> list[Prediction]:
        """Take the first, or fewer if there are no more."""
        return list(islice(self, most))

    def leave_out(self, unwanted: Callable[[Prediction], bool]) -> None:
        """Forget those that are unwanted."""
        self._left = [found for found in self._left if not unwanted(found)]


def check_gpus(cluster: Cluster, device: str) -> None:
    """Refuse GPUs that nobody would use.

    Args:
        cluster: the machines.
        device: where the config's learners compute.

    Raises:
        UsageError: there are GPUs, and learners do not compute on one.
    """
    if cluster.gpus_per_node and not device.startswith("cuda"):
        raise UsageError(
            f"--gpus {cluster.gpus_per_node}: the config's learners compute on {device!r}; "
            "--set distribution.device=cuda gives each a GPU"
        )
