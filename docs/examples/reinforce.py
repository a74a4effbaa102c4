"""REINFORCE with a baseline (Williams, 1992): example of your own on-policy algorithm, for reinforce.toml."""

import numpy as np
import torch
from pydantic import Field

from tianji_algos.core import RolloutEmbryo, UpdateResult
from tianji_algos.settings import Settings


class ReinforceSettings(Settings):
    """Settings of the config's ``[training]``."""

    rollout_steps: int = Field(512, ge=1)
    gamma: float = Field(0.99, ge=0, le=1)
    learning_rate: float = Field(5e-3, gt=0)


class Reinforce(RolloutEmbryo):
    """Makes one update of each rollout: actions with a return above the value become more likely."""

    settings_type = ReinforceSettings
    uses_per_sample = 1.0

    def __init__(self, spaces, model, settings, seed):  # noqa: ARG002
        self.model, self.settings, self.last = model, settings, {}
        self.adam = torch.optim.Adam(model.parameters(), settings.learning_rate)

    def minibatches(self, fragments):
        """Yield one minibatch: observation, action and return of all steps that are experience."""
        steps = []
        for f in fragments:
            returns, follows = np.empty_like(f["reward"]), f["value"][-1]
            for t in reversed(range(len(returns))):
                gained = f["reward"][t] + self.settings.gamma * follows * (1 - f["terminated"][t])
                # A step that only resets (mask 0) is no experience; its value stands for all rewards that
                # would have followed a time limit.
                returns[t] = follows = np.where(f["mask"][t], gained, f["value"][t])
            mask = f["mask"].astype(bool)
            steps.append((f["observation"][:-1][mask], f["action"][mask], returns[mask]))
        yield [torch.tensor(np.concatenate(part)) for part in zip(*steps, strict=True)]

    def update(self, batch):
        """Follow the gradient of log pi(a|s) (G - V(s)), and bring V(s) nearer to G."""
        observation, action, returns = batch
        policy, value = self.model(observation)
        log_prob = torch.distributions.Categorical(logits=policy).log_prob(action)
        advantage = returns - value
        policy_loss = -(log_prob * advantage.detach()).mean()
        value_loss = advantage.square().mean()
        self.adam.zero_grad()
        (policy_loss + 0.5 * value_loss).backward()
        self.adam.step()
        self.last = {"policy_loss": policy_loss.item(), "value_loss": value_loss.item()}
        return UpdateResult(len(action))

    def metrics(self):
        """Return the losses of the last update."""
        return self.last

    def schedule(self, env_steps):
        """Change nothing: this rule has no schedules."""

    def state(self):
        """Return the parameters; a resumed run begins with new moments of Adam."""
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}, {}

    def load_state(self, tensors, rest):  # noqa: ARG002
        """Continue with these parameters."""
        self.model.load_state_dict(dict(tensors))
