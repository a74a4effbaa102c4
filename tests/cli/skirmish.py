"""A team's environment whose episodes end, and are won, by chance, and an agent that plays it at random."""

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.core import Agent, Fields, Spaces
from tianji_algos.fields import FieldSpec
from tianji_algos.settings import NoSettings
from tianji_algos.team import Team
from tianji_envs.core import EnvironmentFactory, VectorEnvironment
from tianji_envs.team import TeamSpace

SIZES = (2, 4, 3)
"""Actions of each agent."""


class Skirmish(VectorEnvironment):
    """Shows noise; each agent is rewarded for itself, and which of its actions are there changes.

    Args:
        num_envs: N.
        end_rate: probability that an episode ends with a step.
        winnable: it says whether that was won.
    """

    def __init__(self, num_envs: int, end_rate: float = 0.2, *, winnable: bool = True) -> None:
        self.num_envs = num_envs
        self.agents = ("scout", "medic", "tank")
        self.observation_space = TeamSpace(3, 2, max(SIZES))
        self.action_space = gym.spaces.MultiDiscrete(SIZES)
        self.won = np.zeros(num_envs, np.bool_) if winnable else None
        self.available = np.zeros((num_envs, 3, max(SIZES)), np.bool_)
        self._end_rate = end_rate
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, seed: int, observation: npt.NDArray[Any]) -> None:
        self._rng = np.random.default_rng(seed)
        self._ended[...] = False
        self._show(observation, np.zeros((self.num_envs, 3)))

    def step(
        self,
        actions: npt.NDArray[Any],
        observation: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        terminated: npt.NDArray[Any],
        truncated: npt.NDArray[Any],
    ) -> None:
        assert np.take_along_axis(self.available, actions[..., None], axis=-1).all(), "all are there"
        playing = ~self._ended
        each = self._rng.integers(-9, 10, (self.num_envs, 3)) * playing[:, None]
        self._ended = playing & (self._rng.random(self.num_envs) < self._end_rate)
        self._show(observation, each)
        reward[...] = each.sum(axis=1)
        terminated[...] = self._ended & (self._rng.random(self.num_envs) < 0.5)
        truncated[...] = self._ended & ~terminated
        if self.won is not None:
            self.won[...] = self._ended & (self._rng.random(self.num_envs) < 0.5)

    def _show(self, observation: npt.NDArray[Any], each: npt.NDArray[Any]) -> None:
        self.available[...] = self._rng.random(self.available.shape) < 0.5
        self.available[..., 0] = True
        for agent, size in enumerate(SIZES):
            self.available[:, agent, size:] = False
        observation["observation"] = self._rng.random(observation["observation"].shape)
        observation["reward"] = each
        observation["available"] = self.available
        observation["alive"] = True

    def render(self) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class SkirmishFactory(EnvironmentFactory):
    """Makes skirmishes for configs that name this module."""

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        pass

    def make(
        self,
        id: str,  # noqa: A002, ARG002 - there is one
        num_envs: int,
        max_episode_steps: int | None = None,  # noqa: ARG002 - they end by chance
        options: Mapping[str, Any] | None = None,  # noqa: ARG002 - there are none
        render: bool = False,  # noqa: ARG002 - there is nothing to see
        *,
        evaluation: bool = False,  # noqa: ARG002 - it is always alike
        threads: int = 1,  # noqa: ARG002 - one does
    ) -> Skirmish:
        return Skirmish(num_envs)


class Recruit(Agent):
    """Draws from what is available; its last observations are remembered as they came."""

    settings_type: ClassVar[type[NoSettings]] = NoSettings
    default_model = "mlp_actor_critic"
    default_embryo = "ppo"
    plays_in_team = True

    def __init__(self, num_envs: int) -> None:
        self._rng = np.random.default_rng(num_envs)

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:  # noqa: ARG003 - a contract
        return (FieldSpec("action", np.dtype(np.int64), (Team.of(spaces).agents,)),)

    def act(self, observation: npt.NDArray[Any], into: Fields) -> npt.NDArray[Any]:
        into["action"][...] = self.act_greedily(observation)
        return into["action"]

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        available = observation["available"]
        drawn: npt.NDArray[Any] = (available * self._rng.random(available.shape)).argmax(axis=-1)
        return drawn

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        pass
