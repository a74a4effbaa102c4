"""What `tianji profile` tells people, on stdout: what was measured, what to change, and what that gives.

Lines are made for 80 columns; commands and TOML are never broken, so that they can be copied.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Final

from rich.console import Console
from rich.text import Text

from tianji_cli.quantities import count, duration, several, share, size
from tianji_cli.telemetry.bottleneck import naming_network
from tianji_cli.telemetry.styles import GOOD, LABEL, WARNING
from tianji_cli.telemetry.table import print_table
from tianji_lab.model.costs import ActorCosts, Cost, Costs, Split, Workload
from tianji_lab.model.prediction import Prediction
from tianji_lab.model.rates import NO_CONTENTION, PerRole, rates_at
from tianji_lab.model.simulation import JITTER, Simulation
from tianji_lab.profile.measurements import (
    ActorFigures,
    LearnerFigures,
    Measurements,
    figures_of,
    middle_half,
)
from tianji_lab.profile.result import ProfileResult
from tianji_lab.profile.search import SHOWN, Candidate
from tianji_lab.profile.settings import GROUPS
from tianji_lab.profile.verify import Verified

WIDTH: Final = 80
BEST_WITHIN: Final = 0.05
"""A first choice that is no further behind the best was well chosen."""
SAME: Final = 0.005
"""A gain below this is none."""
OWN_SAMPLES: Final = (
    "Each group learns from samples of its own, and parameters are averaged: what that learns in how many "
    "steps is not what one group would."
)
UNPINNED: Final = "~"
"""Marks splits in which the scheduler deals cores out."""
IN_HEADER: Final = ("CPU", "cores", "measured")
"""What people are shown of the environment."""


def print_result(found: ProfileResult, *, verifies: bool = False, writes: bool = False) -> None:
    """Print everything but what ``--verify`` finds.

    Args:
        verifies: trainings follow; how to ask for them is not said then.
        writes: the config is written; likewise.
    """
    console = Console(highlight=False)
    _print_header(console, found)
    _title(console, "measured")
    _print_facts(console, measured_facts(found))
    _print_candidates(console, found)
    _title(console, "recommended")
    _print_recommendation(console, found)
    if found.extrapolated:
        _print_extrapolation(console, found)
    _title(console, "what to do next")
    _print_facts(console, _next_steps(found, verifies=verifies, writes=writes))


def print_to_try(candidates: Sequence[Candidate]) -> None:
    """Print which splits will be trained with, before they are."""
    console = Console(highlight=False)
    _title(console, "to be trained with")
    rows = [[*_split_cells(one.split), count(one.prediction.throughput)] for one in candidates]
    print_table(["learners", "actors", "predicted"], rows, "to be trained with", right=range(3))


def print_verified(checks: Sequence[Verified]) -> None:
    """Print what trainings came to, beside what was predicted."""
    console = Console(highlight=False)
    _title(console, "predicted beside measured")
    runs = several(len(checks[0].uses_per_s.values), "short training")
    console.print(f"sample uses a second; medians of {runs} of each, in turns", soft_wrap=True)
    rows = [
        [
            *_split_cells(check.split),
            count(check.predicted),
            count(check.measured),
            f"{100 * check.error:+.0f} %",
            share(check.uses_per_s.spread),
        ]
        for check in checks
    ]
    headings = ["learners", "actors", "predicted", "measured", "off", "runs apart"]
    print_table(headings, rows, "predicted beside measured", right=range(len(headings)))
    _print_verdict(console, checks)


def print_written(to: Path, candidate: Candidate, *, is_best: bool) -> None:
    """Describe what was written, and how to use it."""
    console = Console(highlight=False)
    which = "" if is_best else ", the best that can be run"
    console.print()
    console.print(Text(f"{to} is written: {_roles(candidate.split)}{which}"), soft_wrap=True)
    _print_facts(console, [_command("train with it", f"tianji train {shlex.quote(str(to))}")])


def _print_verdict(console: Console, checks: Sequence[Verified]) -> None:
    first, best = checks[0], max(checks, key=lambda check: check.measured)
    if best is first:
        said, style = f"The first choice was measured to be the best of {len(checks)}.", GOOD
    else:
        behind = 1 - first.measured / best.measured
        is_well_chosen = behind <= BEST_WITHIN
        which = "as good as the best" if is_well_chosen else "another split is better"
        said = f"The first choice is {share(behind)} behind {_roles(best.split)}: {which}."
        style = GOOD if is_well_chosen else WARNING
    _print_wrapped(console, said, style)


# -- header and table ----------------------------------------------------------------------------------


def _print_header(console: Console, found: ProfileResult) -> None:
    subject = found.subject
    measured, environment = subject.measurements, subject.environment
    where = f" on {_cores(measured.cores)}, measured in {duration(measured.seconds, decimals=0)}"
    console.print(Text.assemble((subject.config, "bold"), where), soft_wrap=True)
    facts = [(name, environment[name]) for name in IN_HEADER if name in environment]
    facts.append(("config", _roles(found.as_it_is.split)))
    facts.append(("rho", f"{measured.rho:g} uses of each sample"))
    if subject.overrides:
        facts.append(("settings", ", ".join(subject.overrides)))
    _print_facts(console, facts)
    for warning in subject.warnings:
        _print_wrapped(console, f"WARNING: {warning}", WARNING)


def _print_candidates(console: Console, found: ProfileResult) -> None:
    shown = list(found.candidates[:SHOWN])
    if found.runnable is not None and found.runnable not in shown:
        shown.append(found.runnable)
    if (own := found.like_the_config) is not None and own not in shown:
        shown.append(own)
    of_node, nodes = _cores(found.cluster.cores_per_node), found.cluster.nodes
    there = f"{of_node} of each of {nodes} nodes" if nodes > 1 else of_node
    _title(console, f"best ways to split {there}{', extrapolated' if found.extrapolated else ''}")
    _print_wrapped(
        console,
        "Learners x cores of each, actors x environments of each; pinned to cores of their own, or, with a "
        f"{UNPINNED}, sharing all cores. Rates are in sample uses a second: an env step counts as "
        f"{found.subject.measurements.rho:g}, the times it is learned from. What comes of them is uses/s.",
    )
    groups = any(candidate.split.groups > 1 for candidate in shown)
    headings = ["learners", "actors", *(["groups"] if groups else []), "production", "reception"]
    headings += ["consumption", "uses/s", "bottleneck"]
    rows = [_row(candidate, groups=groups) for candidate in shown]
    print_table(headings, rows, "predicted", right=range(len(headings) - 1))
    for why_not in dict.fromkeys(candidate.why_not for candidate in shown if candidate.why_not):
        _print_wrapped(console, f"* cannot be run: {why_not}", WARNING, indent="  ")


def _row(candidate: Candidate, *, groups: bool) -> list[str]:
    split, predicted, limits = candidate.split, candidate.prediction, candidate.prediction.limits
    learners, actors = _split_cells(split)
    return [
        learners if candidate.runnable else f"* {learners}",
        actors,
        *([str(split.groups)] if groups else []),
        *(count(limits[of]) for of in ("production", "reception", "consumption")),
        count(predicted.throughput),
        predicted.bottleneck.kind,
    ]


def _split_cells(split: Split) -> tuple[str, str]:
    unpinned = "" if split.pinned else f"{UNPINNED} "
    return f"{unpinned}{split.learners} x {split.learner_cores}", f"{split.actors} x {split.num_envs}"


# -- recommendation ------------------------------------------------------------------------------------


def _print_recommendation(console: Console, found: ProfileResult) -> None:
    best, choice = found.recommended, found.runnable
    _print_prediction(console, found, best.prediction)
    if choice is None:
        _print_wrapped(console, f"No split of these cores can be run: {best.why_not}", WARNING)
        return
    if choice is not best:
        console.print(Text("This cannot be run. The best that can:", style=WARNING), soft_wrap=True)
        _print_prediction(console, found, choice.prediction)
    if GROUPS in choice.changes and choice.split.groups > 1:
        _print_wrapped(console, OWN_SAMPLES)
    changed = changed_settings(choice)
    if not changed:
        console.print("There is nothing to change in the config.", soft_wrap=True)
        return
    beside = ", beside the settings above" if found.subject.overrides else ""
    console.print(f"To change in {found.subject.config}{beside}:", soft_wrap=True)
    for line in _toml(changed):
        console.print(Text(f"  {line}", style="bold"), soft_wrap=True)


def _print_prediction(console: Console, found: ProfileResult, predicted: Prediction) -> None:
    """Describe what a split gives, what limits it, and what it leaves."""
    split, there = predicted.split, found.cluster.cores
    console.print(Text(_roles(split), style=f"bold {GOOD}"), soft_wrap=True)
    uses, steps = count(predicted.throughput), count(predicted.throughput / predicted.rho)
    rates = f"Predicted: {uses} sample uses a second, from {steps} env steps a second"
    _print_wrapped(console, f"{rates}{_gain(found, predicted)}.")
    best = found.recommended.prediction
    if predicted is best or predicted.bottleneck != best.bottleneck:
        named = naming_network(predicted.bottleneck, found.subject.job.model.settings)
        _print_wrapped(console, f"{named}.")
    if (free := there - split.cores) > 0:
        stay = "stays" if free == 1 else "stay"
        said = f"{free} of the {_cores(there)} {stay} free: more actors would only wait, and more cores would"
        _print_wrapped(console, f"{said} hardly make a learner faster.")


def _gain(found: ProfileResult, predicted: Prediction) -> str:
    """Describe how that lies to the config as it is."""
    before, here = found.as_it_is, found.subject.hosts
    if before.split == predicted.split and found.cluster.nodes == here.nodes:
        return ", which is what the config gives as it is"
    times = predicted.throughput / before.throughput
    if abs(times - 1) < SAME:
        how = "no more than"
    elif times < 1:
        how = f"{share(1 - times)} less than"
    else:
        how = f"{share(times - 1)} more than" if times < 2 else f"{times:.{1 if times < 10 else 0}f} times"
    return f": {how} the {count(before.throughput)} of the config as it is"


def changed_settings(candidate: Candidate) -> list[str]:
    """Take of a candidate's settings those that say something else than the config."""
    return [setting for setting in candidate.settings if setting.partition("=")[0] in candidate.changes]


