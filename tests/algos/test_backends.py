"""Losses in torch, where the network is: nothing is read to the host inside an update.

A device without a memory stands in for a GPU: torch computes shapes there, and refuses to read a number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from algos.training import parameters
from algos.update_rules import BY_HAND, CASES
from pydantic import ValidationError

from tianji_algos import registry
from tianji_algos.core import complete_results
from tianji_algos.device import Uploads
from tianji_algos.errors import DivergedError, UnsuitableModelError

NOWHERE = torch.device("meta")
EVERY = pytest.mark.parametrize(("build", "batches"), CASES.values(), ids=CASES)
EACH_BY_HAND = pytest.mark.parametrize(("build", "batches"), BY_HAND.values(), ids=BY_HAND)


@EVERY
def test_nothing_is_read_to_the_host_inside_an_update(build: Any, batches: Any) -> None:
    embryo = build(NOWHERE)
    complete_results(embryo, prioritised=False)
    updates = 0
    for batch in batches(embryo):
        result = embryo.update(batch)
        assert result.uses > 0
        assert result.priorities is None
        updates += 1
    assert updates > 1
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        embryo.metrics()


@pytest.mark.parametrize(
    ("case", "once", "each"),
    [
        # The columns but advantages; by epoch the order and the advantages in it.
        ("ppo, discrete", ["action", "log_prob", "value", "target"], ["order", "advantage"]),
        ("ppo, cnn_actor_critic", ["action", "log_prob", "value", "target"], ["order", "advantage"]),
        # By minibatch which sequences, and which of their steps are samples.
        ("impala, discrete", ["action", "log_prob", "reward", "terminated", "mask"], ["columns", "samples"]),
    ],
)
@pytest.mark.parametrize("device", ["cpu", NOWHERE], ids=str)
def test_a_rollout_goes_to_the_device_once(
    case: str, once: list[str], each: list[str], device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    stage = Uploads._stage

    def counted(uploads: Uploads, array: Any) -> Any:
        copies.append(array.size)
        return stage(uploads, array)

    monkeypatch.setattr(Uploads, "_stage", counted)
    build, batches = CASES[case]
    embryo = build(device, backend="torch")
    before: list[int] = []
    for batch in batches(embryo):
        before.append(len(copies))
        copies.clear()
        embryo.update(batch)
        assert copies == [], "nothing goes up inside an update"
    # Elsewhere each fragment's observations go there, too, and the rows of each minibatch.
    fragments, rows = (0, 0) if device == "cpu" else (2, 1)
    first = fragments + len(once) + len(each) + rows
    if case.startswith("ppo"):
        a_minibatch = [rows] * 2
        assert before == [first, *a_minibatch, len(each) + rows, *a_minibatch]
    else:
        assert before == [first, *[len(each) + rows] * (len(before) - 1)]


@EACH_BY_HAND
def test_derivatives_by_hand_are_refused_to_a_device(build: Any, batches: Any) -> None:
    with pytest.raises(UnsuitableModelError, match=r"on a CPU, and this is \w+ on meta; backend = \"auto\""):
        build(NOWHERE, backend="numpy")


@EACH_BY_HAND
def test_updates_are_the_same_by_hand_and_in_torch(build: Any, batches: Any) -> None:
    found, metrics = [], []
    for backend in ("auto", "numpy", "torch"):
        embryo = build(backend=backend)
        begun = parameters(embryo)
        for batch in batches(embryo):
            embryo.update(batch)
        found.append(parameters(embryo))
        metrics.append(embryo.metrics())
    assert not np.allclose(found[0], begun, atol=1e-4)
    np.testing.assert_array_equal(found[1], found[0])
    assert (found[2] != found[0]).any(), "they are two ways"
    np.testing.assert_allclose(found[2], found[0], rtol=1e-3, atol=2e-5)
    assert metrics[1] == metrics[0]
    assert metrics[2] == pytest.approx(metrics[0], rel=1e-3, abs=1e-4)


@EVERY
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_frozen_parameters_stay_as_they_are_bit_by_bit(build: Any, batches: Any, backend: str) -> None:
    embryo = build(backend=backend)
    for batch in batches(embryo):
        embryo.update(batch)  # What is remembered of gradients would go on to move them.
    before = {name: parameter.detach().clone() for name, parameter in embryo.model.named_parameters()}
    frozen = [name for place, name in enumerate(before) if place % 2 == 0 and name != "log_temperature"]
    embryo.freeze(frozen)
    for batch in batches(embryo):
        embryo.update(batch)
    moved = [name for name, now in embryo.model.named_parameters() if not torch.equal(now, before[name])]
    assert not set(moved) & set(frozen)
    assert moved
    assert len(moved) >= (len(before) - len(frozen)) // 2


@EACH_BY_HAND
@pytest.mark.parametrize("read", ["metrics", "state"])
def test_a_loss_that_diverged_is_found_when_it_is_read(build: Any, batches: Any, read: str) -> None:
    embryo = build(backend="torch")
    for batch in batches(embryo):
        embryo.update(batch)
    embryo.metrics()
    with torch.no_grad():
        next(iter(embryo.model.parameters())).fill_(torch.nan)
    for batch in batches(embryo):
        embryo.update(batch)
    with pytest.raises(DivergedError, match=r"not finite after \d+ updates: the loss has diverged"):
        getattr(embryo, read)()


@pytest.mark.parametrize("rule", ["qmix", "maddpg"])
def test_losses_without_derivatives_by_hand_say_so(rule: str) -> None:
    settings = registry.settings_type("embryo", rule)
    assert settings(backend="torch").backend == "torch"
    with pytest.raises(ValidationError, match='no derivatives by hand; "auto" or "torch" would be right'):
        settings(backend="numpy")
