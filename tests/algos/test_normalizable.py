"""The numbers of records: they are normalised, and what is beside them stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.teams import random_records, team_spaces
from algos.test_observations import PICTURES, SMALL
from gymnasium import spaces

from tianji_algos.core import ALONE, Spaces, build_model
from tianji_algos.device import RecordParts, as_numbers
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.normalizable import MOST, Numbers
from tianji_algos.normalization import Normalization, Normalizer, acting_executor, build_normalizer

STEPS, ENVS = 3, 4
CHOICE = spaces.Discrete(3)


def of_a_team(rows: int) -> Any:
    return random_records(np.random.default_rng(0), (rows,), team_spaces(state=5))


RECORDS = pytest.mark.parametrize(
    ("seen_in", "records", "count"),
    [
        (Spaces(SMALL, CHOICE), SMALL.draw(STEPS * ENVS), 4),
        (Spaces(PICTURES, CHOICE), PICTURES.draw(STEPS * ENVS), 3),
        (team_spaces(state=5), of_a_team(STEPS * ENVS), None),
    ],
    ids=["dict", "images", "team"],
)


def filter_of(numbers: Numbers) -> npt.NDArray[np.float32]:
    """Mean and one over the deviation of each number, one of which will be clipped."""
    rng = np.random.default_rng(1)
    found = np.stack((rng.normal(size=numbers.count), rng.uniform(0.5, 4, numbers.count))).astype(np.float32)
    found[0, 0] = -100.0
    return found


@RECORDS
def test_numbers_of_records_are_normalised_and_nothing_else_is(
    seen_in: Spaces, records: Any, count: int | None
) -> None:
    numbers = Numbers.of(seen_in)
    by, before = filter_of(numbers), records.copy()
    wanted = np.clip((numbers.rows(records) - by[0]) * by[1], -MOST, MOST)
    assert (wanted == MOST).any()
    assert count in (None, wanted.shape[1])
    rollout = records.reshape(STEPS, ENVS)
    into = numbers.empty(rollout.shape, rollout)

    numbers.normalize(rollout, *by, into)

    np.testing.assert_allclose(numbers.rows(into.reshape(-1)), wanted, rtol=1e-6)
    assert records.dtype.names is not None
    for name in set(records.dtype.names) - set(numbers.parts):
        np.testing.assert_array_equal(into[name], rollout[name])
    np.testing.assert_array_equal(records, before)


@RECORDS
def test_torch_normalises_bytes_and_parts_of_records_alike(
    seen_in: Spaces, records: Any, count: int | None
) -> None:
    del count
    numbers = Numbers.of(seen_in)
    by = filter_of(numbers)
    wanted = numbers.empty(records.shape, records)
    numbers.normalize(records, *by, wanted)
    mean, scale = torch.from_numpy(by)

    given = torch.from_numpy(as_numbers(records.copy()))
    found = numbers.normalize_in_torch(given, mean, scale)
    assert isinstance(found, torch.Tensor)
    seen = found.numpy().view(records.dtype)[:, 0]
    parts = RecordParts({name: torch.from_numpy(records[name].copy()) for name in records.dtype.names})
    in_parts = numbers.normalize_in_torch(parts, mean, scale)
    assert isinstance(in_parts, RecordParts)

    for name in records.dtype.names:
        np.testing.assert_allclose(seen[name], wanted[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(in_parts.parts[name], wanted[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(given.numpy().view(records.dtype)[:, 0], records)


def test_a_policy_acts_on_normalised_parts() -> None:
    seen_in, records = Spaces(SMALL, CHOICE), SMALL.draw(ENVS)
    model = build_model(MLPActorCritic, seen_in, MLPActorCriticSettings(hidden=(8,), policy_gain=1.0), 0)
    plain, _ = (output.copy() for output in model.executor(ENVS)(records))
    build_normalizer(model, seen_in, Normalization(observations=True, rewards=False, gamma=0.9))
    moments = model.normalizer.observations
    moments.mean[:], moments.variance[:] = 0.5, 4.0
    policy, _ = acting_executor(model, ENVS)(records)
    halved = records.copy()
    halved["numbers"] = (records["numbers"] - 0.5) / 2
    expected, _ = model.executor(ENVS)(halved)
    np.testing.assert_allclose(policy, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(policy - plain).max() > 1e-2


def test_records_without_floats_are_refused() -> None:
    without = Spaces(spaces.Dict({"mode": CHOICE, "flags": spaces.MultiBinary(2)}), CHOICE)
    assert Numbers.find(without) is None
    with pytest.raises(UnsupportedSpaceError, match="normalize_observations = false would be right"):
        Numbers.of(without)


@pytest.mark.parametrize(
    ("kind", "offset", "width"),
    [
        (np.float32, 0.0, 1.0),
        (np.float32, 0.0, 1e-6),
        (np.float32, 1e6, 50.0),
        (np.float64, 0.0, 1.0),
        (np.float64, 0.0, 1e-6),
        (np.float64, 1e6, 50.0),
        (np.float64, 1.7e9, 2.0),
        (np.int64, 0.0, 1.0),
        (np.int64, 1e6, 50.0),
        (np.int64, 1.7e9, 2.0),
    ],
)
def test_numbers_far_from_zero_and_close_together_are_told_apart(
    kind: Any, offset: float, width: float
) -> None:
    seen = (offset + width * np.arange(-3, 4)[:, None]).astype(kind)
    seen_in = Spaces(spaces.Box(-np.inf, np.inf, (1,), kind), spaces.Discrete(2))
    normalizer = Normalizer(seen_in, Normalization(observations=True, rewards=False, gamma=0.99))
    for _ in range(3):
        normalizer.update_drawn(seen, ALONE)
    sent = torch.cat([buffer.reshape(-1).float() for buffer in normalizer.buffers()])
    other = Normalizer(seen_in, normalizer.asked)
    start = 0
    for buffer in other.buffers():
        buffer.copy_(sent[start : start + buffer.numel()].view_as(buffer))
        start += buffer.numel()
    wanted = np.arange(-3, 4)[:, None] / 2.0
    for one in (normalizer, other):
        mean, scale = one.filter()
        assert one.numbers is not None
        into = one.numbers.empty(seen.shape, seen)
        one.numbers.normalize(seen, mean.numpy(), scale.numpy(), into)
        in_torch = one.seen(torch.from_numpy(seen))
        assert isinstance(in_torch, torch.Tensor)
        assert into.dtype == in_torch.numpy().dtype == np.float32
        for found in (into, in_torch.numpy()):
            np.testing.assert_allclose(found, wanted, atol=0.01)