def _toml(settings: Iterable[str]) -> Iterator[str]:
    """Write settings as the lines of a config."""
    ordered = sorted(setting.rpartition(".") for setting in settings)
    for section, lines in groupby(ordered, key=lambda parts: parts[0]):
        yield f"[{section}]"
        yield from (line.replace("=", " = ", 1) for _, _, line in lines)


def _next_steps(found: ProfileResult, *, verifies: bool, writes: bool) -> Iterator[tuple[str, Text]]:
    subject, choice = found.subject, found.runnable
    given = f"{shlex.quote(subject.config)}{_set_words(subject.overrides)}"
    if choice is None:
        yield _command("on this machine", f"tianji profile {given}")
        return
    changed = _set_words(changed_settings(choice))
    yield _command("train with it", f"tianji train {given}{changed}")
    if changed and not writes:
        file = shlex.quote(f"{subject.job.experiment.name}_tuned.toml")
        yield _command("write it down", f"tianji profile {given}{_cluster_words(found)} --write {file}")
    if found.cluster == subject.hosts and subject.hosts.nodes == 1 and not verifies:
        yield _command("prove it", f"tianji profile {given} --verify")


def _cluster_words(found: ProfileResult) -> str:
    """Name the cluster as the command line does, where it is not the config's hosts."""
    cluster, hosts = found.cluster, found.subject.hosts
    words = ""
    if cluster.cores_per_node != hosts.cores_per_node:
        words += f" --cores {cluster.cores_per_node}"
    if cluster.nodes != hosts.nodes:
        words += f" --nodes {cluster.nodes}"
    return f"{words} --gpus {cluster.gpus_per_node}" if cluster.gpus_per_node else words


