"""Observations of a rollout: what ``take`` gives is what the policy saw, wherever it is gathered."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.teams import random_records, team_spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_algos.core import Spaces
from tianji_algos.rollout_observations import DeviceFrames, HostFrames, Observations, frame_numbers

Fragment = dict[str, npt.NDArray[Any]]

DTYPES = ("uint8", "float32", "int64")


def spaces_with(stack: int, shape: tuple[int, ...]) -> Spaces:
    seen = (stack, *shape) if stack > 1 else shape
    return Spaces(gym.spaces.Box(0, 255, seen), gym.spaces.Discrete(2), stack)


def random_fragments(
    rng: np.random.Generator, number: int, steps: int, num_envs: int, stack: int, dtype: str
) -> list[Fragment]:
    return [
        {
            "observation": rng.integers(1, 100, (stack + steps, num_envs, 3, 2)).astype(dtype),
            "mask": rng.random((steps, num_envs)) > 0.3,
        }
        for _ in range(number)
    ]


def seen(fragment: Fragment, t: int, n: int, stack: int) -> npt.NDArray[Any]:
    """Observation that the policy saw before step t, by the rule in words."""
    frames = fragment["observation"][t : t + stack, n].copy()
    resets = [r for r in range(t) if not fragment["mask"][r, n]]
    if resets:
        first = resets[-1] + stack  # Row of the frame that begins the episode.
        for plane in range(stack):
            if t + plane < first:
                frames[plane] = 0
    return frames if stack > 1 else frames[0]


def all_seen(fragments: list[Fragment], stack: int) -> npt.NDArray[Any]:
    steps, num_envs = fragments[0]["mask"].shape
    return np.stack(
        [
            seen(fragment, t, n, stack)
            for fragment in fragments
            for t in range(steps + 1)
            for n in range(num_envs)
        ]
    )


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    number=st.integers(1, 3),
    steps=st.integers(1, 9),
    num_envs=st.integers(1, 3),
    stack=st.sampled_from((1, 2, 4, 6)),
    dtype=st.sampled_from(DTYPES),
)
def test_rows_are_what_the_policy_saw(
    seed: int, number: int, steps: int, num_envs: int, stack: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    observations = Observations(spaces_with(stack, (3, 2)), torch.device("cpu"))
    for count in (number, 1):  # The second rollout is smaller, in memory that is kept.
        fragments = random_fragments(rng, count, steps, num_envs, stack, dtype)
        expected = all_seen(fragments, stack)
        observations.gather(fragments)
        for fragment in fragments:
            fragment["observation"][:] = 255
        rows = rng.integers(0, len(expected), (2, 5))
        taken = observations.take(rows)
        assert taken.dtype == dtype
        assert np.array_equal(taken, expected[rows])


KINDS = pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
"""Devices; a CPU stands in for one by the same steps with plain copies."""


@KINDS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stack", [1, 4])
def test_a_device_gathers_what_a_host_gathers(stack: int, dtype: str, kind: str) -> None:
    rng = np.random.default_rng(7)
    on_host, on_device = HostFrames(), DeviceFrames(torch.device(kind))
    for number in (2, 3, 1):
        fragments = random_fragments(rng, number, 40, 8, stack, dtype)
        frames = [fragment["observation"] for fragment in fragments]
        numbers = frame_numbers(np.stack([fragment["mask"] for fragment in fragments]), stack)
        numbers = numbers[rng.permutation(len(numbers))]
        for array in frames:
            array.flags.writeable = False  # As a transport lends it.
        on_host.hold(frames)
        on_device.hold(frames)
        taken = on_device.take(numbers)
        assert isinstance(taken, torch.Tensor)
        assert np.array_equal(taken.cpu().numpy(), on_host.take(numbers))


def test_memory_is_kept_and_an_empty_share_has_rows_of_the_right_shape() -> None:
    observations = Observations(spaces_with(4, (3, 2)), torch.device("cpu"))
    observations.gather(random_fragments(np.random.default_rng(1), 2, 5, 2, 4, "uint8"))
    assert observations.take(np.empty(0, np.intp)).shape == (0, 4, 3, 2)
    first = observations.take(np.arange(6))
    assert np.shares_memory(first, observations.take(np.arange(4)))


@KINDS
def test_a_device_holds_records_as_bytes(kind: str) -> None:
    rng, spaces = np.random.default_rng(0), team_spaces(state=3)
    fragments = [random_records(rng, (5, 2), spaces) for _ in range(2)]
    rows = rng.permutation(20)
    on_host, on_device = HostFrames(), DeviceFrames(torch.device(kind))
    for frames in (on_host, on_device):
        frames.hold(fragments)
    expected = on_host.take(rows)
    np.testing.assert_array_equal(
        expected["observation"], np.concatenate(fragments).reshape(-1)["observation"][rows]
    )
    found = on_device.take(rows).cpu().numpy()
    assert found.shape == (20, spaces.observation.dtype.itemsize)
    np.testing.assert_array_equal(found.view(spaces.observation.dtype)[:, 0], expected)
