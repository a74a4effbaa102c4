"""What was measured, as lines for people: a label and what there is to say of it."""

from __future__ import annotations

from collections.abc import Iterator

from tianji_cli.profiling.measurements import (
    ActorFigures,
    LearnerFigures,
    Measurements,
)
from tianji_cli.profiling.noise import figures_of, middle_half
from tianji_cli.telemetry.quantities import count, duration, share, size
from tianji_cli.throughput.costs import Costs

Fact = tuple[str, str]


def measured_facts(measured: Measurements, num_envs: int, costs: Costs) -> Iterator[Fact]:
    """Say what was measured, in lines of about 80 columns.

    Args:
        measured: everything.
        num_envs: environments of an actor, as configured.
        costs: of the config as it is, on this machine.
    """
    alone = one_actor(measured, num_envs)
    yield from _actor(alone)
    yield from _sizes(measured, num_envs)
    yield from _side_by_side(measured, alone)
    receive_s = costs.buffer.receive_s
    for learner in _learners(measured, num_envs):
        yield f"learner, {_cores(learner.cores)}", _learner(learner, alone.samples, measured.rho, receive_s)
    if measured.transport:
        engine, nbytes = measured.transport[0].engine, measured.fragment_bytes[num_envs]
        stored = costs.buffer.store.alone_s
        yield (
            "transport",
            f"{engine}, {size(round(nbytes / 1024) * 1024)} a fragment: {brief(costs.actor.send_s)} to push "
            f"(T_sd), {brief(receive_s)} to receive,",
        )
        yield "", f"{brief(receive_s + stored)} with checking and storing it (T_rv)"
    if measured.weights:
        reached = ", ".join(f"{brief(of.seconds)} to {_actors(of.actors)}" for of in measured.weights)
        yield "weights", f"{size(round(measured.policy_bytes / 1024) * 1024)} a policy: {reached}"
    if measured.averaging:
        said = (f"{of.learners} in {brief(of.seconds.cost)}" for of in measured.averaging)
        yield "averaging", f"{count(measured.parameters)} gradients over learners: {', '.join(said)}"
    yield "start-up", f"{duration(measured.startup_s)} until a process has built its roles"
    yield "repeats", _spread(measured)


def one_actor(measured: Measurements, num_envs: int) -> ActorFigures:
    """Find what one actor was measured to do while nothing else was at work, as far as that was measured."""
    of_size = [figures for figures in measured.actors if figures.num_envs == num_envs]
    return min(of_size, key=lambda figures: (figures.side_by_side, figures.crowded))


def learner_s(figures: LearnerFigures, fragment_samples: float, rho: float, receive_s: float) -> list[float]:
    """Seconds of one update with all that belongs to it: updating, sampling, publication, receiving.

    Args:
        figures: of the learner and the buffer beside it.
        fragment_samples: env steps in a fragment.
        rho: uses of each sample.
        receive_s: the transport's part of T_rv.
    """
    fragments = figures.uses_per_update / rho / fragment_samples
    return [
        figures.update_s.cost,
        figures.draw_s.cost,
        figures.publish_s.cost / figures.updates_per_version,
        fragments * (receive_s + figures.store_s.cost),
    ]


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
        said = (f"with {number}: {_rate(one_actor(measured, number))}" for number in others)
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


def _learner(figures: LearnerFigures, fragment_samples: float, rho: float, receive_s: float) -> str:
    parts = learner_s(figures, fragment_samples, rho, receive_s)
    names = ("updates", "sampling", "publishing", "receiving")
    said = (f"{name} {share(part / sum(parts))}" for name, part in zip(names, parts, strict=True))
    return f"{count(figures.uses_per_update / sum(parts))} uses/s: {', '.join(said)}"


def _spread(measured: Measurements) -> str:
    apart = sorted((middle_half(repeated), what) for what, repeated in figures_of(measured))
    (usual, _), (widest, what) = apart[len(apart) // 2], apart[-1]
    return f"half of them {share(usual)} apart, {share(widest)} at most: {what}"


def _cores(number: int) -> str:
    return f"{number} core{_s(number)}"


def _actors(number: int) -> str:
    return f"{number} actor{_s(number)}"


def _s(number: int) -> str:
    return "" if number == 1 else "s"