def _set_words(settings: Iterable[str]) -> str:
    return "".join(f" --set {shlex.quote(setting)}" for setting in settings)


# -- extrapolation -------------------------------------------------------------------------------------


def _print_extrapolation(console: Console, found: ProfileResult) -> None:
    _title(console, "extrapolated: reckoned, not measured", f"bold {WARNING}")
    measured = (
        f"Measured was one machine with {_cores(found.subject.measurements.cores)}. Reckoned from that:"
    )
    _print_wrapped(console, measured)
    for what in found.extrapolated:
        _print_wrapped(console, f"- {what}", indent="  ")
    if found.cluster.nodes > 1 and found.cluster.link_bytes_per_s is None:
        unlimited = "- links between nodes: no limit; --link-mb MB/S names what they carry"
        _print_wrapped(console, unlimited, indent="  ")
    if found.simulated is not None:
        _print_wrapped(console, _simulated(found.simulated, found.recommended.prediction))
    if found.breaks_first is not None:
        _print_wrapped(console, f"What breaks first: {found.breaks_first.words}.", WARNING)


def _simulated(simulated: Simulation, predicted: Prediction) -> str:
    off = 100 * (simulated.throughput / predicted.throughput - 1)
    return (
        f"A simulation, fragment by fragment, comes to {count(simulated.throughput)} sample uses a second "
        f"where the time of each piece of work varies by {share(JITTER)}, the model to "
        f"{count(predicted.throughput)} ({round(off):+d} %). Policies are {simulated.policy_lag:.1f} "
        "versions old when their samples are used."
    )


