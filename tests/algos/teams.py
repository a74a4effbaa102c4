"""Spaces and random fragments of teams, whose agents die and may not always do everything."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from algos.fragments import Fragment, random_fragment

from tianji_algos.core import Spaces
from tianji_algos.team import Records, Team
from tianji_envs.team import TeamSpace


def team_spaces(
    actions: Sequence[int] = (4, 3, 4),
    *,
    observation: int = 5,
    state: int = 0,
    continuous: bool = False,
    truncates: bool = False,
) -> Spaces:
    """A team of as many agents as there are sizes; the m-th one's continuous actions go from -m / 2 to m."""
    agents, most = len(actions), max(actions)
    seen = TeamSpace(agents, observation, None if continuous else most, state, truncates=truncates)
    if not continuous:
        return Spaces(seen, gym.spaces.MultiDiscrete(list(actions)))
    high = np.arange(1, agents + 1, dtype=np.float32)[:, None] * exists(actions)
    return Spaces(seen, gym.spaces.Box(-0.5 * high, high))


def exists(actions: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which of the most actions, or numbers, that an agent has each of them has, ``[M, A]``."""
    return np.arange(max(actions)) < np.array(actions)[:, None]


def random_records(rng: np.random.Generator, shape: tuple[int, ...], spaces: Spaces) -> Records:
    """Records of living agents, some of whose actions are not available."""
    team = Team.of(spaces)
    seen: Records = np.zeros(shape, spaces.observation.dtype)
    for part in ("observation", "reward", *(["state"] if team.has_state else [])):
        seen[part] = rng.standard_normal(seen[part].shape)
    seen["alive"] = True
    if team.discrete:
        seen["available"] = exists(team.actions) & (rng.random(seen["available"].shape) < 0.7)
        nothing = ~seen["available"].any(axis=-1)
        seen["available"][nothing, 1] = True
    return seen


def random_choices(rng: np.random.Generator, seen: Records) -> npt.NDArray[np.int64]:
    """Available actions of agents, ``[..., M]``."""
    likes = rng.random(seen["available"].shape) * seen["available"]
    choices: npt.NDArray[np.int64] = likes.argmax(axis=-1)
    return choices


def bury(seen: Records, dead: npt.NDArray[np.bool_]) -> None:
    """Let agents be ``dead [..., M]``: they see nothing, and only action 0 is left."""
    seen["alive"][dead] = False
    seen["observation"][dead] = 0
    if "available" in (seen.dtype.names or ()):
        seen["available"][dead] = False
        seen["available"][dead, 0] = True


def cut_off(seen: Records, cut: npt.NDArray[np.bool_]) -> None:
    """Let agents that are alive be ``cut [..., M]``: they act no more, and see what they see."""
    seen["truncated"] = cut & seen["alive"]
    seen["alive"][seen["truncated"]] = False


def random_team_fragment(
    rng: np.random.Generator, steps: int, envs: int, spaces: Spaces, *, deaths: bool = True
) -> Fragment:
    """A fragment in which one agent of each team lives until the episode's end.

    Where agents may be cut off one by one, half of the deaths are no deaths: the agents are cut off.
    """
    team = Team.of(spaces)
    fragment = random_fragment(rng, steps, envs, spaces)
    seen = random_records(rng, (steps + 1, envs), spaces)
    if deaths:
        for n in range(envs):
            dead = np.zeros(team.agents, bool)
            for t in range(steps + 1):
                before = dead.copy()
                if t and not fragment["mask"][t - 1, n]:
                    dead[:] = False
                    seen["reward"][t, n] = 0
                elif t:
                    seen["reward"][t, n][dead] = 0
                    dead |= rng.random(team.agents) < 0.3
                    dead[rng.integers(team.agents) if t == 1 else np.flatnonzero(~dead)[:1]] = False
                    if dead.all():
                        dead[0] = False
                cut = (
                    dead
                    & ~before
                    & ("truncated" in (seen.dtype.names or ()))
                    & (rng.random(team.agents) < 0.5)
                )
                bury(seen[t, n : n + 1], (dead & ~cut)[None])
                if cut.any():
                    cut_off(seen[t, n : n + 1], cut[None])
    fragment["observation"] = seen
    fragment["reward"] = seen["reward"][1:].sum(axis=2) * fragment["mask"]
    each = (steps, envs, team.agents)
    fragment["log_prob"] = rng.normal(-1.1, 0.1, each).astype(np.float32)
    fragment["value"] = rng.standard_normal((steps + 1, *each[1:])).astype(np.float32)
    if team.discrete:
        fragment["action"] = random_choices(rng, seen[:-1])
    else:
        fragment["action"] = rng.standard_normal((*each, team.most_actions)).astype(np.float32)
    return fragment


def random_team_rollout(
    spaces: Spaces, seed: int, fragments: int = 2, steps: int = 8, envs: int = 4, *, deaths: bool = True
) -> list[Fragment]:
    """Fragments that one seed gives."""
    rng = np.random.default_rng(seed)
    return [random_team_fragment(rng, steps, envs, spaces, deaths=deaths) for _ in range(fragments)]
