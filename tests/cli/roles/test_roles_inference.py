"""Inference apart: which version answers whom, what a pass takes, and what becomes of the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

from tianji_algos.core import Executor, Spaces
from tianji_algos.fields import FieldSpec
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.recurrent import GatedActorCritic
from tianji_algos.ppo.ppo import PPOAgent
from tianji_algos.ppo.settings import PPOAgentSettings
from tianji_cli.config.schema import Inference as InferenceSettings
from tianji_cli.roles.actor.remote import Connection, RemoteExecutor
from tianji_cli.roles.inference import Inference, PassLayout
from tianji_cli.wire.parameters import PublishedPolicy, policy_layout
from tianji_transports.core import Transport
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Slot, Wiring

JOB, ENVS = 7, 3
LEARNER, ROLE, ACTORS = 0, 1, {2: (0, 1), 3: (2,)}
"""Ranks; actors 0 and 1 share a process."""

LAYOUT = PassLayout.of(
    np.zeros((ENVS, 2), np.float32),
    [np.zeros((ENVS, 2), np.float32), np.zeros(ENVS, np.float32)],
    [FieldSpec("state", np.dtype(np.float32), (1,), once=True)],
    [FieldSpec("filter", np.dtype(np.float32), (2,), once=True)],
)


class Adding(Executor):
    """Outputs observation + parameter, and the parameter; its memory counts steps, its filter is constant."""

    def __init__(self, passes: list[int]) -> None:
        self._parameter = np.float32(0)
        self._passes = passes
        self._state = np.zeros((0, 1), np.float32)

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        self._parameter = parameters[0].copy()

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], ...]:
        self._passes.append(len(observation))
        self._state = self._state + 1
        return observation + self._parameter, np.full(len(observation), self._parameter)

    def resume(self, fields: Mapping[str, npt.NDArray[Any]]) -> None:
        self._state = fields["state"][0].copy()

    def record(self, fields: Mapping[str, npt.NDArray[Any]]) -> None:
        fields["state"][0] = self._state
        fields["filter"][...] = self._parameter


class House:
    """A learner's slot, the role, and the executors of three actors in two processes."""

    def __init__(
        self,
        max_batch: int | None = None,
        max_wait_ms: float = 0.0,
        layout: PassLayout = LAYOUT,
        executors: Sequence[Executor] = (),
    ) -> None:
        request, answer = layout.request.nbytes, layout.answer.nbytes
        channels = (
            Channel("requests", ROLE, tuple(ACTORS), request, window=2),
            *(Channel("answers", rank, (ROLE,), answer, window=2) for rank in ACTORS),
        )
        wiring = Wiring("house", channels, (Slot("policy", LEARNER, (ROLE,), policy_layout(1000).nbytes),))
        self.ends: list[Transport] = [InprocTransport(wiring, rank) for rank in range(4)]
        self.passes: list[int] = []
        self.role = Inference(
            self.ends[ROLE],
            executors or [Adding(self.passes), Adding(self.passes)],
            layout,
            JOB,
            ACTORS,
            "policy",
            InferenceSettings(max_batch=max_batch, max_wait_ms=max_wait_ms),
        )
        lines = {rank: Connection(self.ends[rank], ROLE, layout, JOB) for rank in ACTORS}
        self.actors = [RemoteExecutor(lines[rank], one) for rank, all_ in ACTORS.items() for one in all_]

    def publish(self, version: int, parameters: npt.NDArray[np.float32] | None = None) -> None:
        parameters = np.full(1, version, np.float32) if parameters is None else parameters
        memory = memoryview(bytearray(policy_layout(len(parameters)).nbytes))
        policy = PublishedPolicy(memory)
        policy.stamp(JOB, 100 * version)
        policy.parameters[:] = parameters
        self.ends[LEARNER].publish("policy", memory, version)

    def turn(self) -> bool:
        for trigger in self.role.triggers:
            if trigger.when():
                trigger.do()
        return self.role.turn()

    def begin(self, actor: int, observation: float | npt.NDArray[np.float32] = 0.0) -> int:
        """Have an actor begin a fragment, and the role answer; returns the version."""
        one = self.actors[actor]
        assert not one.begins(seen(observation))
        self.turn()
        assert one.begins(seen(observation))
        return one.version

    def step(
        self, actor: int, observation: float | npt.NDArray[np.float32] = 0.0, *, last: bool = False
    ) -> int:
        one = self.actors[actor]
        one.ask(seen(observation), last=last)
        assert not one.has_answer()
        self.turn()
        assert one.has_answer()
        return one.version


