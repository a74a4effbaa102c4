"""A plain serial PPO loop on one core, for scale: one network pass, one environment step, in turn."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from record import Episode, Window, arguments, report, write
from torch import nn

ENVS, STEPS = 32, 32
EPOCHS, MINIBATCH = 4, 512
LEARNING_RATE, GAMMA, LAMBDA, CLIP = 2e-3, 0.98, 0.8, 0.2
MAX_ENV_STEPS = 1_000_000
SETTINGS = {
    "envs": ENVS,
    "steps": STEPS,
    "epochs": EPOCHS,
    "minibatch": MINIBATCH,
    "learning_rate": LEARNING_RATE,
    "gamma": GAMMA,
    "lambda": LAMBDA,
    "clip": CLIP,
    "networks": "separate 64-64 tanh",
    "max_env_steps": MAX_ENV_STEPS,
}


def network(outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Rollout:
    """Steps the environments and remembers T of them; ``real`` is False for autoreset steps."""

    def __init__(self, seed: int, policy: nn.Module, value: nn.Module) -> None:
        self.policy, self.value = policy, value
        self.envs: Any = gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
        self.shown, _ = self.envs.reset(seed=seed)
        self.over = np.zeros(ENVS, np.bool_)
        self.totals = np.zeros(ENVS)
        self.window = Window()
        self.env_steps = 0

    @torch.no_grad()
    def collect(self) -> tuple[torch.Tensor, ...]:
        seen = torch.zeros(STEPS + 1, ENVS, 4)
        actions, log_probs = torch.zeros(STEPS, ENVS, dtype=torch.int64), torch.zeros(STEPS, ENVS)
        reward, terminated, over = np.zeros((3, STEPS, ENVS), np.float32)
        real = np.zeros((STEPS, ENVS), np.bool_)
        for t in range(STEPS):
            seen[t] = torch.from_numpy(self.shown)
            chances = torch.distributions.Categorical(logits=self.policy(seen[t]))
            actions[t] = chances.sample()
            log_probs[t] = chances.log_prob(actions[t])
            real[t] = ~self.over
            self.shown, reward[t], terminated[t], truncated, _ = self.envs.step(actions[t].numpy())
            self.over = np.logical_or(terminated[t], truncated)
            over[t] = self.over
            self.count(reward[t])
        self.env_steps += int(real.sum())
        seen[STEPS] = torch.from_numpy(self.shown)
        values = self.value(seen)[..., 0]
        advantage, following = torch.zeros(STEPS, ENVS), torch.zeros(ENVS)
        goes_on, lives_on = torch.from_numpy(1 - over), torch.from_numpy(1 - terminated)
        rewards = torch.from_numpy(reward)
        for t in reversed(range(STEPS)):
            error = rewards[t] + GAMMA * lives_on[t] * values[t + 1] - values[t]
            following = error + GAMMA * LAMBDA * goes_on[t] * following
            advantage[t] = following
        keep = torch.from_numpy(real)
        returns = advantage + values[:-1]
        return seen[:-1][keep], actions[keep], log_probs[keep], advantage[keep], returns[keep]

    def count(self, reward: np.ndarray[Any, Any]) -> None:
        self.totals += reward
        for i in np.nonzero(self.over)[0]:
            self.window.add(Episode(time.monotonic(), float(self.totals[i]), int(self.totals[i])))
            self.totals[i] = 0.0


def update(
    policy: nn.Module, value: nn.Module, optimiser: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...]
) -> None:
    parameters = [*policy.parameters(), *value.parameters()]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(batch[0])).split(MINIBATCH):
            seen, actions, old_log_probs, advantage, returns = (field[rows] for field in batch)
            chances = torch.distributions.Categorical(logits=policy(seen))
            ratio = (chances.log_prob(actions) - old_log_probs).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            loss = 0.5 * (value(seen)[:, 0] - returns).square().mean() - gain
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimiser.step()


def main() -> None:
    options = arguments(__doc__).parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    policy, value = network(2, 0.01), network(1, 1.0)
    optimiser = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=LEARNING_RATE, eps=1e-5)
    rollout = Rollout(options.seed, policy, value)
    first_step_s = time.monotonic()
    while rollout.window.reached_at is None and rollout.env_steps < MAX_ENV_STEPS:
        update(policy, value, optimiser, rollout.collect())
    packages = ("torch", "gymnasium", "numpy")
    write(
        report("serial", options.seed, first_step_s, rollout.window, rollout.env_steps, SETTINGS, packages),
        options.json,
    )


if __name__ == "__main__":
    main()
