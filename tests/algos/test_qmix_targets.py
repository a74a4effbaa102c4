from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tianji_algos.qmix.qmix import best_values, lambda_targets, value_of

Floats = npt.NDArray[np.float32]

LENGTHS = (4, 2, 2, 1)
SIZES = (4, 3, 1, 1)
STEPS = sum(LENGTHS)


def of_episode(packed: torch.Tensor, episode: int) -> list[float]:
    starts = np.cumsum((0, *SIZES))
    return [float(packed[starts[t] + episode, 0]) for t in range(LENGTHS[episode])]


@pytest.mark.parametrize("td_lambda", [0.0, 0.6, 1.0])
def test_targets_are_the_naive_ones_of_each_episode(td_lambda: float) -> None:
    torch.manual_seed(0)
    reward, value = torch.randn(STEPS, 1), torch.randn(STEPS, 1)
    discount = torch.full((STEPS, 1), 0.9)
    discount[3] = discount[-1] = 0.0  # Episodes 3 and 0 terminate, the others are cut.
    target = lambda_targets(reward, discount, value, td_lambda, SIZES)
    for episode, length in enumerate(LENGTHS):
        r, d, v, y = (of_episode(one, episode) for one in (reward, discount, value, target))
        follows = v[-1]
        for t in reversed(range(length)):
            later = follows if t == length - 1 else (1 - td_lambda) * v[t] + td_lambda * follows
            follows = r[t] + d[t] * later
            assert y[t] == pytest.approx(follows, rel=1e-5)


def test_with_lambda_one_a_terminated_episodes_targets_are_its_returns() -> None:
    reward = torch.tensor([[1.0], [2.0], [4.0]])
    discount = torch.tensor([[0.5], [0.5], [0.0]])
    target = lambda_targets(reward, discount, torch.full((3, 1), 77.0), 1.0, (1, 1, 1))
    assert target[:, 0].tolist() == [3.0, 4.0, 4.0]


def test_no_target_looks_beyond_where_one_was_cut_off() -> None:
    reward, discount = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.5], [0.5], [0.0]])
    value, is_cut = torch.tensor([[10.0], [20.0], [77.0]]), torch.tensor([[True], [False], [False]])
    target = lambda_targets(reward, discount, value, 1.0, (1, 1, 1), is_cut)
    assert target[:, 0].tolist() == [1 + 0.5 * 10, 2 + 0.5 * 4, 4]


def test_each_agent_has_targets_of_its_own() -> None:
    torch.manual_seed(1)
    reward, value, discount = torch.randn(STEPS, 3), torch.randn(STEPS, 3), torch.full((STEPS, 1), 0.9)
    together = lambda_targets(reward, discount, value, 0.5, SIZES)
    for agent in range(3):
        alone = lambda_targets(reward[:, [agent]], discount, value[:, [agent]], 0.5, SIZES)
        torch.testing.assert_close(together[:, [agent]], alone)


def test_an_unavailable_action_is_never_the_best() -> None:
    q = torch.tensor([[[1.0, 5.0, 3.0], [9.0, 2.0, 2.5]]])
    available = torch.tensor([[[True, False, True], [False, True, False]]])
    assert best_values(q, q, available).tolist() == [[3.0, 2.0]]


def test_the_chooser_chooses_and_the_other_values() -> None:
    q = torch.tensor([[[1.0, 5.0, 3.0]]])
    chooser = torch.tensor([[[7.0, 6.0, 8.0]]])
    everything = torch.ones(1, 1, 3, dtype=torch.bool)
    assert best_values(q, chooser, everything).tolist() == [[3.0]]
    assert best_values(q, q, everything).tolist() == [[5.0]]


def test_values_are_those_of_the_actions() -> None:
    q = torch.arange(12.0).view(2, 2, 3)
    assert value_of(q, torch.tensor([[0, 2], [1, 1]])).tolist() == [[0.0, 5.0], [7.0, 10.0]]