def seen(number: float | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.full((ENVS, 2), number, np.float32) if isinstance(number, float | int) else number


@pytest.fixture
def house() -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def build(**options: Any) -> House:
        houses.append(House(**options))
        return houses[-1]

    yield build
    for one in houses:
        for end in one.ends:
            end.close()


def test_nothing_is_answered_before_there_is_a_policy(house: Callable[..., House]) -> None:
    one = house()
    assert not one.actors[0].begins(seen(0))
    assert not one.turn()
    one.publish(0)
    assert one.turn()
    assert one.actors[0].begins(seen(0))
    assert (one.actors[0].version, one.actors[0].env_steps) == (0, 0)


def test_an_answer_is_what_the_network_gives_for_the_observation(house: Callable[..., House]) -> None:
    one = house()
    one.publish(3)
    one.begin(0, 5.0)
    outputs, parameter = one.actors[0](seen(5.0))
    assert outputs.tolist() == [[8.0, 8.0]] * ENVS
    assert parameter.tolist() == [3.0] * ENVS
    assert one.actors[0].env_steps == 300


def test_a_pass_takes_the_requests_of_several_actors_and_each_gets_its_own(
    house: Callable[..., House],
) -> None:
    one = house()
    one.publish(1)
    for actor in (0, 1, 2):
        assert not one.actors[actor].begins(seen(10.0 * actor))
    one.turn()
    assert one.passes == [3 * ENVS]
    for actor in (2, 0, 1):
        assert one.actors[actor].begins(seen(0))
        assert one.actors[actor](seen(0))[0][0].tolist() == [10.0 * actor + 1] * 2
    assert dict(one.role.report().values) == {"requests": 3, "passes": 1}


def test_a_pass_takes_no_more_than_its_batch(house: Callable[..., House]) -> None:
    one = house(max_batch=2 * ENVS + 1)
    one.publish(1)
    for actor in (0, 1, 2):
        one.actors[actor].begins(seen(0))
    one.turn()
    one.turn()
    assert one.passes == [2 * ENVS, ENVS]


def test_a_fragment_keeps_the_version_that_it_began_with(house: Callable[..., House]) -> None:
    one = house()
    one.publish(1)
    assert one.begin(0) == 1
    one.publish(2)
    assert one.begin(2) == 2
    assert one.step(0) == 1
    assert one.actors[0](seen(0))[1][0] == 1.0
    assert one.step(2) == 2
    assert one.step(0, last=True) == 1
    assert one.begin(0) == 2


def test_two_versions_are_held_and_a_newer_one_waits_for_the_end_of_a_fragment(
    house: Callable[..., House],
) -> None:
    one = house()
    one.publish(1)
    one.begin(0)
    one.publish(2)
    one.begin(1)
    one.publish(3)
    assert one.begin(2) == 2, "fragments of 1 and 2 are not over"
    assert one.step(0, last=True) == 1
    assert one.begin(0) == 3
    assert one.step(1) == 2


def test_a_newer_version_takes_the_place_of_one_that_nobody_began_with(house: Callable[..., House]) -> None:
    one = house()
    one.publish(1)
    one.begin(0)
    one.publish(2)
    one.turn()
    one.publish(3)
    one.turn()
    assert one.begin(1) == 3
    assert one.step(0) == 1


def test_an_actor_that_died_within_a_fragment_holds_its_version_until_its_successor_asks(
    house: Callable[..., House],
) -> None:
    one = house()
    one.publish(1)
    one.begin(2)
    one.publish(2)
    one.begin(0)
    one.publish(3)
    one.ends[3].incarnation = 1
    successor = RemoteExecutor(Connection(one.ends[3], ROLE, LAYOUT, JOB), 2)
    assert not successor.begins(seen(0))
    one.turn()
    assert successor.begins(seen(0))
    assert successor.version == 2
    assert one.begin(1) == 3


def test_actors_that_do_not_come_again_hold_no_version_and_are_neither_answered_nor_waited_for(
    house: Callable[..., House],
) -> None:
    one = house(max_wait_ms=1000.0)
    one.publish(1)
    began = time.monotonic()
    for actor in (0, 1, 2):
        assert not one.actors[actor].begins(seen(0))
    one.turn()
    assert all(actor.begins(seen(0)) for actor in one.actors)
    one.actors[2].ask(seen(0))
    one.ends[ROLE].peer_lost(3)
    one.role.peer_lost(3, 0)
    one.role.peer_lost(9, 0)
    one.publish(2)
    for actor in (0, 1):
        one.actors[actor].ask(seen(0), last=True)
    one.turn()
    assert one.passes == [3 * ENVS, 2 * ENVS]
    assert not one.turn(), "no answer is left to send"
    assert [one.actors[actor].has_answer() for actor in (0, 1)] == [True, True]
    assert not one.actors[0].begins(seen(0))
    assert not one.actors[1].begins(seen(0))
    one.turn()
    assert one.actors[0].begins(seen(0))
    assert one.actors[0].version == 2
    one.publish(3)
    one.actors[1].ask(seen(0), begins=True)
    one.actors[0].ask(seen(0))
    one.turn()
    assert [one.actors[actor].has_answer() for actor in (0, 1)] == [True, True]
    assert [one.actors[actor].version for actor in (0, 1)] == [2, 3]
    assert time.monotonic() - began < 1.0


def test_memory_moves_on_with_a_call_and_not_with_a_preview_and_is_cleared_where_an_episode_ends(
    house: Callable[..., House],
) -> None:
    one, fields = house(), {"state": np.zeros((1, ENVS, 1)), "filter": np.zeros((1, ENVS, 2))}
    one.publish(4)
    one.begin(0)
    actor = one.actors[0]
    actor.record(fields)
    assert fields["state"].sum() == 0
    assert (fields["filter"] == 4).all()
    actor(seen(0))
    actor.forget(np.array([True, False, False]))
    one.step(0, last=True)
    actor.preview(seen(0))
    actor.record(fields)
    assert fields["state"][0, :, 0].tolist() == [0, 1, 1]


def test_an_answer_to_a_killed_process_or_an_earlier_request_is_not_taken(
    house: Callable[..., House],
) -> None:
    one = house()
    one.publish(1)
    actor = one.actors[2]
    assert not actor.begins(seen(1))
    one.turn()
    one.ends[3].incarnation = 1
    assert not actor.has_answer()
    assert actor.version == -1


@pytest.mark.parametrize(("asking", "least_s", "most_s"), [((0, 1), 0.05, 1.0), ((0, 1, 2), 0.0, 0.04)])
def test_a_pass_waits_for_others_unless_all_have_asked(
    house: Callable[..., House], asking: Sequence[int], least_s: float, most_s: float
) -> None:
    one = house(max_wait_ms=50.0)
    one.publish(1)
    for actor in asking:
        one.actors[actor].begins(seen(0))
    began = time.monotonic()
    one.turn()
    assert least_s <= time.monotonic() - began <= most_s
    assert one.passes == [len(asking) * ENVS]


@pytest.mark.parametrize("kind", [MLPActorCritic, GatedActorCritic])
def test_an_agent_acts_as_it_would_with_a_network_of_its_own(
    house: Callable[..., House], kind: type[ActorCritic]
) -> None:
    spaces = Spaces(gymnasium.spaces.Box(-1, 1, (4,), np.float32), gymnasium.spaces.Discrete(3))
    settings = kind.settings_type(hidden=(8,), **({"width": 4} if kind is GatedActorCritic else {}))
    model = kind(spaces, settings)
    parameters = np.empty(model.parameter_count, np.float32)
    model.write_parameters(parameters)
    observation = np.zeros((ENVS, 4), np.float32)
    memory = kind.recorded(spaces, settings)
    layout = PassLayout.of(observation, model.executor(ENVS)(observation), memory, [])
    one = house(layout=layout, executors=[model.executor(ENVS) for _ in range(2)])
    one.publish(0, parameters)
    local = PPOAgent(spaces, model, PPOAgentSettings(), ENVS, seed=5)
    model.executor = lambda _: one.actors[0]  # type: ignore[method-assign, assignment]
    remote = PPOAgent(spaces, model, PPOAgentSettings(), ENVS, seed=5)
    dice, ended = np.random.default_rng(1), np.array([False, True, False])
    names = [field.name for field in memory]
    before = [
        {field.name: np.zeros((1, ENVS, *field.shape), field.dtype) for field in memory} for _ in range(2)
    ]
    for step in range(6):
        observation = dice.normal(size=(ENVS, 4)).astype(np.float32)
        if step == 0:
            one.begin(0, observation)
        else:
            one.step(0, observation)
        rows = [fields_of_a_step() for _ in range(2)]
        for agent, row, fields in zip((local, remote), rows, before, strict=True):
            agent.begin(fields)
            agent.act(observation, row)
            agent.begin_episodes(ended)
        for name, array in rows[0].items():
            np.testing.assert_allclose(array, rows[1][name], rtol=1e-5, atol=1e-6, err_msg=name)
        for name in names:
            np.testing.assert_allclose(before[0][name], before[1][name], rtol=1e-5, atol=1e-6)


def fields_of_a_step() -> dict[str, npt.NDArray[Any]]:
    return {
        "action": np.zeros(ENVS, np.uint8),
        "log_prob": np.zeros(ENVS, np.float32),
        "value": np.zeros(ENVS, np.float32),
    }
