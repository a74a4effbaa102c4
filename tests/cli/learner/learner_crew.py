"""A learner with its buffer, and its followers in processes of their own: real endpoints and connections."""

import itertools
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from cli.builders import STEPS, components, learner_builder

from tianji_algos import registry as algorithms
from tianji_algos.core import Embryo, Spaces, build_model
from tianji_algos.dqn.settings import DQNSettings
from tianji_algos.ppo.settings import PPOSettings
from tianji_cli.config.edges import FRAGMENTS
from tianji_cli.config.schema import Stop
from tianji_cli.files.checkpoint import CheckpointWriter
from tianji_cli.files.saved import Progress
from tianji_cli.roles.learner.learner import Episodes, Learner, Publisher
from tianji_cli.roles.learner.parallel.all_reduce import AllReduceGroup
from tianji_cli.roles.learner.parallel.followers import Follower
from tianji_cli.roles.learner.parallel.scatter import Leader
from tianji_cli.wire.fragment import Fragment
from tianji_cli.wire.reports import FollowerReport
from tianji_cli.worker.build import (
    follower_source,
    replay_buffer,
    replay_source,
    rollout_buffer,
    rollout_source,
)
from tianji_cli.worker.channels import wiring_of
from tianji_transports.composite import edge_capabilities, open_endpoint
from tianji_transports.core import EngineOptions, Full, Transport

SPACES = Spaces(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2))
ENVS, PER_ROLLOUT, BATCH, PUBLISH_EVERY = 4, 6, 24, 3
PATIENCE_S = 40.0
PPO = PPOSettings(rollout_steps=96, minibatch_size=96, epochs=1, learning_rate=1e-2)
DQN = DQNSettings(
    batch_size=BATCH, warmup_steps=64, replay_ratio=2.0, publish_every=PUBLISH_EVERY, learning_rate=1e-2
)
COMPONENTS = {"ppo": components("ppo", PPO), "dqn": components("dqn", DQN)}
FORK = multiprocessing.get_context("fork")
_numbers = itertools.count()

Floats = npt.NDArray[np.float32]


@dataclass
class Followed:
    """Result of a follower."""

    parameters: Floats
    moments: Floats
    report: FollowerReport
    value: Any


