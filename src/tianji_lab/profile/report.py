"""Prints the results of `tianji profile`: times of the parts, the race, the recommended split and its gain.

Lines have at most 80 columns; commands and TOML are never broken, so that users can copy them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Final

from rich.console import Console
from rich.text import Text

from tianji_cli.quantities import count, duration, several, share
from tianji_cli.telemetry.bottleneck import naming_network
from tianji_cli.telemetry.styles import GOOD, WARNING
from tianji_cli.telemetry.tables import Fact, print_facts, print_table
from tianji_lab.profile.candidates import Candidate
from tianji_lab.profile.parts import Part
from tianji_lab.profile.race import ROUNDS, Contender, Race
from tianji_lab.profile.result import Profile
from tianji_lab.profile.split import GROUPS, Split

WIDTH: Final = 80
BEST_WITHIN: Final = 0.05
"""Share behind the best within which a winner was well chosen."""
SAME: Final = 0.005
"""Gain below which two rates are the same."""
OWN_SAMPLES: Final = (
    "Each group learns from samples of its own, and parameters are averaged: what that learns in how many "
    "steps is not what one group would."
)
UNPINNED: Final = "~"
"""Mark of splits whose roles share all cores."""
APART: Final = (
    "+ 1: a process that runs the network for all actors of a group. The prediction does not know what "
    "asking costs, so only the race can recommend it."
)
IN_HEADER: Final = ("CPU", "cores", "measured")
"""Subjects of the environment's description that the header shows."""


def print_profile(found: Profile, *, writes: bool = False) -> None:
    """Print a profile.

    Args:
        writes: the command also writes the config, so leave out how to do that.
    """
    console = Console(highlight=False)
    _print_header(console, found)
    _title(console, "measured")
    _print_facts(_measured_facts(found))
    _print_candidates(console, found)
    if found.race is not None:
        _print_race(console, found.race)
    if found.verified:
        _print_verified(console, found.verified)
    _title(console, "recommended")
    _print_recommendation(console, found)
    _title(console, "what to do next")
    _print_facts(_next_steps(found, writes=writes))


def print_written(to: Path, candidate: Candidate) -> None:
    """Print the file that was written, and how to train with it."""
    console = Console(highlight=False)
    console.print()
    console.print(Text(f"{to} is written: {_roles(candidate.split)}"), soft_wrap=True)
    _print_facts([_command("train with it", f"tianji train {shlex.quote(str(to))}")])


# -- header and tables ---------------------------------------------------------------------------------


def _print_header(console: Console, found: Profile) -> None:
    measured, environment = found.measured.measurements, found.measured.environment
    where = f" on {_cores(measured.cores)}, measured in {duration(measured.seconds, decimals=0)}"
    console.print(Text.assemble((found.config, "bold"), where), soft_wrap=True)
    facts: list[Fact] = [(name, environment[name]) for name in IN_HEADER if name in environment]
    facts.append(("config", _roles(found.as_it_is.split)))
    facts.append(("rho", f"{measured.rho:g} uses of each sample"))
    if found.overrides:
        facts.append(("settings", ", ".join(found.overrides)))
    _print_facts(facts)
    for warning in found.warnings:
        _print_wrapped(console, f"WARNING: {warning}", WARNING)


def _measured_facts(found: Profile) -> Iterator[Fact]:
    first, *others = found.measured.measurements.parts
    act, step = first.act_s / first.sample_s, first.step_s / first.sample_s
    rest = share(max(0.0, 1 - act - step))
    yield "one actor", f"{_rate(first)} env steps/s with {first.num_envs} environments:"
    yield "", f"inference {share(act)}, environments {share(step)}, rest {rest}"
    sizes = [part for part in others if part.num_envs != first.num_envs]
    if sizes:
        yield "", ", ".join(f"{_rate(part)} with {part.num_envs}" for part in sizes)
    push, receive = _brief(first.push_s), _brief(first.receive_s)
    yield "transport", f"{push} to push a fragment (T_sd), {receive} to receive it (T_rv)"
    uses = f"{first.uses_per_update:.0f} sample uses"
    yield "learner", f"{_brief(first.learn_s)} an update of {uses}: {_parts_of_update(first)}"
    for part in others:
        if part.num_envs == first.num_envs:
            learners = f"{several(part.learners, 'learner')} with {_cores(part.learner_cores)}"
            yield "", f"{_brief(part.learn_s)} with {learners}"


