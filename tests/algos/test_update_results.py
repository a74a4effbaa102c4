"""Results of updates, and update rules that return the number of uses alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tianji_algos.core import UpdateResult, complete_results
from tianji_algos.errors import AlgorithmError

ERRORS = np.array([1.0, 2.0], np.float32)


class CountsUses:
    """An update rule that returns a number, and has priorities beside it where it is asked for them."""

    def update(self, batch: list[int]) -> int:
        return len(batch)

    @property
    def priorities(self) -> npt.NDArray[np.float32]:
        return ERRORS


class HasNoPriorities(CountsUses):
    @property
    def priorities(self) -> npt.NDArray[np.float32]:
        pytest.fail("they were made")


class ReturnsResults:
    def __init__(self, result: UpdateResult) -> None:
        self.result = result

    def update(self, batch: list[int]) -> UpdateResult:  # noqa: ARG002
        return self.result


def completed(rule: Any, *, prioritised: bool) -> UpdateResult:
    return complete_results(rule, prioritised=prioritised).update([4, 5, 6])


def test_a_rule_that_returns_the_number_of_uses_has_its_priorities_read_where_they_are_needed() -> None:
    result = completed(CountsUses(), prioritised=True)
    assert result.uses == 3
    assert result.priorities is ERRORS
    assert completed(HasNoPriorities(), prioritised=False) == UpdateResult(3, None)


@pytest.mark.parametrize("prioritised", [False, True])
def test_a_result_is_handed_on_as_it_is(prioritised: bool) -> None:
    result = UpdateResult(2, ERRORS)
    assert completed(ReturnsResults(result), prioritised=prioritised) is result


def test_a_prioritised_replay_refuses_a_rule_without_priorities() -> None:
    with pytest.raises(AlgorithmError, match=r'ReturnsResults gives .*sampler = "uniform" would be right'):
        completed(ReturnsResults(UpdateResult(2)), prioritised=True)


def test_a_result_counts_as_its_uses() -> None:
    consumed = 10
    consumed += UpdateResult(3)
    assert consumed == 13
    assert sum([UpdateResult(3), UpdateResult(4, ERRORS)]) == 7
