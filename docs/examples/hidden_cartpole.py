"""CartPole without its velocities: one observation is not enough to act, but earlier ones tell the rest."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt


class HideVelocities(gymnasium.ObservationWrapper[npt.NDArray[np.float32], Any, npt.NDArray[np.float32]]):
    """Observes only the cart's position and the pole's angle."""

    def __init__(self, env: gymnasium.Env[npt.NDArray[np.float32], Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Leave out the second and the fourth number, which are velocities."""
        return observation[::2]
