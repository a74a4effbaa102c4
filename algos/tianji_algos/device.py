"""Copies between a host's memory and a device, through pinned memory.

A copy from or to pageable memory blocks the host until it is done; a copy from or to pinned memory does not.
Data for a device, and parameters to be published, are copied on streams of their own, while networks compute
on another. A network's outputs are copied on the stream that computes them, since the host waits for them.
Each class here also works where the device is a CPU, by plain copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Model

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


def on_host(device: torch.device) -> bool:
    """Whether a device computes in the host's memory, so that nothing need be copied for it."""
    return device.type == "cpu"


def torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's counterpart of a numpy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def as_numbers(array: Array) -> Array:
    """View records ``[...]``, which torch does not know, as their bytes ``[..., record size]``.

    Arrays of numbers stay as they are.
    """
    if array.dtype.names is None:
        return array
    return np.ascontiguousarray(array)[..., None].view(np.uint8)


class RecordParts:
    """Records whose parts are tensors, in place of bytes; files that act without tianji use them.

    Args:
        parts: ``[..., *shape]`` each, by name.
    """

    def __init__(self, parts: Mapping[str, torch.Tensor]) -> None:
        self.parts = parts

    @property
    def device(self) -> torch.device:
        """Device of the parts."""
        return next(iter(self.parts.values())).device

    def unsqueeze(self, dim: int) -> RecordParts:
        """Insert an axis of one."""
        return RecordParts({name: part.unsqueeze(dim) for name, part in self.parts.items()})

    def flatten(self, start_dim: int, end_dim: int) -> RecordParts:
        """Make one axis of several."""
        return RecordParts({name: part.flatten(start_dim, end_dim) for name, part in self.parts.items()})


def part_of_records(records: torch.Tensor | RecordParts, dtype: np.dtype[Any], name: str) -> torch.Tensor:
    """Copy one part ``[N, *shape]`` out of the bytes of records ``[N, size]``, where they are."""
    if isinstance(records, RecordParts):
        return records.parts[name]
    assert dtype.fields is not None
    part, start = dtype.fields[name][:2]
    flat = records[:, start : start + part.itemsize].contiguous()
    return flat.view(torch_type(part.base)).view(len(records), *part.shape)


def replace_part_of_records(
    records: torch.Tensor, dtype: np.dtype[Any], name: str, part: torch.Tensor
) -> None:
    """Write one part ``[N, *shape]`` into the bytes of records ``[N, size]``, where they are."""
    assert dtype.fields is not None
    described, start = dtype.fields[name][:2]
    flat = part.reshape(len(records), -1).contiguous().view(torch.uint8)
    records[:, start : start + described.itemsize] = flat


