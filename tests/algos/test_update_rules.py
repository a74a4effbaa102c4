"""Claims of every update rule: what is saved, averaged and reported, and what is refused."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from algos import maddpg_team
from algos.training import parameters
from algos.update_rules import CASES, Case, embryo_of, team_batches

from tianji_algos.errors import DivergedError, StateMismatchError
from tianji_algos.ppo.ppo import PPOEmbryo

EVERY = pytest.mark.parametrize(("build", "batches"), CASES.values(), ids=CASES)
LINEAR = {"learning_rate_schedule": "linear", "schedule_steps": 1000}
POINTS = {"learning_rate_schedule": ((0, 0.1), (200, 1.0))}
COPIED, SOFT = {"target_every": 2}, {"target_update": "soft", "target_tau": 0.25}
RMSPROP, IN_TORCH = {"optimizer": "rmsprop"}, {"backend": "torch"}
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "dqn": (SOFT, COPIED, IN_TORCH),
    "qmix": (SOFT, COPIED, RMSPROP),
    "r2d2": (SOFT, COPIED),
    **dict.fromkeys(("ppo, discrete", "impala, discrete"), (RMSPROP, POINTS, IN_TORCH, RMSPROP | IN_TORCH)),
    **dict.fromkeys(("ppo, continuous", "impala, continuous", "sac", "td3"), (IN_TORCH,)),
}
"""Further settings of some update rules."""


def variants() -> dict[str, Case]:
    """Each update rule, some of them with several settings or networks, and with falling learning rates."""
    found = dict(CASES)
    for name, several in SETTINGS.items():
        build, batches = CASES[name]
        found |= {f"{name}, {settings}": (partial(build, **settings), batches) for settings in several}
    for model in maddpg_team.MODELS[1:]:
        for spaces in (maddpg_team.DISCRETE, maddpg_team.CONTINUOUS):
            build = embryo_of("maddpg", spaces, settings=model)
            found[f"maddpg, {type(spaces.action).__name__}, {model}"] = build, partial(team_batches, spaces)
    return {name: (partial(build, **LINEAR), batches) for name, (build, batches) in found.items()}


VARIANTS = variants()
EACH_VARIANT = pytest.mark.parametrize(("build", "batches"), VARIANTS.values(), ids=VARIANTS)


def train(embryo: Any, batches: Any) -> list[Any]:
    """Learn; returns the priorities of each update."""
    priorities = [embryo.update(batch).priorities for batch in batches(embryo)]
    return [None if found is None else found.copy() for found in priorities]


def assert_equal(first: Any, second: Any) -> None:
    found, expected = first.state()[0], second.state()[0]
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


@EACH_VARIANT
def test_a_state_that_went_through_files_continues_bit_for_bit(build: Any, batches: Any) -> None:
    straight, resumed = build(), build(seed=7)
    straight.schedule(100)
    train(straight, batches)
    for embryo in (resumed, resumed):
        train(embryo, batches)
    tensors, rest = straight.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed.load_state(tensors, json.loads(json.dumps(rest)))
    resumed.schedule(100)
    for _ in range(2):
        found, expected = (train(embryo, batches) for embryo in (resumed, straight))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert_equal(resumed, straight)


@EACH_VARIANT
def test_the_same_seed_learns_the_same_bits(build: Any, batches: Any) -> None:
    first, again = build(), build()
    for embryo in (first, again, first, again):
        train(embryo, batches)
    assert_equal(first, again)


@pytest.mark.parametrize("name", ["ppo, discrete", "impala, discrete", "mappo, team", "maddpg, discrete"])
def test_another_seed_draws_other_numbers(name: str) -> None:
    build, batches = CASES[name]
    first, other = build(seed=1), build(seed=2)
    for embryo in (first, other, first, other):
        train(embryo, batches)
    assert (parameters(first) != parameters(other)).any()


@EVERY
def test_a_state_does_not_change_while_training_goes_on(build: Any, batches: Any) -> None:
    embryo = build()
    tensors, _ = embryo.state()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    train(embryo, batches)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, before[name]), name


@EVERY
def test_a_state_that_does_not_fit_is_refused_by_the_name_of_the_tensor(build: Any, batches: Any) -> None:
    trained, embryo = build(), build()
    train(trained, batches)
    (tensors, rest), before = trained.state(), parameters(embryo)
    for name, tensor in tensors.items():
        others, quoted = {key: one for key, one in tensors.items() if key != name}, re.escape(name)
        with pytest.raises(StateMismatchError, match=rf"tensor '{quoted}' is missing from the state"):
            embryo.load_state(others, rest)
        with pytest.raises(StateMismatchError, match=rf"'{quoted}' is \(.*\), and \(.*\) in this model"):
            embryo.load_state(others | {name: tensor.new_zeros(*tensor.shape, 7)}, rest)
    with pytest.raises(StateMismatchError, match=r"'model\.extra' is unknown to this model"):
        embryo.load_state(tensors | {"model.extra": torch.zeros(1)}, rest)
    with pytest.raises(StateMismatchError, match=f"belongs to 'another', not to '{rest['algorithm']}'"):
        embryo.load_state(tensors, {**rest, "algorithm": "another"})
    np.testing.assert_array_equal(parameters(embryo), before)


@EVERY
def test_metrics_are_means_since_the_last_call(build: Any, batches: Any) -> None:
    embryo = build(learning_rate=2e-3)
    assert embryo.metrics() == {}
    priorities = train(embryo, batches)
    metrics = embryo.metrics()
    own = {"clip_range", "explained_variance"} if isinstance(embryo, PPOEmbryo) else set()
    assert metrics.keys() == {*embryo.diagnostics, *embryo.norms, "learning_rate"} | own
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["learning_rate"] == 2e-3
    assert all(metrics[name] > 0.0 for name in embryo.norms)
    assert 0.0 < metrics.get("rho", 1.0) <= 1.0
    if embryo.algorithm in ("DQN", "SAC", "TD3", "MADDPG"):
        assert metrics["td_error"] == pytest.approx(np.mean(priorities), rel=1e-4)
    assert embryo.metrics() == {}


@EVERY
def test_a_linear_learning_rate_falls_to_zero_and_a_constant_one_does_not(build: Any, batches: Any) -> None:
    linear, constant = build(learning_rate=1e-2, **LINEAR), build(learning_rate=1e-2)
    seen = []
    for env_steps in (0, 250, 1000, 5000):
        for embryo in (linear, constant):
            embryo.schedule(env_steps)
            embryo.update(next(iter(batches(embryo))))
            seen.append(embryo.metrics()["learning_rate"])
    assert seen == pytest.approx([1e-2, 1e-2, 7.5e-3, 1e-2, 0.0, 1e-2, 0.0, 1e-2])


@EVERY
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_loss_that_diverged_is_an_error_and_changes_no_parameter(build: Any, batches: Any) -> None:
    embryo = build()
    updates = len(train(embryo, batches))
    with torch.no_grad():
        list(embryo.model.parameters())[-1].fill_(torch.nan)
    before = parameters(embryo)
    complaint = f"not finite after {updates} updates: the loss has diverged; a smaller"
    with pytest.raises(DivergedError, match=complaint):
        train(embryo, batches)
    np.testing.assert_array_equal(parameters(embryo), before)


@EVERY
def test_the_averaged_state_is_the_optimizers_moments_in_place(build: Any, batches: Any) -> None:
    embryo = build()
    train(embryo, batches)
    moments, (tensors, _) = embryo.averaged_state(), embryo.state()
    each = 1 if getattr(embryo.settings, "optimizer", "adam") == "rmsprop" else 2
    assert sum(moment.numel() for moment in moments) == each * embryo.model.parameter_count
    for moment in moments:
        moment.fill_(3.0)
    assert not any((tensor == 3.0).all() for tensor in tensors.values())
    found = [name for name, tensor in embryo.state()[0].items() if (tensor == 3.0).all()]
    assert len(found) == len(moments)
    assert all(re.search(r"(^|\.)(adam\.(mean|square)|rmsprop\.square)$", name) for name in found)
