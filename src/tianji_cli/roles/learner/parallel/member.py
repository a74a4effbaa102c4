"""A learner's part in a population: it shows what it has learnt, and takes over what a better one has."""

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
from tianji_cli.errors import TianjiError
from tianji_cli.plan.graph import MEMBERS, TAKEOVERS
from tianji_cli.plan.plan import ROOT_RANK
from tianji_cli.wire.members import Member, Octets, member_layout
from tianji_transports.core import Full, Transport

_REST_BYTES: Final = 64 << 10
"""Room for what of an update rule's state is no tensor, as JSON; that of the built-in ones takes 1 KiB."""
_LENGTH_BYTES: Final = 8


class Episodes(Protocol):
    """What a member has played, as far as it is judged by that."""

    @property
    def own_mean(self) -> float | None:
        """Mean return of the latest episodes since it took over another; None before one has ended."""

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """Of the latest episodes of its policy, the oldest first, at most ``MOST_RETURNS``."""


class TakeoverError(TianjiError):
    """What an update rule knows cannot be sent, or what the root sent is none of this job."""


class StateMemory:
    """Writes all that an update rule knows into memory that it always fits in, and reads it from there.

    In turn: parameters as ``Model.write_parameters`` has them, the tensors of ``Embryo.state`` by their
    names, the length of the rest, and the rest as JSON.

    Attributes:
        nbytes: of the memory.
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
        """Write what the update rule knows now.

        Raises:
            TakeoverError: it is not what it was when this was built, or too much.
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
        said = json.dumps(rest).encode()
        if len(said) > _REST_BYTES:
            raise TakeoverError(
                f"{type(self._embryo).__name__}.state() says {len(said)} bytes beside its tensors, and "
                f"{_REST_BYTES} can be copied; large things are tensors"
            )
        into[start : start + _LENGTH_BYTES] = np.frombuffer(
            len(said).to_bytes(_LENGTH_BYTES, "little"), np.uint8
        )
        start += _LENGTH_BYTES
        into[start : start + len(said)] = np.frombuffer(said, np.uint8)

    def read(self, state: Octets) -> None:
        """Let the update rule know what another one did."""
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
    """What a learner has to know that has become another one.

    Attributes:
        group: the member that it has taken over.
        returns: of the last episodes of that one.
    """

    group: int
    returns: npt.NDArray[np.float64]


class PopulationMember:
    """Shows the root what the learner knows, once in an interval, and takes over what it sends.

    Args:
        interval: env steps of this member between two comparisons, at least.
        waits: make no update between a comparison and what comes of it (``mode = "sync"``).
        env_steps: received in earlier sessions, or by a learner before this one.
        hyperparameters: of this member at first.
        takeovers: of this member in earlier sessions.
        settings_with: makes the update rule's settings of hyperparameters.

    Attributes:
        hyperparameters: that it trains with.
        takeovers: of this member, over all sessions: from which group, and at which env steps of its own.
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
        """Take over what was sent, if it is there, and show what was learnt if that is due.

        Args:
            env_steps: received so far, over all sessions.
            episodes: that were played so far; members are judged by the latest.
            version: of the policy that is published next.

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
        """Return, once after each time that the learner became another one, what it has to know of that."""
        taken, self._taken = self._taken, None
        return taken

    def state(self) -> dict[str, Any]:
        """What a checkpoint has of this member."""
        return {"hyperparameters": self.hyperparameters, "takeovers": self.takeovers}

    def _show(self, env_steps: int, episodes: Episodes) -> bool:
        """Send all that the learner knows; False if the root is not there yet."""
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
        """Look for what the root has sent; whether it is another's state."""
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
