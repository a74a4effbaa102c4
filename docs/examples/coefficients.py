"""The toy of population-based training (Jaderberg et al., 2017, figure 2), for coefficients.toml.

Training should bring two numbers from 0.9 to 0: the objective is 1.2 minus their squares. Learners do not
know the objective. They climb a surrogate that weights each square by a coefficient; a member whose
coefficients are 1 and 0 never moves its second number.
"""

import gymnasium
import numpy as np
import torch
from pydantic import Field

from tianji_algos.core import Agent, Executor, Model, RolloutEmbryo, UpdateResult
from tianji_algos.fields import FieldSpec
from tianji_algos.settings import NoSettings, Settings
from tianji_envs.core import BaseEnv


class Objective(BaseEnv):
    """Environment with episodes of one step; its reward is 1.2 minus the squares of the action's numbers."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, seed=None):  # noqa: ARG002
        """Return an observation that tells nothing."""
        return np.zeros(1, np.float32)

    def step(self, action):
        """Return the reward, and end the episode."""
        return np.zeros(1, np.float32), float(1.2 - np.square(action).sum()), True, False


class Theta(Model):
    """Model whose parameters are the two numbers."""

    settings_type = NoSettings

    def __init__(self, spaces, settings):  # noqa: ARG002
        super().__init__()
        self.theta = torch.nn.Parameter(torch.full((2,), 0.9))

    def executor(self, batch_size):
        """Build an executor that returns the two numbers for each environment."""
        return Constant(batch_size)


class Constant(Executor):
    """Returns the two numbers for every observation."""

    def __init__(self, batch_size):
        self.theta = np.zeros((batch_size, 2), np.float32)

    def adopt(self, parameters):
        """Return these parameters from now on."""
        self.theta[:] = parameters

    def __call__(self, observation):  # noqa: ARG002
        """Return the two numbers, ``[N, 2]``."""
        return (self.theta,)


class Acts(Agent):
    """Acts with the two numbers, without exploration."""

    settings_type = NoSettings
    default_model = "coefficients:Theta"
    default_embryo = "coefficients:Ascent"

    def __init__(self, spaces, model, settings, num_envs, seed):  # noqa: ARG002
        self.executor = model.executor(num_envs)

    @classmethod
    def fields(cls, spaces, settings):  # noqa: ARG003
        """Record the action."""
        return (FieldSpec("action", np.dtype(np.float32), (2,)),)

    def act(self, observation, into):
        """Choose the two numbers in every environment, and record them."""
        into["action"][...] = action = self.act_greedily(observation)
        return action

    def act_greedily(self, observation):
        """Choose the two numbers in evaluations, too."""
        return self.executor(observation)[0]

    def adopt(self, parameters):
        """Act with these parameters from now on."""
        self.executor.adopt(parameters)


class AscentSettings(Settings):
    """Settings of the config's ``[training]``; members of a population may differ in ``adjustable`` ones."""

    adjustable = frozenset({"h0", "h1"})

    rollout_steps: int = Field(16, ge=1)
    learning_rate: float = Field(0.01, gt=0)
    h0: float = Field(1.0, ge=0)
    h1: float = Field(1.0, ge=0)


class Ascent(RolloutEmbryo):
    """Climbs the surrogate, 1.2 - h0 theta0^2 - h1 theta1^2, by one step for each rollout."""

    settings_type = AscentSettings
    uses_per_sample = 1.0

    def __init__(self, spaces, model, settings, seed):  # noqa: ARG002
        self.model, self.settings = model, settings

    def minibatches(self, fragments):
        """Yield the number of steps; the gradient needs nothing else of them."""
        yield sum(int(fragment["mask"].sum()) for fragment in fragments)

    def update(self, batch):
        """Make one step along the surrogate's gradient."""
        h = torch.tensor([self.settings.h0, self.settings.h1])
        with torch.no_grad():
            self.model.theta -= self.settings.learning_rate * 2.0 * h * self.model.theta
        return UpdateResult(batch)

    def metrics(self):
        """Return the two numbers."""
        first, second = self.model.theta.tolist()
        return {"theta0": first, "theta1": second}

    def schedule(self, env_steps):
        """Change nothing: this rule has no schedules."""

    def state(self):
        """Return the state that a checkpoint keeps: the two numbers."""
        return {"theta": self.model.theta.detach().clone()}, {}

    def load_state(self, tensors, rest):  # noqa: ARG002
        """Continue with the two numbers of a checkpoint."""
        with torch.no_grad():
            self.model.theta.copy_(tensors["theta"])