def own_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Make a stream for copies; None on a CPU, where copies block."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Staging:
    """Host memory that a device copies from or to without blocking the host; it grows and never shrinks."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._copied = torch.cuda.Event() if self._pinned else None  # type: ignore[no-untyped-call]

    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return ``shape`` numbers of this memory, once the last copy is done."""
        self.wait()
        wanted = int(np.prod(shape)) * dtype.itemsize
        if wanted > len(self._memory):
            self._memory = torch.empty(wanted, dtype=torch.uint8, pin_memory=self._pinned)
        return self._memory[:wanted].view(dtype).view(shape)

    def mark(self) -> None:
        """Mark the work queued on the current stream so far as the last copy."""
        if self._copied is not None:
            self._copied.record()

    @property
    def is_ready(self) -> bool:
        """Whether the last copy is done."""
        return self._copied is None or bool(self._copied.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until the last copy is done."""
        if self._copied is not None:
            self._copied.synchronize()

    def let_wait(self, stream: torch.cuda.Stream) -> None:
        """Make later work of a stream wait for the last copy; the host goes on."""
        if self._copied is not None:
            stream.wait_event(self._copied)


class Uploads:
    """Copies arrays to a device on a stream of its own.

    The host fills one of two pieces of pinned memory while the device copies from the other.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = own_stream(device)
        self._staging = [Staging(device), Staging(device)]

    def __call__(self, array: Array) -> torch.Tensor:
        """Return a copy of ``array`` on the device, for later work of the current stream.

        ``array`` may change as soon as this returns.
        """
        return self.begin(array)()

    def begin(self, array: Array) -> Callable[[], torch.Tensor]:
        """Begin to copy ``array``, which may change as soon as this returns.

        The current stream goes on, and does not wait until it needs the copy.

        Returns:
            A function that returns the copy, for work that the current stream gets after that call.
        """
        with torch.cuda.stream(self._stream):
            staging, host = self._stage(array)
            tensor = host.to(self._device, non_blocking=self._stream is not None, copy=True)
            staging.mark()
        return partial(self._hand_over, tensor, staging)

    def _hand_over(self, tensor: torch.Tensor, staging: Staging) -> torch.Tensor:
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            staging.let_wait(current)
            # The copying stream owns this memory, and might free it while the current one still reads it.
            tensor.record_stream(current)
        return tensor

    def fill(self, parts: Iterable[tuple[torch.Tensor, Array]]) -> None:
        """Copy arrays into tensors of the same size and type on the device.

        Work queued on the current stream still reads the old numbers; later work reads the new ones. Each
        array may change as soon as this asks for the next.
        """
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for tensor, array in parts:
            with torch.cuda.stream(self._stream):
                staging, host = self._stage(array)
                tensor.copy_(host, non_blocking=self._stream is not None)
                staging.mark()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _stage(self, array: Array) -> tuple[Staging, torch.Tensor]:
        """Copy into the staging memory that was used longest ago."""
        array = as_numbers(array)
        self._staging.reverse()
        staging = self._staging[0]
        host = staging.reserve(array.shape, torch_type(array.dtype))
        np.copyto(host.numpy(), array)
        return staging, host


class Downloads:
    """Copies tensors from a device into reused host memory, with one wait for all of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._staging: list[Staging] = []

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[Floats, ...]:
        """Return copies of float32 tensors as arrays, which the next call reuses."""
        self._staging += [Staging(self._device) for _ in tensors[len(self._staging) :]]
        by_itself = self._device.type == "cuda"
        copies = [
            staging.reserve(tuple(tensor.shape), torch.float32).copy_(tensor.detach(), non_blocking=by_itself)
            for staging, tensor in zip(self._staging, tensors, strict=False)
        ]
        if by_itself:
            torch.cuda.current_stream(self._device).synchronize()
        return tuple(copy.numpy() for copy in copies)


class Exchange:
    """Gives a network on a device its input, and a host the network's output.

    On a CPU both are views, and nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        in_place = on_host(device)
        self.begin: Callable[[Array], Callable[[], torch.Tensor]] = (
            partial(partial, _view) if in_place else Uploads(device).begin
        )
        """Begins to copy an array; returns a function that gives the tensor, as ``Uploads.begin`` does."""
        self._download: Callable[[Sequence[torch.Tensor]], tuple[Floats, ...]] = (
            _views if in_place else Downloads(device)
        )

    def to_device(self, values: Array | torch.Tensor) -> torch.Tensor:
        """Return an array as a tensor on the device, records as bytes; a tensor is returned as it is."""
        return values if isinstance(values, torch.Tensor) else self.begin(values)()

    def to_host(self, tensors: Sequence[torch.Tensor]) -> tuple[Floats, ...]:
        """Return float32 tensors as arrays, which the next call may reuse."""
        return self._download(tensors)

    def to_host_if(self, values: Floats | torch.Tensor, *, asked: bool) -> Floats | None:
        """Return float32 values as an array; None for a tensor that was not asked for."""
        if not isinstance(values, torch.Tensor):
            return values
        return self.to_host((values,))[0] if asked else None


class Snapshot:
    """Copy of a model's parameters at one moment, in the host's memory.

    A GPU first copies them within its own memory, which takes microseconds, and then to the host, while
    training goes on.

    Args:
        header_nbytes: bytes before the parameters, a multiple of 4.

    Attributes:
        memory: host memory: the header, then ``[parameter_count]`` as ``Model.write_parameters`` writes them.
    """

    def __init__(self, model: Model, header_nbytes: int = 0) -> None:
        self._model = model
        device = device_of(model)
        self._staging, self._stream = Staging(device), own_stream(device)
        nbytes = header_nbytes + 4 * model.parameter_count
        memory = self._staging.reserve((nbytes,), torch.uint8)
        self._parameters = memory[header_nbytes:].view(torch.float32)
        self.memory = memory.numpy().data

    def take(self) -> None:
        """Begin a copy of the present parameters; later updates do not change it."""
        if self._stream is None:
            self._model.write_parameters(self._parameters.numpy())
            return
        current = torch.cuda.current_stream(self._stream.device)
        flat = self._model.flat_parameters()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._parameters.copy_(flat, non_blocking=True)
            self._staging.mark()
        flat.record_stream(self._stream)  # The current stream frees it, and the copying stream reads it.

    @property
    def is_there(self) -> bool:
        """Whether the parameters have arrived in ``memory``."""
        return self._staging.is_ready

    def wait(self) -> None:
        """Wait until the parameters have arrived."""
        self._staging.wait()


def is_on_host(model: torch.nn.Module) -> bool:
    """Whether a network's parameters are in the host's memory."""
    return on_host(device_of(model))


def device_of(model: torch.nn.Module) -> torch.device:
    """Return the device of a network."""
    return next(model.parameters()).device


def _view(array: Array) -> torch.Tensor:
    """View an array as a tensor; torch knows no read-only memory, which is what a transport lends."""
    numbers = as_numbers(array)
    return torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())


def _views(tensors: Sequence[torch.Tensor]) -> tuple[Floats, ...]:
    return tuple(tensor.detach().numpy() for tensor in tensors)
