"""An actor and a receiver in one process over the real in-process engine."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from cli.film import Film, Witness
from cli.skirmish import Recruit, Skirmish

from tianji_algos import registry as algorithms
from tianji_algos.core import Agent, Model, Spaces, build_model
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings
from tianji_cli.files.counters import ProductionFile, ProductionPage
from tianji_cli.roles.actor.actor import Actor, Destination, Outbox
from tianji_cli.roles.role import Role
from tianji_cli.wire.fragment import Fragment, FragmentLayout, common_fields
from tianji_cli.wire.parameters import PublishedPolicy, policy_layout
from tianji_cli.worker.parts import spaces_of
from tianji_envs.core import VectorEnvironment
from tianji_envs.gym import GymFactory
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Slot, Wiring

JOB = 5
LEARNER, ACTOR = 0, 1
SEED = 11
CARTPOLE = Spaces(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2))
"""Spaces of a model whose parameters are published without an actor."""
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def let_work(role: Role, turns: int = 1) -> bool:
    """Pull a role's triggers and let it take a turn, so many times; False if it did nothing at last."""
    worked = False
    for _ in range(turns):
        worked = False
        for trigger in role.triggers:
            if trigger.when():
                worked |= trigger.do()
        worked |= role.turn()
    return worked


@dataclass
class Received:
    """A copy of a fragment."""

    header: np.void
    fields: dict[str, npt.NDArray[Any]]


class Stage:
    """One actor in ``id``'s environments, and the rank that receives its fragments and publishes to it."""

    def __init__(
        self,
        directory: Path,
        id: str = "CartPole-v1",  # noqa: A002 - the config's word for it
        *,
        steps: int = 8,
        num_envs: int = 4,
        window: int = 2,
        per_version: int | None = None,
        max_episode_steps: int | None = None,
        borrow: int = 16,
        copies: int = 0,
        film: Film | Skirmish | None = None,
        environment: VectorEnvironment | None = None,
    ) -> None:
        self.make: Callable[[], VectorEnvironment] = lambda: GymFactory().make(
            id, num_envs, max_episode_steps
        )
        environment = environment or film or self.make()
        num_envs = environment.num_envs
        self.spaces = spaces_of(environment)
        in_team = bool(environment.agents)
        agent_type = Recruit if in_team else Witness if film else algorithms.load("agent", "ppo")
        winnable = environment.won is not None
        common = common_fields(environment.observation_space, environment.stack, winnable=winnable)
        self.layout = FragmentLayout(
            steps, num_envs, common + agent_type.fields(self.spaces, PPOAgentSettings())
        )
        self.model_spaces = CARTPOLE if in_team else self.spaces
        self.model = self.build(1)
        self.witness = Witness(num_envs)
        fragments = Channel("fragments", LEARNER, (ACTOR,), self.layout.nbytes, window, borrow)
        to_copies = [Destination(f"role{i}", ACTOR + 1 + i, f"copies-{i}") for i in range(copies)]
        channels = [Channel(to.channel, to.dest, (ACTOR,), self.layout.nbytes, window) for to in to_copies]
        readers = (ACTOR, *(to.dest for to in to_copies))
        policy = Slot("policy", LEARNER, readers, policy_layout(self.model.parameter_count).nbytes)
        wiring = Wiring(f"stage-{next(_numbers)}", (fragments, *channels), (policy,))
        self.receiver = InprocTransport(wiring, LEARNER)
        self.copyists = [InprocTransport(wiring, to.dest) for to in to_copies]
        self.sender = InprocTransport(wiring, ACTOR)
        self.file = ProductionFile(directory / f"{wiring.job}.bin", 1)
        player = Recruit(num_envs) if in_team else self.witness if film else self.agent(self.model, num_envs)
        self.agent_in_use = player
        self.actor = Actor(
            0,
            0,
            JOB,
            agent=player,
            environment=environment,
            layout=self.layout,
            outbox=Outbox(self.sender, LEARNER, "fragments", "policy", to_copies),
            page=ProductionPage(self.file, 0),
            seed=SEED,
            per_version=per_version,
        )

    def build(self, seed: int) -> Model:
        settings = MLPActorCriticSettings(hidden=(8,))
        return build_model(algorithms.load("model", "mlp_actor_critic"), self.model_spaces, settings, seed)

    def agent(self, model: Model, num_envs: int, seed: int = 3) -> Agent:
        agent: Agent = algorithms.load("agent", "ppo")(self.spaces, model, PPOAgentSettings(), num_envs, seed)
        return agent

    def publish(self, version: int, env_steps: int = 0) -> npt.NDArray[np.float32]:
        """Publish parameters that belong to ``version`` alone."""
        policy = PublishedPolicy(memoryview(bytearray(policy_layout(self.model.parameter_count).nbytes)))
        self.build(version + 100).write_parameters(policy.parameters)
        policy.header["env_steps"] = env_steps
        self.receiver.publish("policy", policy.memory, version)
        return policy.parameters

    def receive(self) -> Received | None:
        claim = self.receiver.probe("fragments")
        if claim is None:
            return None
        fragment = Fragment(self.layout, claim.view())
        assert fragment.refusal(JOB, [0]) is None
        copied = {name: array.copy() for name, array in fragment.fields.items()}
        received = Received(fragment.header.copy()[()], copied)
        claim.release()
        return received

    def play(self, fragments: int, received: list[Received] | None = None) -> list[Received]:
        """Let the actor work until so many fragments were received, and put them into a list."""
        received = [] if received is None else received
        while len(received) < fragments:
            let_work(self.actor)
            fragment = self.receive()
            if fragment is not None:
                received.append(fragment)
        return received

    def close(self) -> None:
        self.actor.close()
        for endpoint in (self.sender, self.receiver, *self.copyists):
            endpoint.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def open_stage(*arguments: Any, **keywords: Any) -> Stage:
        stages.append(Stage(tmp_path, *arguments, **keywords))
        return stages[-1]

    yield open_stage
    for one in stages:
        one.close()


@pytest.fixture
def work() -> Callable[..., bool]:
    return let_work
