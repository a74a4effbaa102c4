"""Learners of a group in step: gradients are added up over ``torch.distributed``, with the same bits for all.

In a computer's memory everything is added up by the first learner, in the order of the learners, and sent
back: two messages one after the other. That takes half as long as gloo's own reduction of a small network's
gradient, and no longer with a large one's. On GPUs NCCL adds up, which was written by NCCL's documentation
and has not been run: there was no machine with a GPU for each learner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from tianji_algos.core import AllReduce
from tianji_cli.errors import TianjiError
from tianji_transports.zmq.door import keep_out, listening

LOOPBACK: Final = "127.0.0.1"
FIRST: Final = 0
"""The learner that adds up, and whose parameters count."""

TAG: Final = 0
FOR_EVER: Final = timedelta(days=365)
"""A learner that is suspended is waited for; one that is dead closes its connections."""

UNTOLD_LIMIT_S: Final = 10.0
"""How long a learner that misses another waits to be told what became of it."""

_C10D: Any = distributed
"""Torch's stubs know less of it than there is."""

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class LostPeerError(TianjiError):
    """Another learner of the group is not there any more."""


class DivergedLearnersError(TianjiError):
    """Learners that make the same updates have different parameters."""


class AllReduceGroup(AllReduce):
    """One learner's connections to the others; all of them call the same methods in the same order.

    A learner that misses another closes its own connections, so that all hear of it. A learner leaves by
    closing them between two updates.

    Args:
        store: file by which they find each other; it is new, and removed as soon as they have.
        index: which of them this one is.
        number: how many there are.
        device: where this one computes.
        timeout_s: how long it waits for the others to come.

    Attributes:
        lost: set once another is gone.

    Raises:
        LostPeerError: the others have not come in time.
    """

    def __init__(
        self, store: Path, index: int, number: int, device: str = "cpu", timeout_s: float = 120.0
    ) -> None:
        self.index = index
        self.number = number
        self.lost: LostPeerError | None = None
        self._lost_at = 0.0
        self._sums = _Received(number - 1)
        self._digest = _Digest()
        self._present = torch.zeros(1)
        try:
            found = _C10D.FileStore(str(store), number)
            found.set_timeout(timedelta(seconds=timeout_s))
            self._group: Any | None = _gloo(found, index, number, timeout_s)
            self._devices = _nccl(found, index, number, device)
            if self._devices is not None:
                # NCCL connects when it is first used, by the store.
                first = torch.ones(1, device=device)
                self._devices.allreduce([first]).wait()
                first.cpu()
        except RuntimeError as cause:  # What torch raises, time-outs included.
            raise LostPeerError(
                f"the {number} learners of the group have not met within {timeout_s:g} s ({store})"
            ) from cause
        self.add_up(torch.ones(1))
        if index == FIRST:
            store.unlink(missing_ok=True)

    def add_up(self, values: torch.Tensor) -> None:
        """Replace contiguous ``values``, in place, by their sum over all learners: the same bits for each.

        Raises:
            LostPeerError: another learner is gone; ``values`` are of no use.
        """
        if not values.is_cuda:
            self._exchange(self._add_up_in_memory, values)
        elif self._devices is not None:
            self._exchange(self._add_up_on_devices, values)
        else:
            in_memory = values.cpu()
            self._exchange(self._add_up_in_memory, in_memory)
            values.copy_(in_memory)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace contiguous tensors, in place, by those of the first learner.

        Raises:
            LostPeerError: another learner is gone; the tensors are of no use but to the first.
        """
        for tensor in tensors:
            in_memory = tensor.detach().cpu()  # Itself, if it is there.
            self._exchange(self._send_to_all if self.index == FIRST else self._receive, in_memory)
            if tensor.is_cuda and self.index != FIRST:
                tensor.detach().copy_(in_memory)

    def check_same(self, version: int, parameters: npt.NDArray[np.float32]) -> None:
        """Compare 64 bits of all learners' parameters ``[parameter_count]``.

        Args:
            version: of the policy; for the message.
            parameters: of this learner.

        Raises:
            DivergedLearnersError: they differ; every learner raises it.
            LostPeerError: another learner is gone.
        """
        digests = torch.zeros(self.number, dtype=torch.int64)
        digests[self.index] = self._digest(parameters)
        self.add_up(digests)
        different = [str(index) for index in range(self.number) if digests[index] != digests[FIRST]]
        if different:
            raise DivergedLearnersError(
                f"the learners of the group have different parameters after version {version} of the policy: "
                f"learner {' and '.join(different)} of {self.number} not those of learner {FIRST}; an update "
                "that depends on nothing but parameters, shared gradients and its shards would be right"
            )

    def await_news(self) -> None:
        """Be patient with a loss for a while: the root, which knows its cause, ends this learner meanwhile.

        Raises:
            LostPeerError: it has not.
        """
        if self.lost is not None and time.monotonic() - self._lost_at >= UNTOLD_LIMIT_S:
            raise LostPeerError(str(self.lost))

    def close(self) -> None:
        """Close the connections; a learner that still waits for this one is told so by that."""
        self._group = self._devices = None

    def _exchange(self, exchange: Callable[[torch.Tensor], None], values: torch.Tensor) -> None:
        """Send and receive, or notice that one is gone."""
        if self._group is None:
            raise LostPeerError(str(self.lost or "the connections to the other learners are closed"))
        try:
            exchange(values)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
        else:
            return
        # Raised out here, and not kept: an exception keeps frames, and these keep the connections.
        self.lost = LostPeerError(f"learner {self.index} of the group has lost another in mid-update: {why}")
        self._lost_at = time.monotonic()
        self.close()
        raise LostPeerError(str(self.lost))

    def _add_up_on_devices(self, values: torch.Tensor) -> None:
        assert self._devices is not None
        # NCCL does not return from a sum whose peer has left: none begins one before all are there.
        self._add_up_in_memory(self._present)
        self._devices.allreduce([values]).wait()

    def _add_up_in_memory(self, values: torch.Tensor) -> None:
        assert self._group is not None
        if self.index != FIRST:
            self._group.send([values], FIRST, TAG).wait(FOR_EVER)
            self._receive(values)
            return
        others = self._sums.like(values)
        coming = [self._group.recv([other], index, TAG) for index, other in enumerate(others, start=1)]
        for work, other in zip(coming, others, strict=True):
            work.wait(FOR_EVER)
            values += other
        self._send_to_all(values)

    def _send_to_all(self, values: torch.Tensor) -> None:
        assert self._group is not None
        for work in [self._group.send([values], index, TAG) for index in range(1, self.number)]:
            work.wait(FOR_EVER)

    def _receive(self, values: torch.Tensor) -> None:
        assert self._group is not None
        self._group.recv([values], FIRST, TAG).wait(FOR_EVER)


class _Received:
    """Memory for what the other learners send, kept for every kind of tensor."""

    def __init__(self, others: int) -> None:
        self._others = others
        self._memory: dict[tuple[torch.dtype, torch.Size], list[torch.Tensor]] = {}

    def like(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Give a tensor for each other learner."""
        kind = values.dtype, values.shape
        if kind not in self._memory:
            self._memory[kind] = [torch.empty_like(values) for _ in range(self._others)]
        return self._memory[kind]


