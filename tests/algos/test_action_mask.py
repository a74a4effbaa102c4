"""Observations that say which actions there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from algos.fragments import random_rollout
from algos.test_observations import Records
from algos.training import parameters
from gymnasium import spaces

from tianji_algos import registry
from tianji_algos.action_mask import FORBIDDEN, MaskReader
from tianji_algos.batch import Batch, UnrollBatch
from tianji_algos.core import Spaces, build_model
from tianji_algos.device import as_numbers
from tianji_algos.dqn.dqn import DQNEmbryo, draw_available
from tianji_algos.dqn.settings import DQNSettings
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.observations import observation_encoder
from tianji_algos.r2d2.r2d2 import R2D2Embryo
from tianji_algos.r2d2.settings import R2D2Settings
from tianji_algos.settings import NoSettings

ACTIONS, ROWS = 5, 40
OBSERVED = Records(
    {"action_mask": spaces.MultiBinary(ACTIONS), "numbers": spaces.Box(-1.0, 1.0, (3,), np.float32)}
)
SPACES = Spaces(OBSERVED, spaces.Discrete(ACTIONS, start=2))


def records(rows: int = ROWS, seed: int = 0) -> Any:
    """With one action at least."""
    drawn = OBSERVED.draw(rows, seed)
    drawn["action_mask"][np.arange(rows), np.random.default_rng(seed).integers(0, ACTIONS, rows)] = 1
    return drawn


def agent(name: str, **settings: Any) -> Any:
    kind = registry.load("agent", name)
    model_type = registry.load("model", kind.default_model)
    model = build_model(model_type, SPACES, model_type.settings_type(hidden=(16,)), 0)
    return kind(SPACES, model, kind.settings_type(**settings), ROWS, 0)


def rows_of(made: Any) -> Iterator[dict[str, Any]]:
    fields = made.fields(SPACES, made.settings)
    while True:
        yield {field.name: np.zeros((ROWS, *field.shape), field.dtype) for field in fields}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {}),
        ("impala", {}),
        ("dqn", {"epsilon_start": 0.0, "epsilon_end": 0.0}),
        ("r2d2", {"epsilon_start": 0.5, "epsilon_end": 0.5}),
        ("dqn", {"epsilon_start": 1.0, "eval_epsilon": 1.0}),
    ],
)
def test_agents_choose_among_the_actions_that_there_are(name: str, settings: dict[str, Any]) -> None:
    made = agent(name, **settings)
    rows = rows_of(made)
    for seed in range(30):
        seen = records(seed=seed)
        for action in (made.act(seen, next(rows)), made.act_greedily(seen)):
            assert seen["action_mask"][np.arange(ROWS), action - 2].all()


def test_random_actions_are_drawn_alike_from_those_that_there_are() -> None:
    available = np.array([[False, True, False, True, True]] * 30_000)
    luck = np.random.default_rng(0).random(len(available), dtype=np.float32)
    shares = np.bincount(draw_available(available, luck), minlength=5) / len(available)
    np.testing.assert_allclose(shares, [0.0, 1 / 3, 0.0, 1 / 3, 1 / 3], atol=0.01)
    edge = np.array([0.0, np.nextafter(np.float32(1.0), np.float32(0.0))], np.float32)
    assert draw_available(available[:2], edge).tolist() == [1, 4]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_dqn_bootstraps_from_the_best_action_that_there_is(backend: str, double: bool) -> None:
    model_type = registry.load("model", "mlp_q")
    model = build_model(model_type, SPACES, model_type.settings_type(hidden=(16,)), 0)
    embryo = DQNEmbryo(SPACES, model, DQNSettings(backend=backend, double=double), 0)
    embryo.prioritised = True
    seen, after = records(seed=1), records(seed=2)
    action, reward = np.zeros(ROWS, np.uint8), np.zeros(ROWS, np.float32)
    with torch.no_grad():
        q, next_q = (model(torch.from_numpy(as_numbers(each))).numpy() for each in (seen, after))
    expected = np.where(after["action_mask"] != 0, next_q, -np.inf).max(axis=1)
    assert (expected < next_q.max(axis=1)).any()
    ones = np.ones(ROWS, np.float32)
    batch = Batch(seen, {"action": action}, reward, after, 0.5 * ones, ones)
    errors = embryo.update(batch).priorities
    np.testing.assert_allclose(errors, np.abs(q[:, 0] - 0.5 * expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_r2d2_bootstraps_from_the_best_action_that_there_is(double: bool) -> None:
    model_type = registry.load("model", "recurrent_q")
    model = build_model(model_type, SPACES, model_type.settings_type(hidden=(16,), width=4), 0)
    settings = R2D2Settings(double=double, burn_in=0, unroll_steps=1, gamma=0.5, priority_mix=1.0)
    embryo = R2D2Embryo(SPACES, model, settings, 0)
    seen, state = np.stack([records(seed=1), records(seed=2)], axis=1), np.zeros((ROWS, 8), np.float32)
    with torch.no_grad():
        given = torch.from_numpy(as_numbers(seen.swapaxes(0, 1)))
        values, _ = model.unroll(given, torch.zeros(2, ROWS, dtype=torch.bool), torch.from_numpy(state))
    q, next_q = values.view(2, ROWS, ACTIONS).numpy()
    expected = np.where(seen["action_mask"][:, 1] != 0, next_q, -np.inf).max(axis=1)
    assert (expected < next_q.max(axis=1)).any()
    fields = {"action": np.zeros((ROWS, 1), np.uint8), "state": state}
    nothing = np.zeros((ROWS, 1), np.float32)
    batch = UnrollBatch(seen, fields, nothing, nothing != 0, nothing == 0, np.ones(ROWS, np.float32))
    errors = embryo.update(batch).priorities
    np.testing.assert_allclose(errors, np.abs(q[:, 0] - 0.5 * expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(ROWS,), (8, 5)])
def test_masks_of_arrays_and_of_bytes_are_the_same(shape: tuple[int, ...]) -> None:
    seen = records().reshape(shape)
    mask = MaskReader.of(SPACES)
    assert mask is not None
    outputs = np.random.default_rng(0).standard_normal((ROWS, ACTIONS), dtype=np.float32)
    by_hand = outputs.copy()
    mask.forbid(by_hand, seen)
    kept = records()["action_mask"] != 0
    np.testing.assert_array_equal(by_hand, np.where(kept, outputs, np.float32(FORBIDDEN)))
    for given in (seen, torch.from_numpy(as_numbers(seen))):
        np.testing.assert_array_equal(mask.forbidding(torch.from_numpy(outputs), given), by_hand)


@pytest.mark.parametrize(
    ("part", "action", "message"),
    [
        (spaces.MultiBinary(4), spaces.Discrete(5), r"a MultiBinary\(5\) would be right"),
        (spaces.MultiBinary((5, 1)), spaces.Discrete(5), r"a MultiBinary\(5\) would be right"),
        (spaces.MultiBinary(4), spaces.MultiDiscrete([2, 3]), r"a MultiBinary\(5\) would be right"),
        (spaces.MultiBinary(4), spaces.Box(-1.0, 1.0, (4,)), "another name for that part"),
    ],
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(part: Any, action: Any, message: str) -> None:
    space = Records({"action_mask": part, "numbers": spaces.Box(-1.0, 1.0, (3,))})
    with pytest.raises(UnsupportedSpaceError, match=message):
        MaskReader.of(Spaces(space, action))


def test_observations_without_a_mask_have_none() -> None:
    assert MaskReader.of(Spaces(spaces.Discrete(3), spaces.Discrete(2))) is None
    assert MaskReader.of(Spaces(Records({"a": spaces.Discrete(2)}), spaces.Discrete(2))) is None


def test_a_mask_that_leaves_nothing_forbids_nothing() -> None:
    """An episode may end with one: what follows is then valued all the same."""
    seen = records()
    seen["action_mask"][3] = 0
    mask = MaskReader.of(SPACES)
    assert mask is not None
    assert not mask.forbidden(seen)[3].any()
    assert not mask.forbidden_in_torch(torch.from_numpy(as_numbers(seen)))[3].any()
    several = Spaces(OBSERVED, spaces.MultiDiscrete([2, 3]))
    of_sets = MaskReader.of(several)
    assert of_sets is not None
    seen["action_mask"][4] = (1, 0, 0, 0, 0)
    assert of_sets.forbidden(seen)[4].tolist() == [False, True, False, False, False]
    assert draw_available(~mask.forbidden(seen)[3:4], np.array([0.99], np.float32)) == [4]


class ValueOfPolicy(ActorCritic):
    """A network whose value is computed from its policy, so that autograd needs the policy as it was."""

    settings_type = NoSettings

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.encoder = observation_encoder(OBSERVED)
        self.policy, self.value = torch.nn.Linear(3, ACTIONS), torch.nn.Linear(ACTIONS, 1)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        policy = self.policy(self.encoder.in_torch(observation))
        return policy, self.value(policy.square())[:, 0]


def masked_rollout(seed: int, state_size: int) -> list[Any]:
    """In which action 2 is never there."""
    plain = Spaces(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(ACTIONS))
    fragments = random_rollout(plain, seed, steps=16, state_size=state_size)
    for number, fragment in enumerate(fragments):
        steps, envs = fragment["action"].shape
        seen = records((steps + 1) * envs, seed + number).reshape(steps + 1, envs)
        fragment["action"][fragment["action"] == 2] = 1
        seen["action_mask"][..., 2] = 0
        seen["action_mask"][..., 1] = 1
        np.put_along_axis(seen["action_mask"][:-1], fragment["action"][..., None].astype(np.intp), 1, axis=2)
        fragment["observation"] = seen
    return fragments


@pytest.mark.parametrize("rule", ["ppo", "impala"])
@pytest.mark.parametrize("model", ["mlp_actor_critic", "recurrent_actor_critic", "value of policy"])
def test_updates_forbid_what_is_not_there_alike_by_hand_and_in_torch(rule: str, model: str) -> None:
    found = []
    for backend in ("numpy", "torch"):
        if model == "value of policy":
            network: Any = build_model(ValueOfPolicy, SPACES, NoSettings(), 0)
            last = "policy.bias"
        else:
            kind = registry.load("model", model)
            gated = {"width": 8} if model == "recurrent_actor_critic" else {}
            network = build_model(kind, SPACES, kind.settings_type(hidden=(8,), **gated), 0)
            last = [name for name, _ in network.named_parameters() if name.endswith("bias")][
                -1 if gated else 1
            ]
        settings = registry.settings_type("embryo", rule)(
            backend=backend, rollout_steps=128, minibatch_size=64, entropy_coef=0.01, max_grad_norm=1e6
        )
        embryo = registry.load("embryo", rule)(SPACES, network, settings, 5)
        size = getattr(network, "state_size", 0)
        biases = []
        for batch in embryo.minibatches(masked_rollout(1, size)):
            embryo.update(batch)
            biases.append(dict(network.named_parameters())[last].grad[2].item())
        assert model == "value of policy" or biases == [0.0] * len(biases)
        found.append(parameters(embryo))
        assert np.isfinite(found[-1]).all()
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=2e-5)
