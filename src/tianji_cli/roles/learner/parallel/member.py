"""A learner's part in a population: it sends its state to the root, and takes over a better member's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from tianji_algos.core import Embryo
from tianji_cli.config.edges import MEMBERS, TAKEOVERS
from tianji_cli.errors import TianjiError
from tianji_cli.plan.plan import ROOT_RANK
from tianji_cli.wire.members import Member, Octets, member_layout
from tianji_transports.core import Full, Transport

_REST_BYTES: Final = 64 << 10
"""Bytes for the part of an update rule's state without tensors, as JSON; built-in rules take 1 KiB."""
_LENGTH_BYTES: Final = 8


class Episodes(Protocol):
    """Returns of a member's episodes, which the root judges it by."""

    @property
    def own_mean(self) -> float | None:
        """Mean return of the latest episodes since the last takeover; None before one has ended."""

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """Returns of the policy's latest episodes, the oldest first, at most ``MOST_RETURNS``."""


class TakeoverError(TianjiError):
    """The state of an update rule cannot be sent, or the root sent an invalid member."""


class StateMemory:
    """Writes the whole state of an update rule into memory of a fixed size, and reads it from there.

    The memory holds, one after the other: parameters in the order of ``Model.write_parameters``, the tensors
    of ``Embryo.state`` by their names, the length of the rest, and the rest as JSON.

    Attributes:
        nbytes: size of the memory.
    """

    def __init__(self, embryo: Embryo) -> None:
        self._embryo = embryo
        tensors, _ = embryo.state()
        self._like = {name: (tensors[name].shape, tensors[name].dtype) for name in sorted(tensors)}
        self._parameter_bytes = embryo.model.parameter_count * np.dtype(np.float32).itemsize
        of_tensors = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        self._rest = self._parameter_bytes + of_tensors
        self.nbytes = self._rest + _LENGTH_BYTES + _REST_BYTES

    def write(self, into: Octets) -> None:
        """Write the present state of the update rule.

        Raises:
            TakeoverError: the tensors have changed since this was built, or the rest is too large.
        """
        tensors, rest = self._embryo.state()
        if {name: (one.shape, one.dtype) for name, one in sorted(tensors.items())} != self._like:
            raise TakeoverError(
                f"{type(self._embryo).__name__}.state() has other tensors than before the first update, and "
                "a population copies them: the same names, shapes and types would be right"
            )
        self._embryo.model.write_parameters(into[: self._parameter_bytes].view(np.float32))
        start = self._parameter_bytes
        for name in self._like:
            octets = tensors[name].detach().contiguous().reshape(-1).view(torch.uint8)
            torch.from_numpy(into[start : start + len(octets)]).copy_(octets)
            start += len(octets)
        encoded = json.dumps(rest).encode()
        if len(encoded) > _REST_BYTES:
            raise TakeoverError(
                f"{type(self._embryo).__name__}.state() says {len(encoded)} bytes beside its tensors, and "
                f"{_REST_BYTES} can be copied; large things are tensors"
            )
        into[start : start + _LENGTH_BYTES] = np.frombuffer(
            len(encoded).to_bytes(_LENGTH_BYTES, "little"), np.uint8
        )
        start += _LENGTH_BYTES
        into[start : start + len(encoded)] = np.frombuffer(encoded, np.uint8)

    def read(self, state: Octets) -> None:
        """Load another member's state into the update rule."""
        self._embryo.model.read_parameters(state[: self._parameter_bytes].view(np.float32))
        tensors, start = {}, self._parameter_bytes
        for name, (shape, dtype) in self._like.items():
            stop = start + shape.numel() * dtype.itemsize
            octets = torch.from_numpy(state[start:stop].copy())
            tensors[name] = octets.view(dtype).reshape(shape)
            start = stop
        length = int.from_bytes(state[start : start + _LENGTH_BYTES].tobytes(), "little")
        start += _LENGTH_BYTES
        self._embryo.load_state(tensors, json.loads(state[start : start + length].tobytes()))


@dataclass(frozen=True)
class Takeover:
    """A takeover of another member's state.

    Attributes:
        group: group of that member.
        returns: returns of that member's last episodes.
    """

    group: int
    returns: npt.NDArray[np.float64]