class _Digest:
    """Sums up an array's 64-bit words, each times an odd number of its own: any one that differs shows."""

    def __init__(self) -> None:
        self._factors = np.empty(0, np.uint64)
        self._mixed = np.empty(0, np.uint64)

    def __call__(self, parameters: npt.NDArray[np.float32]) -> int:
        """Give 64 bits as a signed number."""
        pairs, odd = divmod(len(parameters), 2)
        words = parameters[: 2 * pairs].view(np.uint64)
        if len(self._factors) != pairs:
            self._factors = np.arange(1, 2 * pairs, 2, dtype=np.uint64) * _SPREAD
            self._mixed = np.empty_like(self._factors)
        # The highest bits of a word would reach few of the product's.
        np.right_shift(words, np.uint64(32), out=self._mixed)
        np.bitwise_xor(words, self._mixed, out=self._mixed)
        total = np.dot(self._mixed, self._factors)
        if odd:
            total = total + np.uint64(parameters[-1:].view(np.uint32)[0])
        return int(np.uint64(total).astype(np.int64))


def _gloo(store: Any, index: int, number: int, timeout_s: float) -> Any:
    """Connect the learners, all of which are on this host, over loopback, and admit no other process.

    gloo ends the process when strangers have taken its last descriptor.
    """
    gloo = _C10D.ProcessGroupGloo
    before = listening()
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 1
    group = gloo(store, index, number, options)
    for descriptor in listening() - before:
        keep_out(descriptor)
    return group


def _nccl(store: Any, index: int, number: int, device: str) -> Any | None:
    """Connect the learners' GPUs, if each has its own."""
    store.set(f"device-{index}", device)
    devices = {store.get(f"device-{other}") for other in range(number)}
    nccl = getattr(_C10D, "ProcessGroupNCCL", None)
    if nccl is None or not device.startswith("cuda") or len(devices) < number:
        return None
    return nccl(store, index, number, nccl.Options())