def _rate(part: Part) -> str:
    return count(part.samples / part.sample_s)


def _parts_of_update(part: Part) -> str:
    named = {"gradients": part.update_s, "sampling": part.draw_s, "rest": part.other_s}
    return ", ".join(f"{name} {share(seconds / part.learn_s)}" for name, seconds in named.items())


def _print_candidates(console: Console, found: Profile) -> None:
    of_node, nodes = _cores(found.model.cluster.cores_per_node), found.model.cluster.nodes
    there = f"{of_node} of each of {nodes} nodes" if nodes > 1 else of_node
    extrapolated = list(found.extrapolated)
    _title(console, f"splits of {there}{', extrapolated' if extrapolated else ''}")
    _print_wrapped(
        console,
        "Learners x cores of each, actors x environments of each; pinned to cores of their own, or, with a "
        f"{UNPINNED}, sharing all cores. Rates are in sample uses a second: an env step counts as "
        f"{found.measured.measurements.rho:g}, the times it is learned from. Predicted is uses/s.",
    )
    groups = any(candidate.split.groups > 1 for candidate in found.listed)
    headings = ["learners", "actors", *(["groups"] if groups else []), "production", "reception"]
    headings += ["consumption", "uses/s", "bottleneck"]
    rows = [_row(candidate, groups=groups) for candidate in found.listed]
    print_table(headings, rows, "predicted", right=range(len(headings) - 1))
    for why_not in dict.fromkeys(candidate.why_not for candidate in found.listed if candidate.why_not):
        _print_wrapped(console, f"* not recommended: {why_not}", WARNING, indent="  ")
    for beyond in extrapolated:
        _print_wrapped(console, f"- {beyond}", indent="  ")
    if any(candidate.split.inference for candidate in found.listed):
        _print_wrapped(console, f"- {APART}", indent="  ")


def _row(candidate: Candidate, *, groups: bool) -> list[str]:
    split, limits = candidate.split, candidate.prediction.limits
    learners, actors = _split_cells(split)
    return [
        learners if candidate.why_not is None else f"* {learners}",
        actors,
        *([str(split.groups)] if groups else []),
        *(_limit(limits[of]) for of in ("production", "reception", "consumption")),
        count(candidate.prediction.throughput),
        candidate.prediction.bottleneck.kind,
    ]


def _limit(limit: float) -> str:
    return count(limit) if math.isfinite(limit) else "-"


def _print_race(console: Console, race: Race) -> None:
    _title(console, f"trained with, in {duration(race.seconds, decimals=0)}")
    _print_contenders(race.contenders)
    for one in race.failed:
        _print_wrapped(
            console, f"* {_roles(one.candidate.split)} failed: {one.failure}", WARNING, indent="  "
        )
    if race.fell_back:
        words = "All finalists failed in a later round: the first is the best of those dropped before."
        _print_wrapped(console, words, WARNING)
        return
    if race.is_clear:
        first, *others = race.contenders
        is_best = all(first.measured >= one.measured for one in others)
        words = "The first is the best." if is_best else "A tie: the first changes least of the config."
        _print_wrapped(console, words, GOOD)
        return
    remedy = f"--race-s gives it longer, --verify trains {ROUNDS} times with each"
    _print_wrapped(console, f"The race is not clear: the next may be as good; {remedy}.", WARNING)


def _print_contenders(contenders: Sequence[Contender]) -> None:
    rows = [
        [
            *_split_cells(contender.candidate.split),
            count(contender.candidate.prediction.throughput),
            count(contender.measured),
            f"{100 * (contender.candidate.prediction.throughput / contender.measured - 1):+.0f} %",
            str(len(contender.uses_per_s)),
            share(contender.rates.apart),
        ]
        for contender in contenders
    ]
    headings = ["learners", "actors", "predicted", "measured", "off", "runs", "runs apart"]
    print_table(headings, rows, "predicted beside measured", right=range(len(headings)))


