"""What the values of actions should have been."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tianji_algos.team import UNAVAILABLE


def value_of(q: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Take the values ``[R, M]`` of actions ``[R, M]`` from those of all, ``q [R, M, A]``."""
    return q.gather(2, action[:, :, None])[:, :, 0]


def best_values(q: torch.Tensor, chooser: torch.Tensor, available: torch.Tensor) -> torch.Tensor:
    """Give the values ``[R, M]`` of what each agent would do.

    With the online network as chooser this is double Q-learning (van Hasselt et al., 2016, equation 4); with
    ``q`` itself it is the maximum.

    Args:
        q: of all actions, by the target network, ``[R, M, A]``.
        chooser: by which the best actions are found, ``[R, M, A]``.
        available: which actions there are.
    """
    return value_of(q, chooser.masked_fill(~available, UNAVAILABLE).argmax(dim=2))


def lambda_targets(
    reward: torch.Tensor, discount: torch.Tensor, value: torch.Tensor, td_lambda: float, sizes: Sequence[int]
) -> torch.Tensor:
    """Compute ``y_t = r_t + discount_t ((1 - lambda) V_t+1 + lambda y_t+1)``, without importance weights.

    That is Peng's Q(lambda) (Peng & Williams, 1994); 0 is Q-learning's target. Beyond an episode's last step
    there is no ``y``, and ``V`` stands in for it.

    Args:
        reward: of each step, ``[U, 1]`` or ``[U, V]``, time first; the longest episodes come first.
        discount: ``gamma``, or 0 for steps after which nothing counts, ``[U, 1]`` or ``[U, V]``.
        value: of what each step led to, ``[U, V]``.
        td_lambda: lambda.
        sizes: how many episodes have a step at each time.

    Returns:
        ``[U, V]``.
    """
    target = reward + discount * value
    if td_lambda == 0.0:
        return target
    stop = len(target)
    for now, later in zip(reversed(sizes[:-1]), reversed(sizes[1:]), strict=True):
        begin = stop - later
        steps = slice(begin - now, begin - now + later)  # Those of this time that are no episode's last.
        gain = target[begin:stop] - value[steps]
        target[steps].addcmul_(gain, discount[steps], value=td_lambda)
        stop = begin
    return target
