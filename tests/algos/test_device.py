"""Copies to and from a device. Without a GPU a CPU stands in for one: the same steps, by plain copies."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch

from tianji_algos import registry
from tianji_algos.core import Model, Spaces, build_model
from tianji_algos.device import Downloads, Exchange, Snapshot, Uploads
from tianji_algos.models.settings import MLPActorCriticSettings

KINDS = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
SPACES = Spaces(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2))


def network(kind: str) -> Model:
    model_type = registry.load("model", "mlp_actor_critic")
    return build_model(model_type, SPACES, MLPActorCriticSettings(hidden=(8,)), 1).to(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_random_streams_are_what_they_were_after_a_model_is_built(kind: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3, device=kind).tolist()
    torch.manual_seed(5)
    network("cpu")
    assert torch.rand(3, device=kind).tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float32", "float64"])
def test_what_is_uploaded_is_what_the_array_was(kind: str, dtype: str) -> None:
    upload = Uploads(torch.device(kind))
    rng = np.random.default_rng(1)
    array = np.zeros((3, 5), dtype)
    pairs = []
    for _ in range(6):  # More than there are staging buffers.
        array[...] = rng.integers(0, 2, array.shape)
        array.flags.writeable = False
        pairs.append((upload(array), array.copy()))
        array.flags.writeable = True
    array[...] = 0
    for tensor, expected in pairs:
        assert tensor.device.type == kind
        assert np.array_equal(tensor.cpu().numpy(), expected)
        assert tensor.cpu().numpy().dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_whose_upload_has_begun_may_change_and_are_handed_over_in_any_order(kind: str) -> None:
    upload = Uploads(torch.device(kind))
    array = np.zeros(100_000, np.float32)
    begun = []
    for number in range(5):  # More than there are staging buffers.
        array[...] = number
        begun.append(upload.begin(array))
    array[...] = -1
    for number in (3, 0, 4, 1, 2):
        tensor = begun[number]()
        assert tensor.device.type == kind
        assert tensor.tolist() == [number] * len(array)


@pytest.mark.parametrize("kind", KINDS)
def test_filled_tensors_are_what_the_arrays_were_as_they_were_asked_for(kind: str) -> None:
    upload = Uploads(torch.device(kind))
    memory = torch.full((5, 1000), -1.0, device=kind)
    before = memory * 2
    array = np.zeros(1000, np.float32)

    def parts() -> Iterator[tuple[torch.Tensor, npt.NDArray[np.float32]]]:
        for number in range(len(memory)):
            array[...] = number
            yield memory[number], array

    upload.fill(parts())
    array[...] = -2
    assert (memory + 1).cpu().tolist() == [[number + 1] * 1000 for number in range(5)]
    assert before.cpu().tolist() == [[-2] * 1000] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_any_layout_and_size_are_uploaded(kind: str) -> None:
    upload = Uploads(torch.device(kind))
    array = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    for view in (array.T, array[::2], array[:0], array[0, 0]):
        assert np.array_equal(upload(np.asarray(view)).cpu().numpy(), view)


@pytest.mark.parametrize("kind", KINDS)
def test_downloads_are_kept_until_the_next(kind: str) -> None:
    download = Downloads(torch.device(kind))
    tensors = [torch.arange(6.0, device=kind).view(2, 3), torch.ones(4, device=kind)]
    first = download(tensors)
    assert [array.tolist() for array in first] == [tensor.tolist() for tensor in tensors]
    others = [tensor + 1 for tensor in tensors]
    second = download(others)
    assert [array.tolist() for array in second] == [tensor.tolist() for tensor in others]
    for array, again in zip(first, second, strict=True):
        assert np.shares_memory(array, again)
    larger = torch.arange(9.0, device=kind)
    assert download([larger])[0].tolist() == larger.tolist()


def test_a_network_on_a_cpu_is_given_views_and_gives_views() -> None:
    cpu = torch.device("cpu")
    exchange, array = Exchange(cpu), np.zeros((2, 3), np.float32)
    tensor = exchange.to_device(array)
    assert np.shares_memory(tensor.numpy(), array)
    assert np.shares_memory(exchange.to_host([tensor])[0], array)
    assert exchange.to_device(tensor) is tensor
    assert np.shares_memory(exchange.begin(array)().numpy(), array)


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_follows_its_header_and_shows_nothing_of_later_training(kind: str) -> None:
    model = network(kind)
    expected = np.zeros(model.parameter_count, np.float32)
    model.write_parameters(expected)
    snapshot = Snapshot(model, 8)
    snapshot.memory[:8] = b"beforeit"
    snapshot.take()
    model.read_parameters(np.zeros_like(expected))
    snapshot.wait()
    assert snapshot.is_there
    assert bytes(snapshot.memory[:8]) == b"beforeit"
    assert np.array_equal(np.frombuffer(snapshot.memory[8:], np.float32), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_the_same_in_one_tensor_and_in_one_array(kind: str) -> None:
    model = network(kind)
    written = np.zeros(model.parameter_count, np.float32)
    model.write_parameters(written)
    assert np.array_equal(model.flat_parameters().cpu().numpy(), written)
    model.read_parameters(2 * written)
    assert np.array_equal(model.flat_parameters().cpu().numpy(), 2 * written)
