from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.dqn_batches import ROWS, SOFT, TorchQ, build, make_batch
from algos.training import parameters

from tianji_algos.batch import Batch
from tianji_algos.core import Spaces, build_model
from tianji_algos.dqn.dqn import DQNAgent, DQNEmbryo
from tianji_algos.dqn.settings import DQNAgentSettings, DQNSettings
from tianji_algos.errors import (
    UnsupportedSpaceError,
)
from tianji_algos.models.mlp import MLPQ
from tianji_algos.models.settings import MLPQSettings

Floats = npt.NDArray[np.float32]


def target_parameters(embryo: DQNEmbryo) -> Floats:
    tensors, _ = embryo.state()
    return np.concatenate(
        [t.reshape(-1).numpy() for name, t in tensors.items() if name.startswith("target.")]
    )


def reference_td_error(embryo: DQNEmbryo, batch: Batch, target: MLPQ) -> Floats:
    """One sample at a time, as the papers write it; only with the target network the online one's twin."""
    settings = embryo.settings
    errors = []
    with torch.no_grad():
        for i in range(len(batch.reward)):
            observation = torch.from_numpy(batch.observation[i : i + 1])
            following = torch.from_numpy(batch.next_observation[i : i + 1])
            valued = target(following)[0]
            best = int((embryo.model(following) if settings.double else valued[None])[0].argmax())
            aim = settings.reward_scale * batch.reward[i] + batch.discount[i] * float(valued[best])
            errors.append(float(embryo.model(observation)[0][int(batch.fields["action"][i])]) - aim)
    return np.array(errors, np.float32)


@pytest.mark.parametrize("double", [True, False])
def test_the_td_error_is_the_naive_one(cartpole_spaces: Spaces, double: bool) -> None:
    embryo = build(cartpole_spaces, double=double, reward_scale=0.5)
    twin = build_model(MLPQ, cartpole_spaces, MLPQSettings(hidden=(8,)), 0)
    assert isinstance(twin, MLPQ)
    for seed in range(5):  # from the second update on the networks differ
        expected = reference_td_error(embryo, make_batch(seed), twin)
        result = embryo.update(make_batch(seed))
        assert result.uses == ROWS
        np.testing.assert_allclose(result.priorities, np.abs(expected), rtol=1e-3, atol=1e-5)


def test_double_and_plain_targets_differ_once_the_networks_do(cartpole_spaces: Spaces) -> None:
    double, plain = build(cartpole_spaces), build(cartpole_spaces, double=False)
    seen = []
    for _ in range(2):
        for seed in range(20):
            one, other = (embryo.update(make_batch(seed)).priorities for embryo in (double, plain))
            seen.append(np.array_equal(one, other))
    assert seen[0]
    assert not all(seen)