def _print_verified(console: Console, verified: Sequence[Contender]) -> None:
    _title(console, "verified")
    _print_contenders(verified)
    first, best = verified[0], max(verified, key=lambda one: one.rates.middle)
    behind = 1 - first.rates.middle / best.rates.middle
    if best is first:
        _print_wrapped(console, f"The first was measured to be the best of {len(verified)}.", GOOD)
    elif behind <= BEST_WITHIN:
        _print_wrapped(
            console, f"The first is {share(behind)} behind {_roles(best.candidate.split)}: as good.", GOOD
        )
    else:
        text = f"The first is {share(behind)} behind {_roles(best.candidate.split)}: that one is recommended."
        _print_wrapped(console, text, WARNING)


def _split_cells(split: Split) -> tuple[str, str]:
    unpinned = "" if split.pinned else f"{UNPINNED} "
    apart = f" + {split.inference}" if split.inference else ""
    return f"{unpinned}{split.learners} x {split.learner_cores}", f"{split.actors} x {split.num_envs}{apart}"


# -- recommendation ------------------------------------------------------------------------------------


def _print_recommendation(console: Console, found: Profile) -> None:
    best = found.recommended
    console.print(Text(_roles(best.split), style=f"bold {GOOD}"), soft_wrap=True)
    _print_wrapped(console, _rates(found))
    named = naming_network(best.prediction.bottleneck, found.model.job.model.settings)
    _print_wrapped(console, f"{named}.")
    _print_wrapped(console, _equation_4(found))
    if best.why_not is not None:
        _print_wrapped(console, f"No split of these cores is recommended: {best.why_not}", WARNING)
        return
    if GROUPS in best.changes and best.split.groups > 1:
        _print_wrapped(console, OWN_SAMPLES)
    changed = _changed_settings(best)
    if not changed:
        console.print("There is nothing to change in the config.", soft_wrap=True)
        return
    beside = ", beside the settings above" if found.overrides else ""
    console.print(f"To change in {found.config}{beside}:", soft_wrap=True)
    for line in _toml(changed):
        console.print(Text(f"  {line}", style="bold"), soft_wrap=True)


def _rates(found: Profile) -> str:
    """Describe the rates of the recommended split, and the gain over the config's own split."""
    rho, predicted = found.measured.measurements.rho, found.recommended.prediction.throughput
    before, after = found.as_it_is.throughput, predicted
    words = f"Predicted: {count(predicted)} sample uses a second"
    if found.race is not None:
        by_split = {one.candidate.split: one.measured for one in found.verified or found.race.contenders}
        after = by_split[found.recommended.split]
        before = by_split.get(found.as_it_is.split, before)
        words = f"Measured: {count(after)} sample uses a second (predicted {count(predicted)})"
    gain = "" if found.as_it_is.split == found.recommended.split else _gain(before, after)
    return f"{words}, from {count(after / rho)} env steps a second{gain}."


def _gain(before: float, after: float) -> str:
    times = after / before
    if abs(times - 1) < SAME:
        how = "no more than"
    elif times < 1:
        how = f"{share(1 - times)} less than"
    else:
        how = f"{share(times - 1)} more than" if times < 2 else f"{times:.{1 if times < 10 else 0}f} times"
    return f": {how} the {count(before)} of the config as it is"


def _equation_4(found: Profile) -> str:
    """Write Equation 4 with the numbers of the recommended split."""
    split, prediction = found.recommended.split, found.recommended.prediction
    cores = f"M_L + M_A = {split.cores_of_learners} + {split.cores_of_actors}"
    there, free = _cores(found.model.cluster.cores), found.model.cluster.cores - split.cores
    used = (
        f"on {there}" if free == 0 else f"share {there}" if free < 0 else f"of {there}, since more would wait"
    )
    limits = prediction.limits
    rates = f"rho T_RA = {_limit(limits['production'])}, T_RL = {count(limits['consumption'])}"
    return f"Equation 4: {cores} {used}; predicted {rates}; P = {found.batch_share:.2g}, as configured."


