"""What an update costs with more cores, and with the batch divided among more learners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from tianji_lab.model.costs import Cost
from tianji_lab.profile.fits import line
from tianji_lab.profile.measurements import LearnerFigures, Repeated


@dataclass(frozen=True)
class Parts:
    """A learner and the buffer beside it, as they were measured: with some cores, share and environments.

    Attributes:
        uses_per_update: sample uses of an update, with this share.
        updates_per_version: updates between two published policies.
        update: one gradient update.
        draw: to put its batch together.
        publish: for each version.
        store: to check and store a fragment.
        in_a_crowd: all of it was measured in a crowd as well.
    """

    uses_per_update: float
    updates_per_version: float
    update: Cost
    draw: Cost
    publish: Cost
    store: Cost
    in_a_crowd: bool


class LearnerScaling:
    """Looks up what was measured, and goes on from there.

    More cores follow Amdahl's law, ``t(c) = t(1) (s + (1 - s) / c)``, whose serial share ``s`` is fitted to
    what was measured; more learners ``t(L) = a + b / L``: what is paid for each update, and what for its
    samples. What was measured is taken as it is. Several such gains at once are multiplied.

    Args:
        figures: for each number of environments, of one core and an undivided batch at least.
    """

    def __init__(self, figures: Iterable[LearnerFigures]) -> None:
        pairs: dict[tuple[int, int, int], dict[bool, LearnerFigures]] = {}
        for of_one in figures:
            pairs.setdefault((of_one.num_envs, of_one.cores, of_one.share), {})[of_one.crowded] = of_one
        self._parts = {key: _parts(pair) for key, pair in pairs.items()}
        # All cores and shares were measured with one number of environments.
        envs = [num_envs for num_envs, _, _ in pairs]
        base = max(envs, key=envs.count)
        self._by_cores = {c: parts for (n, c, share), parts in self._parts.items() if (n, share) == (base, 1)}
        self._by_share = {share: parts for (n, c, share), parts in self._parts.items() if (n, c) == (base, 1)}
        one_s = self._by_cores[1].update.alone_s
        self._of_cores = {c: parts.update.alone_s / one_s for c, parts in self._by_cores.items()}
        self._of_shares = {share: parts.update.alone_s / one_s for share, parts in self._by_share.items()}
        self._serial = _serial_share(self._of_cores)
        self._line = line((1 / share, factor) for share, factor in self._of_shares.items())

    def parts(self, num_envs: int, cores: int = 1) -> Parts:
        """What was measured with an undivided batch; with one core if not with so many.

        Raises:
            KeyError: nothing was measured with this number of environments.
        """
        parts = self._parts.get((num_envs, cores, 1))
        return parts if parts is not None and parts.in_a_crowd else self._parts[num_envs, 1, 1]

    def update(self, num_envs: int, cores: int, learners: int) -> Cost:
        """An update of one learner.

        Args:
            num_envs: environments of each actor.
            cores: of each learner.
            learners: L, among which the batch is divided.

        Raises:
            KeyError: nothing was measured with this number of environments.
        """
        measured = self._parts.get((num_envs, cores, learners))
        if measured is not None:
            alone_s = measured.update.alone_s
        else:
            one_s = self._parts[num_envs, 1, 1].update.alone_s
            alone_s = one_s * self._factor_of_cores(cores) * self._factor_of_learners(learners)
        return Cost(alone_s, alone_s * self._slower_in_a_crowd(cores, learners))

    def reckoned(self, num_envs: int, cores: int, learners: int) -> tuple[str, ...]:
        """Say in words what of an update was not measured."""
        words = []
        if cores not in self._of_cores:
            law = (
                f"Amdahl's law with {self._serial:.0%} serial, from {_numbers(self._of_cores)} measured"
                if len(self._of_cores) > 1
                else "as fast as with 1, the only number measured"
            )
            words.append(f"a learner with {cores} cores: {law}")
        if learners not in self._of_shares:
            words.append(
                f"a batch divided among {learners} learners: {self._line.intercept:.0%} of the time remains "
                f"with however many, from {_numbers(self._of_shares)} measured"
            )
        if not words and (num_envs, cores, learners) not in self._parts:
            words.append("several changes at once: measured one at a time, and their effects multiplied")
        return tuple(words)

    def _factor_of_cores(self, cores: int) -> float:
        return self._of_cores.get(cores, self._serial + (1 - self._serial) / cores)

    def _factor_of_learners(self, learners: int) -> float:
        return self._of_shares.get(learners, self._line.at(1 / learners))

    def _slower_in_a_crowd(self, cores: int, learners: int) -> float:
        """How many times as long an update takes in a crowd.

        As measured with the most cores, or the most learners, up to this many. With one of each it was
        measured with every number of environments, to which an update is blind: the middle one counts.
        """
        if cores == learners == 1:
            alike = [parts for (_, c, share), parts in self._parts.items() if c == share == 1]
            slower = [_slower(parts) for parts in alike if parts.in_a_crowd]
            return max(1.0, median(slower or [1.0]))
        several, number = (self._by_cores, cores) if cores > 1 else (self._by_share, learners)
        measured = (n for n, parts in several.items() if parts.in_a_crowd and n <= number)
        return max(1.0, _slower(several[max(measured, default=1)]))


def _slower(parts: Parts) -> float:
    return parts.update.crowded_s / parts.update.alone_s


def _parts(pair: Mapping[bool, LearnerFigures]) -> Parts:
    alone = pair.get(False) or pair[True]
    crowded = pair.get(True) or pair[False]

    def cost(alone: Repeated, crowded: Repeated) -> Cost:
        return Cost(alone.cost, crowded.cost)

    return Parts(
        uses_per_update=alone.uses_per_update,
        updates_per_version=alone.updates_per_version,
        update=cost(alone.update_s, crowded.update_s),
        draw=cost(alone.draw_s, crowded.draw_s),
        publish=cost(alone.publish_s, crowded.publish_s),
        store=cost(alone.store_s, crowded.store_s),
        in_a_crowd=True in pair,
    )


def _serial_share(factors: Mapping[int, float]) -> float:
    """Fit s of Amdahl's law, ``t(c) / t(1) = s + (1 - s) / c``, by least squares; 1 with nothing to fit."""
    gaps = [(1 - 1 / c, factor - 1 / c) for c, factor in factors.items() if c > 1]
    if not gaps:
        return 1.0
    return min(max(sum(x * y for x, y in gaps) / sum(x * x for x, _ in gaps), 0.0), 1.0)


def _numbers(of: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(of)))
