"""Random fragments: the rollouts of tests that need no environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tianji_algos.core import Spaces

Array = npt.NDArray[Any]
Fragment = dict[str, Array]

FLOATS = st.floats(-10, 10, width=32)


def random_fragment(rng: np.random.Generator, steps: int, envs: int, spaces: Spaces) -> Fragment:
    """A fragment whose episodes end and reset as an environment's do in next-step autoreset."""
    terminated = np.zeros((steps, envs), np.uint8)
    truncated = np.zeros((steps, envs), np.uint8)
    mask = np.ones((steps, envs), np.uint8)
    for n in range(envs):
        mask[0, n] = rng.random() < 0.8
        for t in range(steps):
            if t > 0 and (terminated[t - 1, n] or truncated[t - 1, n]):
                mask[t, n] = 0
            elif mask[t, n] and rng.random() < 0.3:
                (terminated if rng.random() < 0.5 else truncated)[t, n] = 1
    spaces.action.seed(int(rng.integers(1 << 30)))
    actions = np.array([[spaces.action.sample() for _ in range(envs)] for _ in range(steps)])
    shape = spaces.observation.shape or ()
    return {
        "observation": rng.standard_normal((steps + 1, envs, *shape)).astype(np.float32),
        "reward": rng.standard_normal((steps, envs)).astype(np.float32) * mask,
        "terminated": terminated,
        "truncated": truncated,
        "mask": mask,
        "action": actions,
        "log_prob": rng.normal(-0.7, 0.1, (steps, envs)).astype(np.float32),
        "value": rng.standard_normal((steps + 1, envs)).astype(np.float32),
    }


def random_rollout(
    spaces: Spaces, seed: int, fragments: int = 2, steps: int = 8, envs: int = 4, state_size: int = 0
) -> list[Fragment]:
    """Fragments that one seed gives; with a state of that size, also what a network remembered."""
    rng = np.random.default_rng(seed)
    rollout = [random_fragment(rng, steps, envs, spaces) for _ in range(fragments)]
    if state_size:
        for fragment in rollout:
            fragment["state"] = rng.standard_normal((1, envs, state_size)).astype(np.float32)
    return rollout


@st.composite
def trajectories(draw: st.DrawFn) -> Fragment:
    """Rewards, values and flags of small rollouts, as a hypothesis strategy."""
    steps, envs = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    ends = draw(arrays(np.uint8, (steps, envs), elements=st.sampled_from([0, 0, 0, 1, 2, 3])))
    mask = np.ones((steps, envs), bool)
    mask[0] = draw(arrays(bool, (envs,)))
    for t in range(steps):
        if t > 0:
            mask[t] = ends[t - 1] == 0
        ends[t] *= mask[t]
    return {
        "reward": draw(arrays(np.float32, (steps, envs), elements=FLOATS)),
        "value": draw(arrays(np.float32, (steps + 1, envs), elements=FLOATS)),
        "terminated": (ends & 1).astype(bool),
        "truncated": (ends & 2).astype(bool),
        "mask": mask,
    }
