"""The base class of user roles, and the context that they are built with. Imports no torch.

``[roles.NAME]`` of a config names a subclass of ``UserRole`` by its type, and ``[graph]`` connects it with
other roles, by channels and slots. ``receives = ["fragments"]`` is short for a channel that brings it a copy
of every fragment of its group's actors, and ``reads = ["policy"]`` for its part in the slot of their policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json

from tianji_algos.settings import NoSettings
from tianji_cli.config.edges import FRAGMENTS, POLICY
from tianji_cli.config.loader import HasSettings, load_role
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed, UsageError
from tianji_cli.files.directories import NewestCopy
from tianji_cli.files.role_state import read_state, write_state
from tianji_cli.plan.graph import fragments_to
from tianji_cli.roles.records import Change, Draft, FragmentInlet, Latest, Ports, Received
from tianji_cli.roles.role import Role, Trigger, rejected_by
from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_cli.wire.reports import Rejected, UserReport
from tianji_transports.core import Full, Transport

if TYPE_CHECKING:
    from tianji_algos.core import Agent, Spaces
    from tianji_algos.fields import FieldSpec
    from tianji_envs.core import VectorEnvironment


Port = TypeVar("Port")

FORWARD_LIMIT_S: Final = 3.0
"""Seconds that a stopping role waits for receivers that claim nothing."""

MOST_REPORTED: Final = 32 << 10
"""Most bytes of a report as JSON: it goes to the root five times a second, and into each metrics row."""


@dataclass(frozen=True)
class RoleContext:
    """Context that a user role is built with.

    Attributes:
        name: name of the role in the config.
        group: number of the role's group.
        number: of this process among those of its group that carry the role.
        settings: settings of the role, as its ``settings_type``.
        config: the whole config.
        directory: directory for the role's files, ``roles/NAME-GROUP`` in the run directory, with the number
            behind it if the group has several of the role; made at first use.
        states: directory of the role's saved states, among the checkpoints of its group.
        spaces: spaces of one environment.
        layout: layout of a fragment.
        seed: seed for the role's random streams; different in each process and session.
        transport: the endpoint of the role's process.
        ports: ends of the role's channels and slots; made with the count of rejected messages.
        make_agent: builds an agent that acts in so many environments, with a seed.
        make_environment: makes so many of the config's environments, for training or for evaluation.
    """

    name: str
    group: int
    number: int
    settings: BaseModel
    config: JobConfig
    directory: Path
    states: Path
    spaces: Spaces
    layout: FragmentLayout
    seed: int
    transport: Transport
    ports: Callable[[Rejected], Ports]
    make_agent: Callable[[int, int], Agent]
    make_environment: Callable[[int, bool], VectorEnvironment]


@dataclass(frozen=True)
class Policy:
    """A copy of a policy as its learner published it.

    Attributes:
        version: version of the policy; later policies have higher numbers.
        env_steps: env steps that the policy was published with, over all sessions and groups.
        parameters: ``[parameter_count]`` as ``Agent.adopt`` takes them.
    """

    version: int
    env_steps: int
    parameters: npt.NDArray[np.float32]


class UserRole(Role, HasSettings):
    """A user role: subclass it, set ``settings_type`` and write ``turn``.

    ``turn`` does a small piece of work and returns whether there was any; without any the process sleeps
    until a fragment or a policy comes. The run's metrics and summary have the role's report under ``extra``.
    An exception ends the run as failed; a ``finished`` that is not None ends it in order. A process that a
    signal kills ends the run too, unless the class says ``restartable = True``: another one begins then, with
    the state that was saved last.

    Attributes:
        context: the role's context.
        settings: settings from the config, as its ``settings_type``.
        samples: env steps of experience in all copies of fragments that ``fragments`` has yielded.
    """

    settings_type: ClassVar[type[BaseModel]] = NoSettings

    def __init__(self, context: RoleContext) -> None:
        self.name = context.name
        self.context = context
        self.settings: Any = context.settings
        self.samples = 0
        self._rejected = Rejected()
        self._ports = context.ports(self._rejected)
        saves = type(self).state is not UserRole.state
        every_s = context.config.experiment.checkpoint_every_s
        self._copy = NewestCopy(context.states, every_s) if saves else None

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> Sequence[FieldSpec]:  # noqa: ARG003 - for what adds some
        """Return the fields that the role adds to each fragment that it sends on; none by default.

        Roles behind it see them, and so does the update rule, among the agent's fields.
        """
        return ()

    def state(self) -> Mapping[str, npt.ArrayLike]:
        """Return what the role has learnt, as arrays of numbers by name; nothing is saved by default.

        It is saved every ``checkpoint_every_s`` seconds and at the end, at no agreed moment of the training.
        """
        return {}

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from the state that an earlier session, or a process that was killed, saved last."""

    @property
    def triggers(self) -> Sequence[Trigger]:
        """Save the state when it is time."""
        copy = self._copy
        return () if copy is None else (Trigger(when=lambda: copy.is_due, do=self._save),)

    def peer_lost(self, rank: int, counts_from: int) -> None:
        """Reject the fragments of a rank's incarnations before one: the root has given up their host."""
        for inlet in self._ports.inlets.values():
            inlet.fence(rank, counts_from)

    def keep(self) -> None:
        """Save the state."""
        self._save()

    def restore(self) -> None:
        """Load the state that was saved last, if there is one.

        Raises:
            CheckpointError: it is damaged.
        """
        if self._copy is not None and self._copy.place is not None:
            self.load_state(read_state(self._copy.place))

    def _save(self) -> bool:
        """Save the state.

        Raises:
            RunFailed: the disk does not take it, or it has something else than arrays of numbers.
        """
        if self._copy is None:
            return False
        try:
            with self._copy.replaced(str(time.time_ns())) as place:
                write_state(place, self.state())
        except (OSError, ValueError) as cause:
            what = f"the state of {self.name} cannot be saved in {self._copy.directory}: {cause}"
            raise RunFailed(what) from cause
        return True

    @property
    def directory(self) -> Path:
        """Directory for the role's own files, inside the run's directory."""
        self.context.directory.mkdir(parents=True, exist_ok=True)
        return self.context.directory

    def fragments(self, at_most: int | None = 8, *, writable: bool = False) -> Iterator[Fragment]:
        """Claim copies of fragments; those of one actor come in their order.

        A fragment lies in the transport's memory, and is released when the loop asks for the next one or
        ends: copy what has to live longer. Actors wait while ``window`` of their fragments are unclaimed, so
        a slow role loses nothing and slows the training down.

        Args:
            at_most: most fragments of this call, so that a turn ends while actors go on; None for all, which
                is right in ``stop``, when the actors have stopped.
            writable: copy each into memory of the role's own, which it may change, and keep.

        Yields:
            Views of one fragment, read-only unless ``writable``; ``Fragment.memory`` is all of it as bytes.

        Raises:
            RuntimeError: the config does not let the role receive fragments.
        """
        inlet = self._ports.inlets.get(fragments_to(self.name))
        if inlet is None:
            raise RuntimeError(f'receives = ["fragments"] is missing in [roles.{self.name}]')
        for received in islice(iter(inlet.probe, None), at_most):
            fragment = received.record
            assert isinstance(fragment, Fragment)
            self.samples += int(fragment.header["samples"])
            if writable:
                fragment = Fragment(fragment.layout, memoryview(bytearray(fragment.memory)))
            try:
                yield fragment
            finally:
                inlet.release()

    def policy(self, newer_than: int = -1) -> Policy | None:
        """Look for a policy that is newer than a version; never wait for one.

        Raises:
            RuntimeError: the config does not let the role read policies.
        """
        reader = self._ports.readers.get(POLICY)
        if reader is None:
            raise RuntimeError(f'reads = ["policy"] is missing in [roles.{self.name}]')
        newest = reader.latest(newer_than)
        if newest is None:
            return None
        return Policy(newest.version, int(newest.record.header["env_steps"]), newest.fields["parameters"])

    def loan(self, channel: str) -> Draft | Full:
        """Ask for a record of a channel to write into; FULL while a receiver is a window of them behind."""
        return self._port(self._ports.outlets, channel, "sends records of the channel").loan()

    def push(self, channel: str, draft: Draft) -> None:
        """Send a record that ``loan`` gave. Never waits, never drops."""
        self._port(self._ports.outlets, channel, "sends records of the channel").push(draft)

    def probe(self, channel: str) -> Received | None:
        """Claim the next record of a channel; None if there is none.

        It is valid until the next probe; a fragment of a role whose class says ``holds`` until it is sent on.

        Raises:
            RuntimeError: the config does not connect the role so, or it holds more fragments than it says.
        """
        return self._port(self._ports.inlets, channel, "receives the channel").probe()

    def forward(self, channel: str, change: Change | None = None) -> bool:
        """Send the message in hand on to the next step of the channel's path, in one copy.

        Of several fragments (``holds``) it is the one that came first.

        Args:
            change: changes the fields of that copy before it is sent; those that the role adds are zeros.

        Returns:
            False while a receiver is a window of messages behind: this one stays, and may be sent later.

        Raises:
            RuntimeError: the config does not connect the role so, or nothing came that was not sent on.
        """
        inlet = self._port(self._ports.inlets, channel, "receives the channel")
        if inlet.first is None:
            raise RuntimeError(f"{self.name!r} has nothing of {channel!r} to forward")
        outlet = self._port(self._ports.outlets, channel, "sends records of the channel")
        return outlet.forward(inlet, change)

    def drop(self, reason: str) -> None:
        """Leave out the fragment in hand, the first of several.

        Its samples count as dropped; the report has their number under the reason.

        Raises:
            RuntimeError: the role is not on the path of fragments, or no fragment came that was not sent on.
        """
        inlet = self._ports.inlets.get(FRAGMENTS)
        if not isinstance(inlet, FragmentInlet) or inlet.first is None:
            raise RuntimeError(f"{self.name!r} has no fragment to leave out")
        inlet.drop(reason)

    def forward_rest(self, channel: str, change: Change | None = None) -> None:
        """Send on, in ``stop``, what was received and not sent on, and then all that still comes.

        It gives up on receivers that claim nothing for ``FORWARD_LIMIT_S``, such as dead ones.
        """
        inlet = self._port(self._ports.inlets, channel, "receives the channel")
        deadline = time.monotonic() + FORWARD_LIMIT_S
        while inlet.first is not None or inlet.probe() is not None:
            if self.forward(channel, change):
                deadline = time.monotonic() + FORWARD_LIMIT_S
            elif time.monotonic() > deadline:
                return
            else:
                self.context.transport.wait(0.1)

    def settle(self) -> None:
        """Wait until the receivers have claimed all records; the report counts those that they have not."""
        deadline = time.monotonic() + FORWARD_LIMIT_S
        while self._ports.unclaimed and time.monotonic() < deadline:
            self.context.transport.wait(0.05)

    def publish(self, slot: str, /, **fields: npt.ArrayLike) -> int:
        """Publish a record of a slot, all fields by name; returns its version.

        Raises:
            ValueError: a field is missing, is none of the record's, or has another shape.
        """
        return self._port(self._ports.writers, slot, "writes the slot").publish(fields)

    def latest(self, slot: str, newer_than: int = 0) -> Latest | None:
        """Copy the newest record of a slot if it is newer than a version; never wait for one."""
        return self._port(self._ports.readers, slot, "reads the slot").latest(newer_than)

    def _port(self, ports: Mapping[str, Port], name: str, does: str) -> Port:
        """Find one end of a channel or slot.

        Raises:
            RuntimeError: the config does not connect the role so.
        """
        if name not in ports:
            raise RuntimeError(f"nothing in [graph] says that {self.name!r} {does} {name!r}")
        return ports[name]

    def report(self) -> dict[str, Any]:
        """Return counts of records, by channel, and the rejected messages, which the root adds up.

        Extend it with ``super().report() | {...}``.
        """
        endpoint, counts = rejected_by(self.context.transport), self._ports.counts
        counts.pop(fragments_to(self.name), None)  # A role says itself what it does with its copies.
        own = {"rejected": {self.name: self._rejected.reported, "endpoint": endpoint}}
        return own | ({"channels": counts} if counts else {})

    def checked_report(self) -> UserReport:
        """Build the report, and check that it can be sent.

        Raises:
            RunFailed: names the part that cannot be sent.
        """
        facts, own = self.report(), self.own_report()
        if not isinstance(facts, dict):
            raise RunFailed(f"{self.name}.report() returned {facts!r}, and a dict is wanted")
        nbytes = sum(_nbytes_as_json(self.name, key, value) for key, value in facts.items())
        # Compared as JSON: a role that builds its own report may have lists for tuples.
        if "rejected" in facts and from_json(to_json(facts["rejected"])) != from_json(to_json(own.rejected)):
            raise RunFailed(
                f'{self.name}.report() says "rejected", as the base class does: call it otherwise'
            )
        if nbytes > MOST_REPORTED:
            raise RunFailed(f"{self.name}.report() says {nbytes} bytes, and {MOST_REPORTED} are the most")
        return replace(own, values={key: value for key, value in facts.items() if key != "rejected"})

    def own_report(self) -> UserReport:
        """Report the rejected messages alone."""
        return UserReport(rejected=UserRole.report(self)["rejected"])

    def make_agent(self, num_envs: int) -> Agent:
        """Build the config's agent, to act in ``num_envs`` environments; ``adopt`` gives it a policy."""
        return self.context.make_agent(num_envs, self.context.seed)

    def make_environment(self, num_envs: int, *, evaluation: bool = False) -> VectorEnvironment:
        """Make ``num_envs`` of the config's environments; close them in ``close``.

        For an evaluation they are whole games with their own rewards, without changes that ease training.
        """
        return self.context.make_environment(num_envs, evaluation)


def _nbytes_as_json(name: str, key: object, value: object) -> int:
    if not isinstance(key, str):
        raise RunFailed(f"{name}.report() has the key {key!r}, and keys are texts")
    try:
        return len(to_json({key: value}))
    except (PydanticSerializationError, ValueError) as cause:
        raise RunFailed(
            f"{name}.report() says {key!r} as {type(value).__name__}, which JSON cannot hold ({cause}); "
            "int(), float() or .tolist() make what it can"
        ) from cause


def find_user_role(type_name: str) -> type[UserRole]:
    """Import the class that a config names as a role's ``type``.

    Raises:
        UsageError: there is no such class, it does not import, or it is no ``UserRole``.
    """
    found = load_role(type_name)
    if not issubclass(found, UserRole):
        raise UsageError(f"role {type_name!r} is {found!r}, not a subclass of {UserRole.__module__}.UserRole")
    return found
