"""A plain serial PPO loop on one core, for scale: network passes and environment steps in turn.

With ``--recipe`` it trains by the recipe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from recipe import Recipe, add_recipe
from record import Episode, Window, arguments, report, write
from torch import nn

OWN = Recipe(
    env_steps=1_000_000,
    num_envs=32,
    rollout_steps=1024,
    minibatch_size=512,
    epochs=4,
    learning_rate=2e-3,
    gamma=0.98,
    gae_lambda=0.8,
    clip_range=0.2,
    value_coef=1.0,
    hidden=(64, 64),
)
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
OBSERVATIONS, ACTIONS = 4, 2


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def trunk(hidden: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    widths = pairwise((OBSERVATIONS, *hidden))
    layers = [(linear(below, above, 2**0.5), activation()) for below, above in widths]
    return nn.Sequential(*(module for layer in layers for module in layer))


class Networks(nn.Module):
    """A policy and a value, apart or on one trunk."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        activation = ACTIVATIONS[recipe.activation]
        self.below_policy = trunk(recipe.hidden, activation)
        self.below_value = self.below_policy if recipe.shared else trunk(recipe.hidden, activation)
        self.policy_head = linear(recipe.hidden[-1], ACTIONS, recipe.policy_gain)
        self.value_head = linear(recipe.hidden[-1], 1, 1.0)

    def policy(self, seen: torch.Tensor) -> torch.distributions.Categorical:
        return self._policy(self.below_policy(seen))

    def value(self, seen: torch.Tensor) -> torch.Tensor:
        return self._value(self.below_value(seen))

    def both(self, seen: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        hidden = self.below_policy(seen)
        other = hidden if self.below_value is self.below_policy else self.below_value(seen)
        return self._policy(hidden), self._value(other)

    def _policy(self, hidden: torch.Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.policy_head(hidden))

    def _value(self, hidden: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.value_head(hidden)
        return values[..., 0]


def normalised(advantage: torch.Tensor) -> torch.Tensor:
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


class Rollout:
    """Steps the environments, and collects the rollouts without autoreset steps."""

    def __init__(self, seed: int, recipe: Recipe, networks: Networks) -> None:
        self.recipe, self.networks = recipe, networks
        number = recipe.num_envs
        self.envs: Any = gymnasium.make_vec("CartPole-v1", number, vectorization_mode="vector_entry_point")
        self.shown, _ = self.envs.reset(seed=seed)
        self.over = np.zeros(number, np.bool_)
        self.totals = np.zeros(number)
        self.window = Window()
        self.env_steps = 0

    @torch.no_grad()
    def collect(self) -> tuple[torch.Tensor, ...]:
        recipe, steps, number = self.recipe, self.recipe.steps, self.recipe.num_envs
        seen = torch.zeros(steps + 1, number, OBSERVATIONS)
        actions, log_probs = torch.zeros(steps, number, dtype=torch.int64), torch.zeros(steps, number)
        reward, terminated, over = np.zeros((3, steps, number), np.float32)
        real = np.zeros((steps, number), np.bool_)
        for t in range(steps):
            seen[t] = torch.from_numpy(self.shown)
            chances = self.networks.policy(seen[t])
            actions[t] = chances.sample()
            log_probs[t] = chances.log_prob(actions[t])
            real[t] = ~self.over
            self.shown, reward[t], terminated[t], truncated, _ = self.envs.step(actions[t].numpy())
            self.over = np.logical_or(terminated[t], truncated)
            over[t] = self.over
            self.count(reward[t])
        self.env_steps += int(real.sum())
        seen[steps] = torch.from_numpy(self.shown)
        values = self.networks.value(seen)
        advantage, following = torch.zeros(steps, number), torch.zeros(number)
        goes_on, lives_on = torch.from_numpy(1 - over), torch.from_numpy(1 - terminated)
        rewards = torch.from_numpy(reward) * recipe.reward_scale
        for t in reversed(range(steps)):
            error = rewards[t] + recipe.gamma * lives_on[t] * values[t + 1] - values[t]
            following = error + recipe.gamma * recipe.gae_lambda * goes_on[t] * following
            advantage[t] = following
        keep = torch.from_numpy(real)
        old_values, kept = values[:-1][keep], advantage[keep]
        used = normalised(kept) if recipe.normalize_advantage == "rollout" else kept
        return seen[:-1][keep], actions[keep], log_probs[keep], used, kept + old_values, old_values

    def count(self, reward: np.ndarray[Any, Any]) -> None:
        self.totals += reward
        for i in np.nonzero(self.over)[0]:
            self.window.add(Episode(time.monotonic(), float(self.totals[i]), int(self.totals[i])))
            self.totals[i] = 0.0


def update(
    networks: Networks,
    optimiser: torch.optim.Optimizer,
    recipe: Recipe,
    clip: float,
    batch: tuple[torch.Tensor, ...],
) -> None:
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(batch[0])).split(recipe.minibatch_size):
            seen, actions, old_log_probs, advantage, returns, old_values = (field[rows] for field in batch)
            chances, values = networks.both(seen)
            ratio = (chances.log_prob(actions) - old_log_probs).exp()
            if recipe.normalize_advantage == "minibatch":
                advantage = normalised(advantage)
            gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
            squares = (values - returns).square()
            if recipe.clip_value:
                near = old_values + (values - old_values).clamp(-clip, clip)
                squares = torch.max(squares, (near - returns).square())
            loss = 0.5 * recipe.value_coef * squares.mean() - gain
            if recipe.entropy_coef:
                loss = loss - recipe.entropy_coef * chances.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(networks.parameters(), recipe.max_grad_norm)
            optimiser.step()


def main() -> None:
    options = add_recipe(arguments(__doc__)).parse_args()
    recipe: Recipe = options.recipe or OWN
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    networks = Networks(recipe)
    rate, clip = recipe.learning_rate, recipe.clip_range
    optimiser = torch.optim.Adam(networks.parameters(), lr=rate, eps=recipe.adam_eps)
    rollout = Rollout(options.seed, recipe, networks)
    first_step_s = time.monotonic()
    while rollout.window.reached_at is None and rollout.env_steps < recipe.env_steps:
        batch = rollout.collect()
        if recipe.learning_rate_schedule == "linear":
            optimiser.param_groups[0]["lr"] = rate * recipe.remaining(rollout.env_steps)
        if recipe.clip_range_schedule == "linear":
            clip = recipe.clip_range * recipe.remaining(rollout.env_steps)
        update(networks, optimiser, recipe, clip, batch)
    packages = ("torch", "gymnasium", "numpy")
    settings = asdict(recipe)
    record = report(
        "serial", options.seed, first_step_s, rollout.window, rollout.env_steps, settings, packages
    )
    differs = ("acts and learns in turn, on one core", *recipe.left_out) if options.recipe else ()
    write(record | {"differs": differs}, options.json)


if __name__ == "__main__":
    main()
