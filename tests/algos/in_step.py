"""Learners in step, as threads that add up in memory, and what comes of their training."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from algos.fragments import Fragment
from algos.training import parameters

from tianji_algos.core import AllReduce, RolloutEmbryo

Floats = npt.NDArray[np.float32]
T = TypeVar("T")
PATIENCE_S = 30.0


class Table:
    """Where threads lay down their values."""

    def __init__(self, number: int) -> None:
        self.values: list[torch.Tensor] = [torch.empty(0)] * number
        self.barrier = threading.Barrier(number, timeout=PATIENCE_S)
        self.additions = 0


class Together(AllReduce):
    """Learners that are threads."""

    def __init__(self, table: Table, index: int) -> None:
        self.number = len(table.values)
        self.index = index
        self._table = table

    def add_up(self, values: torch.Tensor) -> None:
        self._table.values[self.index] = values.clone()
        self._table.barrier.wait()
        torch.sum(torch.stack(self._table.values), dim=0, out=values)
        if self._table.barrier.wait() == 0:
            self._table.additions += 1


def in_step(number: int, learn: Callable[[AllReduce], T]) -> tuple[list[T], Table]:
    """Let so many learners learn, each in a thread."""
    table = Table(number)

    def run(index: int) -> T:
        torch.set_num_threads(1)
        try:
            return learn(Together(table, index))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(run, range(number))), table


@dataclasses.dataclass
class Outcome:
    parameters: Floats
    moments: Floats
    uses: int
    updates: int


def train(embryo: RolloutEmbryo, fragments: Sequence[Fragment], rounds: int = 1) -> Outcome:
    used = [embryo.update(batch) for _ in range(rounds) for batch in embryo.minibatches(fragments)]
    moments = torch.cat(list(embryo.averaged_state())).numpy()
    return Outcome(parameters(embryo), moments, sum(used), len(used))


def assert_same(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes[1:]:
        np.testing.assert_array_equal(outcome.parameters, outcomes[0].parameters)
        np.testing.assert_array_equal(outcome.moments, outcomes[0].moments)
        assert (outcome.uses, outcome.updates) == (outcomes[0].uses, outcomes[0].updates)