class Crew:
    """The learners of a group, and an actor that is played.

    Attributes:
        embryos: by the number of the learner.
        learner: the one that publishes, once it is built.
        follower: in the process of a follower, itself.
        all_reduce: of this process.
        followed: the result of each follower, by its number.
    """

    def __init__(
        self,
        rule: str,
        learners: int,
        directory: Path,
        *,
        engine: str = "zmq",
        average: Any = None,
        **buffer: Any,
    ) -> None:
        self._number = next(_numbers)
        self.builder = learner_builder(
            rule,
            PPO if rule == "ppo" else DQN,
            directory,
            f"crew-{os.getpid()}-{self._number}",
            learners=learners,
            **buffer,
        )
        self.progress = Progress()
        self.embryos = [self._embryo(rule, number) for number in range(learners)]
        self.all_reduce: AllReduceGroup
        self.follower: Follower
        self.learner: Learner
        self.followed: dict[int, Followed] = {}
        self.done = FORK.Event()
        self.average = average
        self._directory = directory
        directory.mkdir(exist_ok=True)
        self._engine = engine
        plan = self.builder.job.plan
        self._rank = self.builder.process.rank
        (self._actor,) = (process.rank for process in plan.carrying("actor"))
        self._followers = [process.rank for process in plan.carrying("follower")]
        self._hosts = {process.rank: "here" for process in plan.trainers}
        self._wiring = wiring_of(self.builder, edge_capabilities(engine, engine, self._hosts))
        self._ends: dict[int, Transport] = {}
        self._rng = np.random.default_rng(9)
        self._sequence = 0

    def _embryo(self, rule: str, number: int) -> Embryo:
        parts = COMPONENTS[rule]
        settings = parts["model"].settings
        model = build_model(algorithms.load("model", parts["model"].type), SPACES, settings, 1)
        embryo: Embryo = algorithms.load("embryo", rule)(SPACES, model, parts["training"].settings, number)
        return embryo

    def parameters(self, number: int) -> Floats:
        flat = np.empty(self.embryos[number].model.parameter_count, np.float32)
        self.embryos[number].model.write_parameters(flat)
        return flat

    def run(self, lead: Callable[["Crew"], Any], follow: Callable[["Crew"], Any] | None = None) -> None:
        """Let the learner lead, and its followers follow until it is done; raises what any of them raises."""
        pipes = {number: FORK.Pipe() for number in range(1, len(self.embryos))}
        followers = [
            FORK.Process(target=self._follow, args=(number, theirs, follow or Crew.follow))
            for number, (_, theirs) in pipes.items()
        ]
        for process in followers:
            process.start()
        try:
            self._open([self._rank, self._actor])
            addresses = {rank: end.address for rank, end in self._ends.items()}
            for ours, _ in pipes.values():
                addresses |= received(ours)
            for ours, _ in pipes.values():
                ours.send(addresses)
            self._connect(addresses)
            try:
                self._build_learner()
                lead(self)
            finally:
                self.done.set()
            for number, (ours, _) in pipes.items():
                self.followed[number] = received(ours)
            self.learner.close()
        finally:
            for process in followers:
                process.join(PATIENCE_S)
                process.kill()
            for end in self._ends.values():
                end.close()

    def follow(self) -> None:
        """Take turns until the learner is done."""
        while not self.done.is_set():
            if not self.follower.turn():
                next(iter(self._ends.values())).wait(0.01)

    def lead(self, updates: int) -> None:
        """Supply the learner until it has made and published so many updates, and stop it."""
        each = PUBLISH_EVERY if self.builder.config.learns_from_replay else 1
        self.work(lambda: self.progress.version * each >= updates)
        self.stop()

    def work(self, until: Callable[[], bool]) -> None:
        """Let actor, buffer and learner take turns."""
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < deadline, "it does not come"
            self.send()
            worked = self.buffer.turn()
            for trigger in self.learner.triggers:
                if trigger.when():
                    worked |= trigger.do()
            if not (self.learner.turn() or worked):
                self._ends[self._rank].wait(0.01)

    def stop(self) -> None:
        for role in (self.buffer, self.learner):
            role.wind_down()
        for role in (self.buffer, self.learner):
            role.stop()

    def send(self) -> bool:
        """Make a fragment, if there is room for it."""
        layout, rank = self.builder.layout, self._actor
        loan = self._ends[rank].loan(self._rank, FRAGMENTS, layout.nbytes)
        if isinstance(loan, Full):
            return False
        fragment = Fragment(layout, loan.memory)
        before, self._sequence = self._sequence, self._sequence + 1
        fragment.begin(
            job=self.builder.number,
            actor=0,
            incarnation=0,
            sequence=before,
            before=before * STEPS * ENVS,
            version=0,
        )
        for name, array in fragment.fields.items():
            array[...] = 0
            if array.dtype == np.float32:
                array[...] = self._rng.normal(-0.7 if name == "log_prob" else 0.0, 0.2, array.shape)
        fragment.fields["action"][...] = self._rng.integers(2, size=fragment.fields["action"].shape)
        mask = self._rng.random(fragment.fields["mask"].shape) < 0.8 if "value" in fragment.fields else True
        fragment.fields["mask"][...] = mask
        fragment.header["samples"] = np.count_nonzero(fragment.fields["mask"])
        self._ends[rank].push(loan)
        return True

    def _follow(self, number: int, pipe: Connection, follow: Callable[["Crew"], Any]) -> None:
        """Be a follower, in a process of its own."""
        try:
            self._open([self._followers[number - 1]])
            pipe.send({rank: end.address for rank, end in self._ends.items()})
            self._connect(received(pipe))
            embryo = self.embryos[number]
            self.all_reduce = self._meet(number)
            source = follower_source(self.builder, next(iter(self._ends.values())), embryo)
            self.follower = Follower(embryo, source, self.all_reduce)
            value = follow(self)
            moments = torch.cat(list(embryo.averaged_state())).numpy()
            pipe.send(Followed(self.parameters(number), moments, self.follower.report(), value))
            self.follower.close()
            for end in self._ends.values():
                end.close(1.0)
        except BaseException:  # noqa: BLE001 - it fails in its own process, and the test has to know why
            pipe.send(traceback.format_exc())

    def _open(self, ranks: list[int]) -> None:
        torch.set_num_threads(1)
        engine = self._engine
        self._ends = {
            rank: open_endpoint(engine, engine, self._hosts, self._wiring, rank, 0, EngineOptions())
            for rank in ranks
        }

    def _connect(self, addresses: dict[int, str]) -> None:
        for end in self._ends.values():
            end.connect(addresses)

    def _meet(self, number: int) -> AllReduceGroup:
        store = self._directory / f"all_reduce-{self._number}"
        met = AllReduceGroup(number, len(self.embryos), timeout_s=PATIENCE_S)
        met.meet(str(store))
        return met

    def _build_learner(self) -> None:
        builder, end, embryo = self.builder, self._ends[self._rank], self.embryos[0]
        if builder.config.learns_from_replay:
            self.buffer = replay_buffer(builder, end)
            source, rounds = replay_source(builder, end, self.buffer)
        else:
            self.buffer = rollout_buffer(builder, end)
            source, rounds = rollout_source(builder, end, embryo, self.buffer)
        leader = None
        if rounds is not None:
            self.all_reduce = self._meet(0)
            leader = Leader(embryo, rounds, self.all_reduce)
        self.learner = Learner(
            embryo,
            source,
            end,
            Publisher(embryo.model, end, "policy-0"),
            stop=Stop(wall_s=1e9),
            checkpoint_every_s=1e9,
            checkpoints=CheckpointWriter(self._directory / "checkpoints", embryo.model, keep=1),
            progress=self.progress,
            episodes=Episodes(),
            average=self.average,
            leader=leader,
        )

    def push(self, channel: str, payload: bytes) -> None:
        """Send a message to the first follower that the learner has not made."""
        end, follower = self._ends[self._rank], self._followers[0]
        while isinstance(loan := end.loan(follower, channel, len(payload)), Full):
            end.wait(0.01)
        loan.memory[:] = payload
        end.push(loan)


def received(pipe: Connection) -> Any:
    """Wait for the other process's message."""
    assert pipe.poll(PATIENCE_S), "no answer came"
    message = pipe.recv()
    assert not isinstance(message, str), message
    return message
