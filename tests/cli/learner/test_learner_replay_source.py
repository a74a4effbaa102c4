"""Batches that a learner gets from a replay beside it, with real DQN."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from cli.buffer.replays import JOB, ScriptedActor, open_replay

from tianji_algos import registry as algorithms
from tianji_algos.core import ReplayEmbryo, Spaces, UpdateResult, build_model
from tianji_algos.dqn.settings import DQNAgentSettings, DQNSettings
from tianji_algos.models.settings import MLPQSettings
from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay.samplers import SMALLEST_PRIORITY, PrioritisedSampler
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.episodes import EpisodePlayer
from tianji_cli.roles.learner.data_source import LocalReplayClient, ReplaySource
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout, common_fields
from tianji_envs.gym import GymFactory

SPACES = Spaces(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2))
FIELDS = algorithms.load("agent", "dqn").fields(SPACES, DQNAgentSettings())
LAYOUT = FragmentLayout(4, 4, common_fields(SPACES.observation) + FIELDS)
EACH, BATCH, RHO, PUBLISH_EVERY = 16, 8, 2.0, 3
SETTINGS = DQNSettings(batch_size=BATCH, warmup_steps=BATCH, replay_ratio=RHO)


class Training:
    """A feed over a replay that is filled by hand."""

    def __init__(self, sampler: str = "uniform", tolerance: float | None = None) -> None:
        model = build_model(algorithms.load("model", "mlp_q"), SPACES, MLPQSettings(hidden=(8,)), 1)
        self.embryo: ReplayEmbryo = algorithms.load("embryo", "dqn")(SPACES, model, SETTINGS, 1)
        self.replay = open_replay(LAYOUT, 20, sampler=sampler)
        limiter = RateLimiter(RHO, BATCH, tolerance)
        self.store = ReplayStore(LAYOUT, JOB, {1: (0,)}, replay=self.replay, limiter=limiter)
        self.arrays = BatchArrays(BatchLayout.of(LAYOUT, BATCH, [field.name for field in FIELDS]))
        self.feed = ReplaySource(
            LocalReplayClient(self.store, self.arrays),
            rho=RHO,
            publish_every=PUBLISH_EVERY,
            prioritised=sampler == "prioritised",
            age_bin=1,
        )
        self.feed.advance(0)
        self._actor = ScriptedActor(LAYOUT, 0, seed=1, end_rate=0.0)

    def receive(self, fragments: int, version: int = 0) -> None:
        for _ in range(fragments):
            memory = self.replay.free
            self._actor.fill(memory, version)
            Fragment(LAYOUT, memory).fields["action"] %= 2
            self.replay.accept()
            self.store.limiter.received += EACH

    def update(self) -> UpdateResult:
        batch = self.feed.batch()
        assert batch is not None
        result = self.embryo.update(batch)
        assert result.uses == BATCH
        self.feed.used(result)
        return result


def test_a_round_is_over_after_so_many_updates_and_no_batch_comes_before_the_policy_is_published() -> None:
    one = Training()
    one.receive(5)
    for version in range(1, 4):
        for _ in range(PUBLISH_EVERY):
            assert not one.feed.round_is_done
            one.update()
        assert one.feed.round_is_done
        assert one.feed.batch() is None
        one.feed.advance(version)
    assert one.store.limiter.consumed == 3 * PUBLISH_EVERY * BATCH


def test_there_is_no_batch_before_the_warm_up_is_over_nor_while_production_is_behind() -> None:
    one = Training(tolerance=24.0)
    assert one.feed.batch() is None
    one.receive(2)
    while one.feed.batch() is not None:
        pass
    assert one.store.limiter.error == -24.0
    one.receive(1)
    assert one.feed.batch() is not None


def test_lag_and_age_are_those_of_the_samples_at_the_time_of_their_use() -> None:
    one = Training()
    assert (one.feed.report().lag, one.feed.report().age) == (None, None)
    one.receive(1, version=3)
    one.feed.advance(5)
    one.update()
    report = one.feed.report()
    assert (report.lag.mean, report.lag.max, report.age.max) == (2.0, 2.0, 0.0)
    one.receive(2, version=5)
    ages = [0.0] * BATCH
    lags = [2.0] * BATCH
    for _ in range(2):
        one.update()
        ages += one.arrays.age.tolist()
        lags += (5 - one.arrays.version).tolist()
    report = one.feed.report()
    assert {0.0, 16.0, 32.0} >= set(ages)
    assert report.age.mean == pytest.approx(np.mean(ages))
    assert report.lag.mean == pytest.approx(np.mean(lags))


def test_an_update_changes_the_priorities_of_its_batch_to_its_errors() -> None:
    one = Training("prioritised")
    one.receive(5)
    priorities = one.update().priorities
    assert priorities is not None
    sampler = one.replay.sampler
    assert isinstance(sampler, PrioritisedSampler)
    keys, last = np.unique(one.arrays.key[::-1], return_index=True)
    errors = priorities[::-1][last]
    expected = (np.float64(errors) + SMALLEST_PRIORITY) ** 0.6
    np.testing.assert_allclose(sampler.tree.leaves[keys % one.replay.ring.slot_steps], expected, rtol=1e-5)


def test_without_priorities_an_update_changes_nothing_in_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Training("uniform")
    one.receive(5)
    monkeypatch.setattr(one.replay, "update_priorities", lambda *_: pytest.fail("they were updated"))
    one.update()


def test_the_report_says_the_ratio_that_is_wanted() -> None:
    assert Training().feed.report().rho == RHO


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_an_agent_that_explores_is_evaluated_by_what_its_network_values_most(epsilon: float) -> None:
    make: Callable[[], Any] = lambda: GymFactory().make("CartPole-v1", 4)  # noqa: E731 - made twice
    environment = make()
    spaces = Spaces(environment.observation_space, environment.action_space)
    environment.close()
    model = build_model(algorithms.load("model", "mlp_q"), spaces, MLPQSettings(hidden=(8,)), 1)
    settings = DQNAgentSettings(epsilon_start=epsilon, epsilon_end=epsilon)
    parameters = np.zeros(model.parameter_count, np.float32)
    model.write_parameters(parameters)
    returns = []
    for agent_seed in (0, 1):
        agent = algorithms.load("agent", "dqn")(spaces, model, settings, 4, agent_seed)
        agent.adopt(parameters)
        player = EpisodePlayer(agent, make(), 8, seed=3)
        while player.finished is None:
            player.turn()
        player.environment.close()
        returns.append(player.returns)
    assert returns[0] == returns[1], "nothing of it is drawn"
    assert returns[0] == pytest.approx(greedy_returns(model, make()))


def greedy_returns(model: Any, environment: Any) -> list[float]:
    """Play by the largest value, with no agent."""
    observation = np.zeros((4, 4), np.float32)
    reward, running = np.zeros(4, np.float32), np.zeros(4)
    terminated, truncated = np.zeros(4, np.bool_), np.zeros(4, np.bool_)
    left, returns = np.full(4, 2), []
    environment.reset(3, observation)
    while left.any():
        actions = model(torch.from_numpy(observation)).argmax(dim=1).numpy()
        environment.step(actions, observation, reward, terminated, truncated)
        running += reward
        for i in np.flatnonzero(terminated | truncated):
            if left[i]:
                left[i] -= 1
                returns.append(float(running[i]))
            running[i] = 0.0
    environment.close()
    return returns
