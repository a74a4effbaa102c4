"""Turns what probes did in their windows into seconds of each piece of work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple, TypeVar

from tianji_cli.profiling.measurements import ActorFigures, LearnerFigures, Repeated
from tianji_cli.profiling.phases import Phase
from tianji_cli.profiling.protocol import Acted, ActedWindow, Learned, LearnedWindow

LEAST: Final = 1
"""Fragments, updates or versions in a repeat: windows in which none is finished are added up."""

_W = TypeVar("_W")


class _Acting(NamedTuple):
    num_envs: int
    side_by_side: int
    crowded: bool


class _Learning(NamedTuple):
    cores: int
    share: int
    num_envs: int
    crowded: bool


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
            acted: by each of the actors.
            learned: by the learner, if there was one.
        """
        if acted:
            windows = zip(*(answer.windows for answer in acted), strict=True)
            self._acted[_Acting(phase.num_envs, phase.actors, crowded)] += windows
        if learned is not None:
            of_learner = _Learning(phase.learner_cores, phase.share, phase.num_envs, crowded)
            self._learned[of_learner] += learned.windows

    def actors(self) -> tuple[ActorFigures, ...]:
        """Seconds of actors' work, for each setting in which some ran."""
        return tuple(_actors(setting, windows) for setting, windows in sorted(self._acted.items()))

    def learners(self) -> tuple[LearnerFigures, ...]:
        """Seconds of learners' work, for each setting in which one ran."""
        return tuple(
            _learner(setting, windows, self._updates_per_version(setting.num_envs))
            for setting, windows in sorted(self._learned.items())
        )

    def _updates_per_version(self, num_envs: int) -> float:
        """Count updates between two versions, which neither cores nor shares of the batch change in a job.

        A learner with all of the batch, as few cores as any and nothing beside it is one whose windows end
        with a version, if there are such at all.
        """
        usual = min(of for of in self._learned if of.num_envs == num_envs and of.share == 1)
        return _ratio(self._learned[usual], lambda one: one.updates, lambda one: one.versions)


def _actors(setting: _Acting, windows: Sequence[Sequence[ActedWindow]]) -> ActorFigures:
    repeats = together(windows, lambda of_all: min(one.fragments for one in of_all), LEAST)
    # A repeat is a few moments, each a window of every actor; turned round, the windows of each actor.
    by_actor = [list(zip(*moments, strict=True)) for moments in repeats]

    def each(seconds: Callable[[ActedWindow], float]) -> Repeated:
        return Repeated(
            values=tuple(
                median(_ratio(of_actor, seconds, lambda one: one.fragments) for of_actor in repeat)
                for repeat in by_actor
            )
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
        repeats = together(windows, count, LEAST)
        return Repeated(values=tuple(_ratio(repeat, seconds, count) for repeat in repeats))

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


def together(windows: Iterable[_W], count: Callable[[_W], float], least: float) -> list[list[_W]]:
    """Add neighbours up until each of them counts enough; what is left at the end goes to the last.

    Args:
        windows: in the order in which they were measured.
        count: what has to be enough.
        least: how much is.
    """
    groups: list[list[_W]] = []
    group: list[_W] = []
    for window in windows:
        group.append(window)
        if sum(map(count, group)) >= least:
            groups.append(group)
            group = []
    if group:
        groups.append([*groups.pop(), *group] if groups else group)
    return groups


def _ratio(windows: Iterable[_W], seconds: Callable[[_W], float], count: Callable[[_W], float]) -> float:
    windows = list(windows)
    return sum(map(seconds, windows)) / sum(map(count, windows))
