"""What was measured, as lines for people: a label and what there is to say of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tianji_cli.quantities import count, duration, several, share, size
from tianji_lab.model.costs import ActorCosts, Cost, Costs
from tianji_lab.model.rates import PerRole, rates_at
from tianji_lab.model.seats import NOBODY
from tianji_lab.model.split import Split
from tianji_lab.model.workload import Workload
from tianji_lab.profile.findings import Findings
from tianji_lab.profile.measurements import ActorFigures, LearnerFigures, Measurements
from tianji_lab.profile.noise import figures_of, middle_half

Fact = tuple[str, str]

EVERYBODY: Final = PerRole(1.0, 1.0, 1.0)
SMALLEST: Final = 0.005
"""Share of an update's time below which nothing is said of a part of it."""


def measured_facts(found: Findings) -> Iterator[Fact]:
    """Say what was measured with as many environments as configured.

    Args:
        found: what was measured, and what it costs.
    """
    measured, costs = found.subject.measurements, found.costs
    num_envs = found.as_it_is.split.num_envs
    alone = one_actor(measured, num_envs)
    yield from _actor(alone)
    yield from _sizes(measured, num_envs)
    yield from _side_by_side(measured, alone)
    for learner in _learners(measured, num_envs):
        yield f"learner, {several(learner.cores, 'core')}", _learner(learner, found)
    if measured.transport:
        engine, nbytes = measured.transport[0].engine, measured.fragment_bytes[num_envs]
        receive_s, stored_s = costs.buffer.receive_s, _learners(measured, num_envs)[0].store_s.cost
        yield (
            "transport",
            f"{engine}, {size(round(nbytes / 1024) * 1024)} a fragment: "
            f"{brief(costs.actor.send_s)} to push (T_sd),",
        )
        received_s = receive_s + stored_s
        yield "", f"{brief(receive_s)} to receive, {brief(received_s)} with checking and storing it (T_rv)"
    if measured.weights:
        reached = ", ".join(
            f"{brief(of.seconds)} to {several(of.actors, 'actor')}" for of in measured.weights
        )
        yield "weights", f"{size(round(measured.policy_bytes / 1024) * 1024)} a policy: {reached}"
    if measured.averaging:
        said = (f"{of.learners} in {brief(of.seconds.cost)}" for of in measured.averaging)
        yield "averaging", f"{count(measured.parameters)} gradients over learners: {', '.join(said)}"
    yield "start-up", f"{duration(measured.startup_s)} until a process has built its roles"
    yield "repeats", _spread(measured)
    of_one, of_all = measured.usual(crowded=False), measured.usual(crowded=True)
    yield "", f"on average one took {of_one:.2f} times its cost, {of_all:.2f} times with all cores at work"


def one_actor(measured: Measurements, num_envs: int) -> ActorFigures:
    """Find what one actor was measured to do while nothing else was at work, as far as that was measured."""
    of_size = [figures for figures in measured.actors if figures.num_envs == num_envs]
    return min(of_size, key=lambda figures: (figures.side_by_side, figures.crowded))


def production(figures: ActorFigures, fragment_s: float, workload: Workload, costs: Costs) -> float:
    """Reckon the sample uses a second for which actors make the samples, as the model does.

    Args:
        figures: of the actors.
        fragment_s: of the repeats that were measured, one or their cost.
        workload: what the job asks of the machine.
        costs: of everything else.
    """
    actor = ActorCosts(figures.samples, Cost.fixed(fragment_s), costs.actor.send_s)
    split = Split(learners=1, learner_cores=1, actors=figures.side_by_side, num_envs=figures.num_envs)
    return rates_at(split, workload, replace(costs, actor=actor), NOBODY).actors


