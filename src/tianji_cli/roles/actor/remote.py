"""An actor's network in another process: its agent asks the inference role for each pass of the network.

Everything but the network stays in the actor: exploration and its seed, action masks, the fields that
training needs. Two actors of a process take turns, so that one steps while the other's observations are away.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Executor, Fields
from tianji_cli.config.edges import ANSWERS, REQUESTS
from tianji_cli.roles.inference import OBSERVATION, PassLayout
from tianji_cli.roles.records import RecordInlet, RecordOutlet
from tianji_cli.wire.reports import Rejected
from tianji_transports.core import Full, Transport

Array = npt.NDArray[Any]


@dataclass
class Connection:
    """The way from a process to its inference role, which the actors of the process share.

    Attributes:
        dest: rank of the inference role.
        executors: executors of the actors, by the actor's number.
        rejected: answers that are none of this job.
    """

    transport: Transport
    dest: int
    layout: PassLayout
    job: int
    executors: dict[int, RemoteExecutor] = field(default_factory=dict)
    rejected: Rejected = field(default_factory=Rejected)

    def __post_init__(self) -> None:
        """Open both ends."""
        self.outlet = RecordOutlet(self.transport, REQUESTS, self.layout.request, [self.dest], self.job)
        self.inlet = RecordInlet(self.transport, ANSWERS, self.layout.answer, self.job, self.rejected)

    def receive(self) -> None:
        """Hand every answer that has come to its actor."""
        while (answer := self.inlet.probe()) is not None:
            # The process before this one may have died while it waited.
            if answer.fields["life"] == self.transport.incarnation:
                self.executors[int(answer.fields["actor"])].take(answer.fields)


class RemoteExecutor(Executor):
    """Asks for a pass of the network; once the answer is there, a call returns its outputs.

    Attributes:
        version: version of the policy that answered last.
        env_steps: env steps that it was published with.
        waited_s: seconds in which the actor could have gone on, and had no answer.
    """

    normalizes = True

    def __init__(self, connection: Connection, actor: int) -> None:
        self.version, self.env_steps = -1, 0
        self.waited_s = 0.0
        self._since_s = 0.0
        self._connection = connection
        self._request: dict[str, Any] = {
            "actor": actor,
            "life": connection.transport.incarnation,
            "number": 0,
        }
        self._is_sent = self._is_begun = self._is_here = False
        arrays = {name: np.zeros(shape, dtype) for name, dtype, shape in connection.layout.answer.arrays}
        self._answer: Fields = arrays
        self._memory = {name: np.zeros_like(arrays[name]) for name in connection.layout.memory}
        connection.executors[actor] = self

    @property
    def rejected(self) -> Rejected:
        """Answers that are none of this job, over all actors of the process."""
        return self._connection.rejected

    def begins(self, observation: Array) -> bool:
        """Ask for a pass by the newest policy, unless it is asked for; return whether it is there."""
        if not self._is_begun:
            self._is_begun = True
            self.ask(observation, begins=True)
        self._is_begun = not self.has_answer()
        return not self._is_begun

    def ask(self, observation: Array, *, begins: bool = False, last: bool = False) -> None:
        """Ask for a pass, by the policy that the fragment began with unless it ``begins`` now.

        The ``last`` observation of a fragment is that after its last step.
        """
        self._request |= {OBSERVATION: observation, "begins": begins, "last": last, **self._memory}
        self._request["number"] += 1
        self._is_sent = self._is_here = False
        self._send()

    def has_answer(self) -> bool:
        """Whether the last request is answered. Never waits."""
        if not self._is_here:
            self._send()
            self._connection.receive()
            if not self._is_here and not self._since_s:
                self._since_s = time.monotonic()
        return self._is_here

    def take(self, answer: Fields) -> None:
        """Copy the answer to the last request."""
        if answer["number"] != self._request["number"]:
            return
        for name, array in self._answer.items():
            array[...] = answer[name]
        self.version, self.env_steps = int(answer["version"]), int(answer["env_steps"])
        self._is_here = True
        if self._since_s:
            self.waited_s += time.monotonic() - self._since_s
            self._since_s = 0.0

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        """Do nothing: the inference role has the parameters."""

    def __call__(self, observation: Array) -> tuple[npt.NDArray[np.float32], ...]:
        """Return the outputs for the observation that was asked for, and move on by one step."""
        outputs = self.preview(observation)
        for name, memory in self._memory.items():
            memory[...] = self._answer[name]
        return outputs

    def preview(self, observation: Array) -> tuple[npt.NDArray[np.float32], ...]:  # noqa: ARG002 - it was sent
        """Return the outputs for the observation that was asked for."""
        assert self._is_here, (
            "an agent runs its network once for each step, and once for the last observation"
        )
        return tuple(self._answer[name] for name in self._connection.layout.outputs)

    def record(self, fields: Fields) -> None:
        """Write the network's memory, and the statistics that its policy normalises with."""
        for name, memory in self._memory.items():
            fields[name][0] = memory
        for name in self._connection.layout.statistics:
            fields[name][...] = self._answer[name]

    def forget(self, where: npt.NDArray[np.bool_]) -> None:
        """Clear the memory of the environments ``where [N]``."""
        for memory in self._memory.values():
            memory[where] = 0

    def _send(self) -> None:
        """Send the last request, unless it is sent or there is no credit."""
        if self._is_sent or isinstance(draft := self._connection.outlet.loan(), Full):
            return
        for name, value in self._request.items():
            draft.fields[name][...] = value
        self._connection.outlet.push(draft)
        self._is_sent = True