# -- words ---------------------------------------------------------------------------------------------


def _roles(split: Split) -> str:
    """Say a split in words."""
    learners = f"{several(split.learners, 'learner')} with {_cores(split.learner_cores)}"
    each = " each" if split.learners > 1 else ""
    actors = f"{several(split.actors, 'actor')} of {several(split.num_envs, 'environment')}"
    groups = f"{split.groups} groups, each of " if split.groups > 1 else ""
    pins = "" if split.pinned else ", unpinned"
    return f"{groups}{learners}{each} and {actors}{pins}"


def _cores(number: int) -> str:
    return several(number, "core")


def _command(label: str, words: str) -> tuple[str, Text]:
    return label, Text(words, style="bold")


def _title(console: Console, words: str, style: str = "bold") -> None:
    console.print()
    console.print(Text(words.upper(), style=style), soft_wrap=True)


def _print_facts(console: Console, facts: Iterable[tuple[str, str | Text]]) -> None:
    facts = list(facts)
    width = max((len(label) for label, _ in facts), default=0)
    for label, fact in facts:
        # Soft wrapping leaves commands whole in a pipe, where rich takes every reader for 80 columns wide.
        lines: list[str | Text] = [fact] if isinstance(fact, Text) else [*_lines(fact, WIDTH - width - 2)]
        for place, line in enumerate(lines):
            said = Text.assemble(((label if place == 0 else "").ljust(width), LABEL), "  ", line)
            console.print(said, soft_wrap=True)


def _print_wrapped(console: Console, words: str, style: str = "", indent: str = "") -> None:
    for line in _lines(words, WIDTH, indent):
        console.print(Text(line, style=style), soft_wrap=True)


def _lines(words: str, width: int, indent: str = "") -> list[str]:
    """Break words into lines; what can be copied, such as a path, stays whole."""
    return wrap(words, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


Fact = tuple[str, str]

FULL_CONTENTION: Final = PerRole(1.0, 1.0, 1.0)
SMALLEST: Final = 0.005
"""Share of an update's time below which nothing is said of a part of it."""


def measured_facts(found: ProfileResult) -> Iterator[Fact]:
    """Describe what was measured with as many environments as configured."""
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
    of_one, of_all = measured.slowdown(crowded=False), measured.slowdown(crowded=True)
    yield "", f"on average one took {of_one:.2f} times its cost, {of_all:.2f} times with all cores at work"


def one_actor(measured: Measurements, num_envs: int) -> ActorFigures:
    """Find what one actor was measured to do while nothing else was at work, as far as that was measured."""
    of_size = [figures for figures in measured.actors if figures.num_envs == num_envs]
    return min(of_size, key=lambda figures: (figures.side_by_side, figures.crowded))


def production(figures: ActorFigures, fragment_s: float, workload: Workload, costs: Costs) -> float:
    """Reckon the sample uses a second for which actors make the samples, as the model does.

    Args:
        fragment_s: of the repeats that were measured, one or their cost.
    """
    actor = ActorCosts(figures.samples, Cost.fixed(fragment_s), costs.actor.send_s)
    split = Split(learners=1, learner_cores=1, actors=figures.side_by_side, num_envs=figures.num_envs)
    return rates_at(split, workload, replace(costs, actor=actor), NO_CONTENTION).actors


def consumption(figures: LearnerFigures, update_s: float, workload: Workload, costs: Costs) -> float:
    """Reckon the sample uses a second that a learner makes, as the model does.

    Args:
        update_s: of the repeats that were measured, one or their cost.
        costs: of everything else, with as many cores.
    """
    learner = replace(costs.learner, update=Cost.fixed(update_s))
    draw, store = Cost.fixed(figures.draw_s.cost), Cost.fixed(figures.store_s.cost)
    as_measured = replace(costs, learner=learner, buffer=replace(costs.buffer, draw=draw, store=store))
    split = Split(learners=1, learner_cores=figures.cores, actors=1, num_envs=figures.num_envs)
    contention = FULL_CONTENTION if figures.crowded else NO_CONTENTION
    return rates_at(split, workload, as_measured, contention).learners


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


def _learner(figures: LearnerFigures, found: ProfileResult) -> str:
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
    (middle, _), (widest, what) = apart[len(apart) // 2], apart[-1]
    return f"the middle half of them {share(middle)} apart as a rule, {share(widest)} at most: {what}"