@pytest.mark.parametrize("network", [{}, {"dueling": True}, {"dueling": True, "stream_hidden": (6,)}])
@pytest.mark.parametrize("settings", [{}, {"loss": "mse"}, SOFT, {"max_grad_norm": None}])
def test_a_users_torch_model_trains_like_the_built_in_one(
    cartpole_spaces: Spaces, network: dict[str, Any], settings: dict[str, Any]
) -> None:
    ours = build(cartpole_spaces, network=network, **settings)
    theirs = build(cartpole_spaces, network=network, model_type=TorchQ, **settings)
    before = parameters(ours)
    np.testing.assert_array_equal(before, parameters(theirs))
    for embryo in (ours, theirs):
        for seed in range(5):
            embryo.update(make_batch(seed))
    assert (parameters(ours) != before).any()
    np.testing.assert_allclose(parameters(ours), parameters(theirs), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(target_parameters(ours), target_parameters(theirs), rtol=1e-3, atol=1e-4)


def test_the_target_network_is_copied_every_so_many_updates(cartpole_spaces: Spaces) -> None:
    embryo = build(cartpole_spaces, target_every=3)
    expected = parameters(embryo)
    for update in range(1, 8):
        embryo.update(make_batch(update))
        if update % 3 == 0:
            expected = parameters(embryo)
        np.testing.assert_array_equal(target_parameters(embryo), expected)
        assert (update % 3 == 0) == np.array_equal(parameters(embryo), expected)


def test_the_target_network_follows_softly_with_every_update(cartpole_spaces: Spaces) -> None:
    embryo = build(cartpole_spaces, **SOFT)
    expected = parameters(embryo)
    for update in range(4):
        embryo.update(make_batch(update))
        expected = 0.75 * expected + 0.25 * parameters(embryo)
        np.testing.assert_allclose(target_parameters(embryo), expected, rtol=1e-4, atol=1e-6)


def test_buffers_go_with_the_target_network(cartpole_spaces: Spaces) -> None:
    class Counted(TorchQ):
        def __init__(self, spaces: Spaces, settings: MLPQSettings) -> None:
            super().__init__(spaces, settings)
            self.register_buffer("seen", torch.zeros(1))

    embryo = build(cartpole_spaces, model_type=Counted, target_every=2)
    embryo.model.get_buffer("seen").fill_(5.0)
    for update, expected in ((1, 0.0), (2, 5.0)):
        embryo.update(make_batch(update))
        assert embryo.state()[0]["target.seen"].tolist() == [expected]


def test_samples_after_which_an_episode_terminated_are_worth_their_reward(cartpole_spaces: Spaces) -> None:
    batch = make_batch()
    batch.discount[:] = 0.0
    embryo, disturbed = build(cartpole_spaces), build(cartpole_spaces)
    embryo.update(batch)
    batch.next_observation[:] = 1e3
    disturbed.update(batch)
    np.testing.assert_array_equal(parameters(embryo), parameters(disturbed))


@pytest.mark.parametrize("saved", [{}, {"learning_rate": 1e-2}], ids=["as saved now", "as once saved"])
def test_a_resumed_run_learns_at_the_rate_of_its_settings(
    cartpole_spaces: Spaces, saved: dict[str, float]
) -> None:
    tensors, rest = build(cartpole_spaces, learning_rate=1e-2).state()
    slower = build(cartpole_spaces, learning_rate=1e-3)
    slower.load_state(tensors, {**rest, **saved})
    slower.schedule(500)
    slower.update(make_batch())
    assert slower.metrics()["learning_rate"] == 1e-3


def test_continuous_actions_are_refused(cartpole_spaces: Spaces, pendulum_spaces: Spaces) -> None:
    model = build_model(MLPQ, cartpole_spaces, MLPQSettings(), 0)
    assert isinstance(model, MLPQ)
    with pytest.raises(UnsupportedSpaceError, match="Discrete"):
        DQNEmbryo(pendulum_spaces, model, DQNSettings(), 0)


class Corridor:
    """Sixteen walkers on five places; only the door at the right end pays, and ends the episode."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._place = self._rng.integers(4, size=ROWS)

    def observe(self) -> Floats:
        return np.eye(5, dtype=np.float32)[self._place, :4]

    def step(self, action: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        self._place = np.maximum(0, self._place + np.where(action == 1, 1, -1))
        return np.asarray(self._place == 4)

    def reset(self, arrived: npt.NDArray[np.bool_]) -> None:
        self._place[arrived] = self._rng.integers(4, size=int(arrived.sum()))


def test_agent_and_embryo_learn_together_to_walk_to_the_door(cartpole_spaces: Spaces) -> None:
    embryo = build(cartpole_spaces, target_every=20, gamma=0.9)
    actor_model = build_model(MLPQ, cartpole_spaces, MLPQSettings(hidden=(8,)), 1)
    assert isinstance(actor_model, MLPQ)
    explores = DQNAgentSettings(epsilon_start=1.0, epsilon_end=0.2, epsilon_steps=4000)
    agent = DQNAgent(cartpole_spaces, actor_model, explores, ROWS, 0)
    world, row = Corridor(), {"action": np.zeros(ROWS, np.uint8)}
    for step in range(400):
        agent.schedule(step * ROWS)
        agent.adopt(parameters(embryo))
        before = world.observe()
        arrived = world.step(agent.act(before, row))
        embryo.update(
            Batch(
                observation=before,
                fields=row,
                reward=arrived.astype(np.float32),
                next_observation=world.observe(),
                discount=np.where(arrived, 0.0, 0.9).astype(np.float32),
                weight=np.ones(ROWS, np.float32),
            )
        )
        world.reset(arrived)
    agent.adopt(parameters(embryo))
    places = np.eye(5, dtype=np.float32)[:4, :4]
    assert agent.act_greedily(places).tolist() == [1, 1, 1, 1]
    with torch.no_grad():
        q = embryo.model(torch.from_numpy(places)).numpy()
    np.testing.assert_allclose(q[:, 1], [0.9**3, 0.9**2, 0.9, 1.0], atol=0.1)
