"""The toy of population-based training (Jaderberg et al., 2017, figure 2), for coefficients.toml.

Two numbers are to be brought to 0, from 0.9 each: the objective is 1.2 minus their squares. Learners do not
know it. They climb a surrogate, which counts each square as much as a coefficient says; a member whose
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
    """An episode of one step that pays 1.2 less the squares of the two numbers that are its action."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, seed=None):  # noqa: ARG002
        """There is nothing to see."""
        return np.zeros(1, np.float32)

    def step(self, action):
        """Pay, and end the episode."""
        return np.zeros(1, np.float32), float(1.2 - np.square(action).sum()), True, False


class Theta(Model):
    """The two numbers."""

    settings_type = NoSettings

    def __init__(self, spaces, settings):  # noqa: ARG002
        super().__init__()
        self.theta = torch.nn.Parameter(torch.full((2,), 0.9))

    def executor(self, batch_size):
        """Return them for each environment."""
        return Constant(batch_size)


class Constant(Executor):
    """Says the two numbers, whatever is seen."""

    def __init__(self, batch_size):
        self.theta = np.zeros((batch_size, 2), np.float32)

    def adopt(self, parameters):
        """Say these from now on."""
        self.theta[:] = parameters

    def __call__(self, observation):  # noqa: ARG002
        """Say them."""
        return (self.theta,)


class Acts(Agent):
    """Acts with the two numbers as they are."""

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
        """Choose the same action everywhere."""
        into["action"][...] = action = self.act_greedily(observation)
        return action

    def act_greedily(self, observation):
        """Choose it in evaluations, too."""
        return self.executor(observation)[0]

    def adopt(self, parameters):
        """Act with these numbers from now on."""
        self.executor.adopt(parameters)


class AscentSettings(Settings):
    """What the config's ``[training]`` may say, and which of it members of a population may differ in."""

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
        """Yield how many steps there were: the gradient needs nothing of them."""
        yield sum(int(fragment["mask"].sum()) for fragment in fragments)

    def update(self, batch):
        """Follow the surrogate's gradient."""
        h = torch.tensor([self.settings.h0, self.settings.h1])
        with torch.no_grad():
            self.model.theta -= self.settings.learning_rate * 2.0 * h * self.model.theta
        return UpdateResult(batch)

    def metrics(self):
        """Return the two numbers."""
        first, second = self.model.theta.tolist()
        return {"theta0": first, "theta1": second}

    def schedule(self, env_steps):
        """Leave everything as it is, all through the training."""

    def state(self):
        """Return the two numbers."""
        return {"theta": self.model.theta.detach().clone()}, {}

    def load_state(self, tensors, rest):  # noqa: ARG002
        """Continue with them."""
        with torch.no_grad():
            self.model.theta.copy_(tensors["theta"])
