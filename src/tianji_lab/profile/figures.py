"""Turns what probes did in their windows into seconds of each piece of work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

from tianji_lab.profile.measurements import ActorFigures, LearnerFigures, Repeated, SharingFigures
from tianji_lab.profile.phases import Phase
from tianji_lab.profile.probe.protocol import Acted, ActedWindow, Learned, LearnedWindow

_W = TypeVar("_W")


class _Acting(NamedTuple):
    num_envs: int
    side_by_side: int
    crowded: bool
    unpinned: bool


class _Learning(NamedTuple):
    cores: int
    share: int
    num_envs: int
    crowded: bool
    unpinned: bool


class Notebook:
    """Keeps all windows by what they are windows of, in the order in which they were measured."""

    def __init__(self) -> None:
        self._acted: dict[_Acting, list[Sequence[ActedWindow]]] = defaultdict(list)
        self._learned: dict[_Learning, list[LearnedWindow]] = defaultdict(list)

    def add(self, phase: Phase, crowded: bool, acted: Sequence[Acted], learned: Learned | None) -> None:
        """Note what was done.

        Args:
            phase: what ran.
            crowded: no core was idle.
            acted: by each of the actors. Windows count that all of them have.
            learned: by the learner, if there was one.
        """
        if acted:
            windows = zip(*(answer.windows for answer in acted), strict=False)
            self._acted[_Acting(phase.num_envs, phase.actors, crowded, phase.unpinned)] += windows
        if learned is not None:
            setting = _Learning(phase.learner_cores, phase.share, phase.num_envs, crowded, phase.unpinned)
            self._learned[setting] += learned.windows

    def actors(self) -> tuple[ActorFigures, ...]:
        """Seconds of actors' work, for each setting in which some ran on cores of their own."""
        return tuple(self._of_actors(unpinned=False))

    def learners(self) -> tuple[LearnerFigures, ...]:
        """Seconds of learners' work, for each setting in which one ran on cores of its own."""
        return tuple(self._of_learners(unpinned=False))

    def sharing(self) -> SharingFigures | None:
        """Seconds of the work of roles that shared all cores; None if there was no time for it."""
        actors, learners = list(self._of_actors(unpinned=True)), list(self._of_learners(unpinned=True))
        return SharingFigures(actors=actors[0], learner=learners[0]) if actors and learners else None

    def _of_actors(self, *, unpinned: bool) -> Iterator[ActorFigures]:
        for setting, windows in sorted(self._acted.items()):
            if setting.unpinned == unpinned:
                yield _actors(setting, windows)

    def _of_learners(self, *, unpinned: bool) -> Iterator[LearnerFigures]:
        for setting, windows in sorted(self._learned.items()):
            if setting.unpinned == unpinned:
                yield _learner(setting, windows, self._updates_per_version(setting.num_envs))

    def _updates_per_version(self, num_envs: int) -> float:
        """Count updates between two versions, which neither cores nor shares of the batch change in a job.

        A probe that has a share of the batch makes more of them in a round, since its rollout is whole.
        """
        usual = min(of for of in self._learned if of.num_envs == num_envs and of.share == 1)
        return _ratio(self._learned[usual], lambda one: one.updates, lambda one: one.versions)


def _actors(setting: _Acting, windows: Sequence[Sequence[ActedWindow]]) -> ActorFigures:
    def each(seconds: Callable[[ActedWindow], float]) -> Repeated:
        return Repeated(
            values=tuple(median(seconds(one) / one.fragments for one in of_all) for of_all in windows)
        )

    everything = [window for of_all in windows for window in of_all]
    return ActorFigures(
        num_envs=setting.num_envs,
        side_by_side=setting.side_by_side,
        crowded=setting.crowded,
        samples=_ratio(everything, lambda one: one.samples, lambda one: one.fragments),
        fragment_s=each(lambda one: one.busy_s),
        act_s=each(lambda one: one.act_s),
        step_s=each(lambda one: one.step_s),
    )


def _learner(
    setting: _Learning, windows: Sequence[LearnedWindow], updates_per_version: float
) -> LearnerFigures:
    def each(seconds: Callable[[LearnedWindow], float], count: Callable[[LearnedWindow], int]) -> Repeated:
        return Repeated(values=tuple(seconds(window) / count(window) for window in windows))

    return LearnerFigures(
        cores=setting.cores,
        share=setting.share,
        num_envs=setting.num_envs,
        crowded=setting.crowded,
        uses_per_update=_ratio(windows, lambda one: one.uses, lambda one: one.updates),
        updates_per_version=updates_per_version,
        update_s=each(lambda one: one.update_s, lambda one: one.updates),
        draw_s=each(lambda one: one.draw_s, lambda one: one.updates),
        publish_s=each(lambda one: one.rest_s, lambda one: one.versions),
        store_s=each(lambda one: one.store_s, lambda one: one.fragments),
    )


def _ratio(windows: Sequence[_W], of: Callable[[_W], float], count: Callable[[_W], float]) -> float:
    return sum(map(of, windows)) / sum(map(count, windows))
