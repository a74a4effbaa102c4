"""Training embryos on fragments in tests, and the parameters that come of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from algos.fragments import Fragment

from tianji_algos.core import Embryo, Model, RolloutEmbryo


def train(embryo: RolloutEmbryo, fragments: Sequence[Fragment]) -> int:
    """Learn from one rollout; returns how many samples were used."""
    return sum(embryo.update(minibatch) for minibatch in embryo.minibatches(fragments))


def parameters(embryo: Embryo) -> npt.NDArray[np.float32]:
    return flat_of(embryo.model)


def flat_of(model: Model) -> npt.NDArray[np.float32]:
    flat = np.empty(model.parameter_count, np.float32)
    model.write_parameters(flat)
    return flat
