"""Probes average arrays with one another, and nobody waits for one that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.profiling.probing import Asked

from tianji_cli.profiling.protocol import Average, Averaged, Failed


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Asked]]:
    place = tmp_path_factory.mktemp("probes")
    with Asked(place) as first, Asked(place) as second:
        yield [first, second]


def part(rank: int, size: int, store: Path, timeout_s: float = 60.0) -> Average:
    return Average(rank=rank, size=size, store=str(store), values=1000, rounds=5, timeout_s=timeout_s)


@pytest.mark.parametrize("size", [2, 1])
def test_each_round_of_each_probe_is_timed(probes: list[Asked], tmp_path: Path, size: int) -> None:
    for rank, probe in enumerate(probes[:size]):
        probe.say(part(rank, size, tmp_path / "store").model_dump_json().encode())
    for probe in probes[:size]:
        answer = probe.hear()
        assert isinstance(answer, Averaged)
        assert len(answer.seconds) == 5
        assert all(second > 0 for second in answer.seconds)


def test_a_probe_whose_partner_never_comes_says_so_and_goes_on(probes: list[Asked], tmp_path: Path) -> None:
    answer = probes[0].ask(part(0, 2, tmp_path / "store", timeout_s=0.5))
    assert isinstance(answer, Failed)
    assert isinstance(probes[0].ask(part(0, 1, tmp_path / "other")), Averaged)
