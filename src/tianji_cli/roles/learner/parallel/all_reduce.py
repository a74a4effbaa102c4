"""All-reduce of a group's learners: gradient sums over ``torch.distributed``, with the same bits for all.

For tensors in host memory the first learner adds up all gradients, in the order of the learners, and sends
the sum back: two messages one after the other. This takes half as long as gloo's own reduction of a small
network's gradient, and no longer with a large one's. On GPUs NCCL adds up; this code follows NCCL's
documentation and has not been run, because there was no machine with a GPU for each learner.

Learners on one host meet by a file, and speak over loopback. Learners on several meet by a TCP store of the
first, whose address the root passes on; neither the store nor gloo encrypts or asks for a key.
"""

from __future__ import annotations

import socket
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
from tianji_cli.wire.address import LOOPBACK
from tianji_transports.zmq.door import keep_out, listening

TCP: Final = "tcp://"
FIRST: Final = 0
"""Index of the learner that adds up, and whose parameters the others take over."""

TAG: Final = 0
FOR_EVER: Final = timedelta(days=365)
"""Time-out of messages: learners wait for a suspended one, and a dead one closes its connections."""

PEER_NOTICE_LIMIT_S: Final = 10.0
"""Seconds that a learner without a peer waits for the root to end it."""

_C10D: Any = distributed
"""``torch.distributed`` without its stubs, which lack parts of it."""

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class LostPeerError(TianjiError):
    """Another learner of the group is gone."""


class DivergedLearnersError(TianjiError):
    """The learners of a group have different parameters."""


class AllReduceGroup(AllReduce):
    """One learner's connections to the others; all learners call the same methods in the same order.

    A learner that loses another closes its own connections, so that all notice. A learner leaves by closing
    its connections between two updates.

    Args:
        index: index of this learner.
        number: number of learners.
        device: device of this learner.
        interface: address of this host for the others; loopback if all are on one.
        timeout_s: seconds that a learner waits for the others.

    Attributes:
        lost: the error, once another learner is gone.
    """

    def __init__(
        self,
        index: int,
        number: int,
        device: str = "cpu",
        interface: str = LOOPBACK,
        timeout_s: float = 120.0,
    ) -> None:
        self.index = index
        self.number = number
        self.lost: LostPeerError | None = None
        self._device = device
        self._interface = interface
        self._timeout_s = timeout_s
        self._store: Any | None = None
        self._door: int | None = None
        """Descriptor at which the first learner's store listens."""
        self._group: Any | None = None
        self._devices: Any | None = None
        self._met = False
        self._lost_at = 0.0
        self._sums = _Received(number - 1)
        self._digest = _Digest()
        self._present = torch.zeros(1)

    def open(self, file: Path) -> str:
        """Open the place where the learners meet: a new file, or a port of the first learner's host.

        Returns:
            The place for ``meet``; empty from all learners but the first.
        """
        if self.index != FIRST:
            return ""
        if self._interface == LOOPBACK:
            return str(file)
        with socket.create_server((self._interface, 0)) as server:
            port = server.getsockname()[1]
            self._door = server.detach()
        self._store = _C10D.TCPStore(
            self._interface, port, is_master=True, wait_for_workers=False, master_listen_fd=self._door
        )
        return f"{TCP}{self._interface}:{port}"

    def meet(self, place: str) -> None:
        """Connect with the other learners, which do so at the same time; only the first call does.

        Raises:
            LostPeerError: the others have not come in time.
        """
        if self._met:
            return
        self._met = True
        index, number, timeout_s = self.index, self.number, self._timeout_s
        try:
            store = self._store or _store_at(place, number, timedelta(seconds=timeout_s))
            store.set_timeout(timedelta(seconds=timeout_s))
            self._group = _gloo(store, index, number, self._interface, timeout_s)
            self._devices = _nccl(store, index, number, self._device)
            if self._devices is not None:
                # NCCL connects when it is first used, by the store.
                first = torch.ones(1, device=self._device)
                self._devices.allreduce([first]).wait()
                first.cpu()
        except RuntimeError as cause:  # Torch raises this for all failures, time-outs included.
            why = str(cause).partition("\n")[0]
            raise LostPeerError(
                f"the {number} learners of the group have not met within {timeout_s:g} s ({place}): {why}"
            ) from cause
        self.add_up(torch.ones(1))
        if self._door is not None:
            keep_out(self._door)  # The connections hold the store, which holds the port.
        elif index == FIRST:
            Path(place).unlink(missing_ok=True)
        self._store = None

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
        """Replace contiguous tensors, in place, by the first learner's.

        Raises:
            LostPeerError: another learner is gone; the tensors are of no use but to the first.
        """
        for tensor in tensors:
            in_memory = tensor.detach().cpu()  # The tensor itself, if it is in host memory.
            self._exchange(self._send_to_all if self.index == FIRST else self._receive, in_memory)
            if tensor.is_cuda and self.index != FIRST:
                tensor.detach().copy_(in_memory)

    def check_same(self, version: int, parameters: npt.NDArray[np.float32]) -> None:
        """Compare 64 bits of all learners' parameters ``[parameter_count]``.

        Args:
            version: version of the policy, for the message.
            parameters: parameters of this learner.

        Raises:
            DivergedLearnersError: the parameters differ; every learner raises it.
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
        """Tolerate a lost peer for a while: the root knows the cause and should end this learner meanwhile.

        Raises:
            LostPeerError: the root has not ended this learner in time.
        """
        if self.lost is not None and time.monotonic() - self._lost_at >= PEER_NOTICE_LIMIT_S:
            raise LostPeerError(str(self.lost))

    def close(self) -> None:
        """Close the connections; a learner that still waits for this one notices."""
        self._met = True
        self._group = self._devices = None

    def _exchange(self, exchange: Callable[[torch.Tensor], None], values: torch.Tensor) -> None:
        """Send and receive; if a peer is gone, close the connections and raise."""
        if self._group is None:
            raise LostPeerError(str(self.lost or "the connections to the other learners are closed"))
        try:
            exchange(values)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
        else:
            return
        # Raised outside the handler, as a new error: an exception keeps frames, which keep the connections.
        self.lost = LostPeerError(f"learner {self.index} of the group has lost another in mid-update: {why}")
        self._lost_at = time.monotonic()
        self.close()
        raise LostPeerError(str(self.lost))

    def _add_up_on_devices(self, values: torch.Tensor) -> None:
        assert self._devices is not None
        # NCCL does not return from a sum whose peer has left, so no learner begins before all are present.
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
    """Memory for the tensors of the other learners, kept for every type and shape."""

    def __init__(self, others: int) -> None:
        self._others = others
        self._memory: dict[tuple[torch.dtype, torch.Size], list[torch.Tensor]] = {}

    def like(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return a tensor for each other learner."""
        kind = values.dtype, values.shape
        if kind not in self._memory:
            self._memory[kind] = [torch.empty_like(values) for _ in range(self._others)]
        return self._memory[kind]


