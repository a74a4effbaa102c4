"""Figure 5 of the paper, by name: what each of its four parts varies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tianji_cli.errors import UsageError

FIGURE_KB: Final = 512.0
POWERS_KB: Final = tuple(float(1 << power) for power in range(14))
"""1 KB to 8 MB."""
COUNTS: Final = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Figure:
    """What a part of Figure 5 varies.

    Attributes:
        sizes_kb: of messages.
        actors: numbers of them.
        sample_times_s: what they take for a sample.
        hosts: that the processes have to be on: exactly one, exactly two, or at least two (``MANY``).
    """

    sizes_kb: Sequence[float]
    actors: Sequence[int]
    sample_times_s: Sequence[float]
    hosts: str


ONE, TWO, MANY = "one host", "two hosts", "several hosts"

FIGURES: Final[Mapping[str, Figure]] = {
    "5a": Figure(POWERS_KB, (1,), (0.0,), ONE),
    "5b": Figure((FIGURE_KB,), COUNTS, (0.001, 0.01), ONE),
    "5c": Figure((FIGURE_KB,), COUNTS, (0.001, 0.01), MANY),
    "5d": Figure(POWERS_KB, (1,), (0.0,), TWO),
}


def figure_named(name: str, hosts: int, most_actors: int | None) -> Figure:
    """Find a figure and fit it to the processes that there are.

    Args:
        name: ``5a`` to ``5d``.
        hosts: that the processes are on.
        most_actors: as many as a launcher has started; None without one.

    Raises:
        UsageError: there is no such figure, or it needs other hosts.
    """
    if name not in FIGURES:
        raise UsageError(f"no figure {name!r}; there are: {', '.join(FIGURES)}")
    figure = FIGURES[name]
    fits = {ONE: hosts == 1, TWO: hosts == 2, MANY: hosts > 1}[figure.hosts]
    if not fits:
        where = f"these processes are on {hosts} host{'s' if hosts > 1 else ''}"
        raise UsageError(
            f"figure {name} is measured on {figure.hosts}, and {where}: start it so, "
            "such as mpiexec -hosts A,B -n 3 tianji bench ... or srun --mpi=pmi2 -N2 -n3 tianji bench ..."
            if figure.hosts != ONE
            else f"figure {name} is measured on one host, and {where}"
        )
    actors = [count for count in figure.actors if most_actors is None or count <= most_actors]
    return Figure(figure.sizes_kb, actors, figure.sample_times_s, figure.hosts)