def _changed_settings(candidate: Candidate) -> list[str]:
    return [setting for setting in candidate.settings if setting.partition("=")[0] in candidate.changes]


def _toml(settings: Iterable[str]) -> Iterator[str]:
    """Write settings as the lines of a config."""
    ordered = sorted(setting.rpartition(".") for setting in settings)
    for section, lines in groupby(ordered, key=lambda parts: parts[0]):
        yield f"[{section}]"
        yield from (line.replace("=", " = ", 1) for _, _, line in lines)


def _next_steps(found: Profile, *, writes: bool) -> Iterator[Fact]:
    given = f"{shlex.quote(found.config)}{_set_words(found.overrides)}"
    best, is_here = found.recommended, found.model.cluster == found.hosts
    if best.why_not is not None:
        yield _command("on this machine", f"tianji profile {given}")
        return
    changed = _set_words(_changed_settings(best))
    yield _command("train with it", f"tianji train {given}{changed}")
    if changed and not writes:
        file = shlex.quote(f"{found.model.job.experiment.name}_tuned.toml")
        yield _command("write it down", f"tianji profile {given}{_cluster_words(found)} --write {file}")
    if is_here and found.hosts.nodes == 1 and not found.verified:
        yield _command("prove it", f"tianji profile {given} --verify")


def _cluster_words(found: Profile) -> str:
    """Write the cluster as options of the command; empty if it is the config's hosts."""
    cluster, hosts = found.model.cluster, found.hosts
    words = ""
    if cluster.cores_per_node != hosts.cores_per_node:
        words += f" --cores {cluster.cores_per_node}"
    if cluster.nodes != hosts.nodes:
        words += f" --nodes {cluster.nodes}"
    return f"{words} --gpus {cluster.gpus_per_node}" if cluster.gpus_per_node else words


def _set_words(settings: Iterable[str]) -> str:
    return "".join(f" --set {shlex.quote(setting)}" for setting in settings)


# -- words ---------------------------------------------------------------------------------------------


def _roles(split: Split) -> str:
    """Describe a split: 1 learner with 2 cores and 3 actors of 16 environments."""
    learners = f"{several(split.learners, 'learner')} with {_cores(split.learner_cores)}"
    each = " each" if split.learners > 1 else ""
    actors = f"{several(split.actors, 'actor')} of {several(split.num_envs, 'environment')}"
    groups = f"{split.groups} groups, each of " if split.groups > 1 else ""
    return f"{groups}{learners}{each} and {actors}{split.manner}"


def _cores(number: int) -> str:
    return several(number, "core")


def _brief(seconds: float) -> str:
    """Write a short time: 61 us, 1.2 ms, 0.4 s."""
    if seconds < 0.9995e-3:
        return f"{1e6 * seconds:.0f} us"
    return f"{1e3 * seconds:.1f} ms" if seconds < 0.09995 else f"{seconds:.2f} s"


def _command(label: str, words: str) -> tuple[str, Text]:
    return label, Text(words, style="bold")


def _title(console: Console, words: str, style: str = "bold") -> None:
    console.print()
    console.print(Text(words.upper(), style=style), soft_wrap=True)


def _print_facts(facts: Iterable[Fact]) -> None:
    """Print facts in lines of 80 columns, in a pipe, too; commands stay whole."""
    facts, lines = list(facts), list[Fact]()
    room = WIDTH - max(len(label) for label, _ in facts) - 2
    for label, fact in facts:
        broken: Sequence[str | Text] = [fact] if isinstance(fact, Text) else _lines(fact, room)
        lines += [("" if place else label, line) for place, line in enumerate(broken)]
    print_facts((), lines)


def _print_wrapped(console: Console, words: str, style: str = "", indent: str = "") -> None:
    for line in _lines(words, WIDTH, indent):
        console.print(Text(line, style=style), soft_wrap=True)


def _lines(words: str, width: int, indent: str = "") -> list[str]:
    """Break text into lines between words, so that a path, for example, stays whole."""
    return wrap(words, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