class _Digest:
    """Hashes an array: sums its 64-bit words, each times its own odd number, so one difference shows."""

    def __init__(self) -> None:
        self._factors = np.empty(0, np.uint64)
        self._mixed = np.empty(0, np.uint64)

    def __call__(self, parameters: npt.NDArray[np.float32]) -> int:
        """Return 64 bits as a signed number."""
        pairs, odd = divmod(len(parameters), 2)
        words = parameters[: 2 * pairs].view(np.uint64)
        if len(self._factors) != pairs:
            self._factors = np.arange(1, 2 * pairs, 2, dtype=np.uint64) * _SPREAD
            self._mixed = np.empty_like(self._factors)
        # Without mixing, the highest bits of a word would reach few bits of the product.
        np.right_shift(words, np.uint64(32), out=self._mixed)
        np.bitwise_xor(words, self._mixed, out=self._mixed)
        total = np.dot(self._mixed, self._factors)
        if odd:
            total = total + np.uint64(parameters[-1:].view(np.uint32)[0])
        return int(np.uint64(total).astype(np.int64))


def _store_at(place: str, number: int, timeout: timedelta) -> Any:
    """Open the store where the learners meet."""
    if not place.startswith(TCP):
        return _C10D.FileStore(place, number)
    host, _, port = place.removeprefix(TCP).rpartition(":")
    return _C10D.TCPStore(host, int(port), timeout=timeout, wait_for_workers=False)


def _gloo(store: Any, index: int, number: int, interface: str, timeout_s: float) -> Any:
    """Connect the learners, and admit no other process from then on.

    gloo ends the process when strangers have taken its last descriptor.
    """
    gloo = _C10D.ProcessGroupGloo
    before = listening()
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=interface)]
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