def consumption(figures: LearnerFigures, update_s: float, workload: Workload, costs: Costs) -> float:
    """Reckon the sample uses a second that a learner makes, as the model does.

    Args:
        figures: of the learner.
        update_s: of the repeats that were measured, one or their cost.
        workload: what the job asks of the machine.
        costs: of everything else, with as many cores.
    """
    learner = replace(costs.learner, update=Cost.fixed(update_s))
    draw, store = Cost.fixed(figures.draw_s.cost), Cost.fixed(figures.store_s.cost)
    as_measured = replace(costs, learner=learner, buffer=replace(costs.buffer, draw=draw, store=store))
    split = Split(learners=1, learner_cores=figures.cores, actors=1, num_envs=figures.num_envs)
    crowd = EVERYBODY if figures.crowded else NOBODY
    return rates_at(split, workload, as_measured, crowd).learners


def brief(seconds: float) -> str:
    """Write a short time: 61 us, 1.2 ms, 0.4 s."""
    if seconds < 0.9995e-3:
        return f"{1e6 * seconds:.0f} us"
    return f"{1e3 * seconds:.1f} ms" if seconds < 0.09995 else f"{seconds:.2f} s"


# -- actors --------------------------------------------------------------------------------------------


def _actor(figures: ActorFigures) -> Iterator[Fact]:
    whole = figures.fragment_s.cost
    act, step = figures.act_s.cost / whole, figures.step_s.cost / whole
    yield "one actor core", f"{_rate(figures)} env steps/s with {figures.num_envs} environments:"
    rest = share(max(1 - act - step, 0))
    yield "", f"inference {share(act)}, environments {share(step)}, rest {rest}"


def _rate(figures: ActorFigures) -> str:
    return count(figures.samples / figures.fragment_s.cost)


def _sizes(measured: Measurements, num_envs: int) -> Iterator[Fact]:
    others = sorted({figures.num_envs for figures in measured.actors} - {num_envs})
    if others:
        said = (f"{_rate(one_actor(measured, number))} with {number}" for number in others)
        yield "", ", ".join(said)


def _side_by_side(measured: Measurements, alone: ActorFigures) -> Iterator[Fact]:
    found = {
        figures.side_by_side: alone.fragment_s.cost / figures.fragment_s.cost
        for figures in measured.actors
        if figures.num_envs == alone.num_envs and figures.side_by_side > 1
    }
    if found:
        said = (f"{number} at {share(speed)}" for number, speed in sorted(found.items()))
        yield "side by side", f"{', '.join(said)} of the speed of one alone"


# -- learners ------------------------------------------------------------------------------------------


def _learners(measured: Measurements, num_envs: int) -> list[LearnerFigures]:
    alone = (
        figures
        for figures in measured.learners
        if figures.num_envs == num_envs and figures.share == 1 and not figures.crowded
    )
    return sorted(alone, key=lambda figures: figures.cores)


def _learner(figures: LearnerFigures, found: Findings) -> str:
    own = replace(found.as_it_is.split, learners=1, groups=1, learner_cores=figures.cores)
    workload, costs = found.subject.workload(own), found.subject.costs_here.at(own)
    uses_per_s = consumption(figures, figures.update_s.cost, workload, costs)
    whole_s = workload.uses_per_update / uses_per_s
    parts = {
        "updates": figures.update_s.cost / whole_s,
        "sampling": figures.draw_s.cost / whole_s if workload.beside_learner else 0.0,
        "publishing": costs.learner.publish.alone_s / workload.updates_per_version / whole_s,
    }
    parts["receiving"] = 1 - sum(parts.values())
    said = (f"{name} {share(part)}" for name, part in parts.items() if part >= SMALLEST)
    return f"{count(uses_per_s)} uses/s: {', '.join(said)}"


def _spread(measured: Measurements) -> str:
    apart = sorted((middle_half(repeated), what) for what, repeated in figures_of(measured))
    (usual, _), (widest, what) = apart[len(apart) // 2], apart[-1]
    return f"the middle half of them {share(usual)} apart as a rule, {share(widest)} at most: {what}"
