from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from algos.in_step import Table, in_step
from algos.maddpg_team import CONTINUOUS, DISCRETE, MODELS, build_embryo, make_batch, only_certain
from algos.training import parameters

from tianji_algos.batch import Batch
from tianji_algos.core import AllReduce, Spaces
from tianji_algos.maddpg.maddpg import MADDPGEmbryo

ROWS = 12
BOTH = pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
EACH_MODEL = pytest.mark.parametrize("model", MODELS)


class Partner(AllReduce):
    """Another learner, whose gradient is known."""

    number = 2
    index = 0

    def __init__(self, gradient: torch.Tensor) -> None:
        self._gradient = gradient

    def add_up(self, values: torch.Tensor) -> None:
        values.add_(self._gradient, alpha=0.5)


@EACH_MODEL
def test_learners_in_step_make_the_update_of_the_whole_batch(model: dict[str, Any]) -> None:
    whole = only_certain(make_batch(DISCRETE))
    alone = build_embryo(DISCRETE, model, max_grad_norm=None)
    alone.update(whole)

    def share(index: int) -> Batch:
        which = slice(index * ROWS // 2, (index + 1) * ROWS // 2)
        fields = {"action": whole.fields["action"][which]}
        others = ("observation", "reward", "next_observation", "discount", "weight")
        return Batch(fields=fields, **{name: getattr(whole, name)[which] for name in others})

    other = build_embryo(DISCRETE, model, max_grad_norm=None)
    other.update(share(1))
    embryo = build_embryo(DISCRETE, model, max_grad_norm=None)
    embryo.join(Partner(other._gradient))
    assert embryo.update(share(0)).uses == ROWS
    torch.testing.assert_close(embryo._gradient, alone._gradient, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(parameters(embryo), parameters(alone), rtol=1e-3, atol=1e-5)


def learn_in_step(embryos: Sequence[MADDPGEmbryo], batches: Sequence[Batch]) -> Table:
    """Let two learners make one update, each with a batch of its own."""

    def learn(group: AllReduce) -> int:
        embryos[group.index].join(group)
        return embryos[group.index].update(batches[group.index]).uses

    used, table = in_step(2, learn)
    assert used == [2 * ROWS, 2 * ROWS]
    return table


@BOTH
@EACH_MODEL
def test_learners_in_step_have_the_same_bits_though_each_draws_for_itself(
    spaces: Spaces, model: dict[str, Any]
) -> None:
    embryos = [build_embryo(spaces, model, seed=seed) for seed in (1, 2)]
    for update in range(3):
        learn_in_step(embryos, [make_batch(spaces, seed=10 * update + k) for k in range(2)])
        np.testing.assert_array_equal(parameters(embryos[0]), parameters(embryos[1]))
        for name, tensor in embryos[0].state()[0].items():
            assert torch.equal(tensor, embryos[1].state()[0][name]), name


@BOTH
def test_learners_that_go_on_from_one_state_do_not_draw_the_same(spaces: Spaces) -> None:
    tensors, rest = build_embryo(spaces).state()
    embryos = [build_embryo(spaces, seed=seed) for seed in (1, 2)]
    for embryo in embryos:
        embryo.load_state(tensors, json.loads(json.dumps(rest)))
    first, second = learn_in_step(embryos, [make_batch(spaces)] * 2).values
    assert torch.equal(first, second) == (spaces is CONTINUOUS)