class PopulationMember:
    """Sends the learner's state to the root once in an interval, and takes over states that the root sends.

    Args:
        interval: least env steps of this member between two comparisons.
        waits: make no update between a comparison and its result (``mode = "sync"``).
        env_steps: env steps received in earlier sessions, or by a learner before this one.
        hyperparameters: first hyperparameters of this member.
        takeovers: takeovers of this member in earlier sessions.
        settings_with: makes the update rule's settings from hyperparameters.

    Attributes:
        hyperparameters: present hyperparameters.
        takeovers: takeovers of this member over all sessions, each with the other's group, and this member's
            env steps and version.
    """

    def __init__(  # noqa: PLR0913 - what a member is
        self,
        transport: Transport,
        embryo: Embryo,
        *,
        job: int,
        group: int,
        interval: int,
        waits: bool,
        env_steps: int,
        hyperparameters: Mapping[str, Any],
        takeovers: Sequence[Mapping[str, Any]],
        settings_with: Callable[[Mapping[str, Any]], BaseModel],
    ) -> None:
        self._transport = transport
        self._embryo = embryo
        self._job = job
        self._group = group
        self._interval = interval
        self._waits = waits
        self._next = env_steps + interval
        self._state = StateMemory(embryo)
        self._own = Member(memoryview(bytearray(member_layout(self._state.nbytes).nbytes)))
        self._number = 0
        self._outstanding = False
        self._since = 0
        self._taken: Takeover | None = None
        self._settings_with = settings_with
        self.hyperparameters = dict(hyperparameters)
        self.takeovers = list(takeovers)

    def settle(self, env_steps: int, episodes: Episodes, version: int) -> bool:
        """Take over a state if the root has sent one, and send the own state if that is due.

        Args:
            env_steps: env steps received so far, over all sessions.
            episodes: episodes so far; the root judges members by the latest.
            version: version of the policy that is published next.

        Returns:
            False if the learner has to wait before its next update.
        """
        if self._look(env_steps, version):
            self._next = env_steps + self._interval
            return True
        if not self._outstanding and env_steps >= self._next and self._show(env_steps, episodes):
            self._next = env_steps + self._interval
        return not (self._waits and (self._outstanding or env_steps >= self._next))

    def take_takeover(self) -> Takeover | None:
        """Return the last takeover, once after each."""
        taken, self._taken = self._taken, None
        return taken

    def state(self) -> dict[str, Any]:
        """Return the member's state for a checkpoint."""
        return {"hyperparameters": self.hyperparameters, "takeovers": self.takeovers}

    def _show(self, env_steps: int, episodes: Episodes) -> bool:
        """Send the learner's state; return False if the root has no room for it yet."""
        own = self._own
        loan = self._transport.loan(ROOT_RANK, MEMBERS, own.memory.nbytes)
        if isinstance(loan, Full):
            return False
        self._number += 1
        self._state.write(own.state)
        own.fill_header(
            self._job,
            group=self._group,
            number=self._number,
            env_steps=env_steps,
            since=self._since,
            score=episodes.own_mean,
            returns=episodes.returns,
            hyperparameters=self.hyperparameters,
        )
        loan.memory[:] = own.memory
        self._transport.push(loan)
        self._outstanding = True
        return True

    def _look(self, env_steps: int, version: int) -> bool:
        """Receive the root's answer and adopt its state, if it has one; return whether it has."""
        claim = self._transport.probe(TAKEOVERS)
        if claim is None:
            return False
        memory = memoryview(bytearray(claim.nbytes))
        claim.take(memory)
        sent = Member(memory)
        if (rejection := sent.rejection(self._job)) is not None:
            raise TakeoverError(f"what rank {claim.source} sent is of no member: {rejection}")
        if sent.number:
            self._outstanding = False
        if not len(sent.state):
            return False
        self._state.read(sent.state)
        self.hyperparameters = sent.hyperparameters
        self._embryo.adopt_settings(self._settings_with(self.hyperparameters))
        self._since = version
        self._taken = Takeover(sent.group, sent.returns)
        self.takeovers.append({"from": sent.group, "env_steps": env_steps, "version": version})
        return True
