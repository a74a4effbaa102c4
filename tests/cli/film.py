"""Environments that show frames of which a policy sees stacks, and agents that write down what they see."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.core import Agent, Fields, Spaces
from tianji_algos.fields import FieldSpec
from tianji_algos.settings import NoSettings
from tianji_envs.core import Games, VectorEnvironment

FRAME = gym.spaces.Box(0, 255, (2, 3), np.uint8)
LIVES = 3


class Film(VectorEnvironment):
    """Shows frames of noise without zeros; its episodes end by chance, a game after three of them."""

    def __init__(self, num_envs: int, stack: int = 1, end_rate: float = 0.2, *, games: bool = False) -> None:
        self.num_envs, self.stack, self.frames_per_step = num_envs, stack, 4
        self.observation_space, self.action_space = FRAME, gym.spaces.Discrete(3)
        self._end_rate = end_rate
        self._ended = np.zeros(num_envs, np.bool_)
        self._lives = np.full(num_envs, LIVES)
        self.games = Games(np.zeros(num_envs, np.float32), np.zeros(num_envs, np.bool_)) if games else None

    def reset(self, seed: int, observation: npt.NDArray[Any]) -> None:
        self._rng = np.random.default_rng(seed)
        self._show(observation)

    def step(
        self,
        actions: npt.NDArray[Any],
        observation: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        terminated: npt.NDArray[Any],
        truncated: npt.NDArray[Any],
    ) -> None:
        assert actions.shape == (self.num_envs,)
        playing = ~self._ended
        self._show(observation)
        won = self._rng.integers(-9, 10, self.num_envs) * playing
        self._ended = playing & (self._rng.random(self.num_envs) < self._end_rate)
        reward[...] = won if self.games is None else np.sign(won)
        terminated[...] = self._ended & (self._rng.random(self.num_envs) < 0.5)
        truncated[...] = self._ended & ~terminated
        self._lives -= self._ended
        if self.games is not None:
            self.games.score[self.games.over] = 0
            self.games.score[...] += won
            self.games.over[...] = self._lives == 0
        self._lives[self._lives == 0] = LIVES

    def _show(self, observation: npt.NDArray[Any]) -> None:
        observation[...] = self._rng.integers(1, 256, observation.shape)

    def render(self) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    def close(self) -> None:
        pass


@dataclass
class Said:
    """The calls of an agent, in their order."""

    seen: list[npt.NDArray[Any]] = field(default_factory=list)
    finished: list[npt.NDArray[Any]] = field(default_factory=list)


class Witness(Agent):
    """Acts at random and remembers the number of steps since each episode began, as a network would.

    Its fields: ``since [N, 1]`` before a fragment's first step, ``steps`` before each.
    """

    settings_type: ClassVar[type[NoSettings]] = NoSettings
    default_model: ClassVar[str] = "mlp_actor_critic"
    default_embryo: ClassVar[str] = "ppo"

    def __init__(self, num_envs: int) -> None:
        self._rng = np.random.default_rng(3)
        self.since = np.zeros(num_envs, np.int64)
        self.said = Said()

    @classmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:  # noqa: ARG003 - always these
        whole = np.dtype(np.int64)
        return (
            FieldSpec("action", whole),
            FieldSpec("since", whole, (1,), once=True),
            FieldSpec("steps", whole, bootstrap=True),
        )

    def begin(self, fields: Fields) -> None:
        fields["since"][0, :, 0] = self.since

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:
        self.since[where] = 0

    def act(self, observation: npt.NDArray[Any], into: Fields) -> npt.NDArray[Any]:
        self.said.seen.append(observation.copy())
        assert into["since"].shape == (len(observation), 1)
        into["steps"][...] = self.since
        into["action"][...] = self._rng.integers(0, 3, len(observation))
        newest = observation if observation.ndim == 3 else observation[:, -1]
        np.testing.assert_array_equal(into["observation"], newest)
        self.since += 1
        return into["action"]

    def finish(self, fields: Fields, observation: npt.NDArray[Any]) -> None:
        self.said.finished.append(observation.copy())
        fields["steps"][-1] = self.since

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self.said.seen.append(observation.copy())
        self.since += 1
        return self.since % 3

    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        pass
