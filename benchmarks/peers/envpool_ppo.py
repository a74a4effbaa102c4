"""PPO on an Atari game as one plain loop over EnvPool: the peer of configs/ppo_pong_gpu.toml.

Hyperparameters are those that CleanRL publishes for Pong with EnvPool. Environments step while the network
waits, and wait while the network learns: nothing overlaps.

    python benchmarks/peers/envpool_ppo.py [--game Pong] [--threshold 18] [--device cuda] [--minutes 30]
"""

from __future__ import annotations

import time
from typing import Any, Final

import envpool
import numpy as np
import torch
from record import Episode, Window, arguments, report, write
from torch import nn

SETTINGS: Final = {
    "num_envs": 16,
    "num_steps": 128,
    "minibatches": 8,
    "epochs": 3,
    "learning_rate": 2.5e-4,
    "anneal_over_steps": 10_000_000,
    "adam_eps": 1e-5,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
}


def layer(module: nn.Module, gain: float) -> nn.Module:
    """Set a layer's weights to an orthogonal matrix and its bias to 0."""
    assert isinstance(module, nn.Conv2d | nn.Linear)
    nn.init.orthogonal_(module.weight, gain)
    assert module.bias is not None
    nn.init.zeros_(module.bias)
    return module


class Network(nn.Module):
    """Network of Mnih et al. (2015) with a policy and a value."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        gain = nn.init.calculate_gain("relu")
        self.body = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, 4), gain), nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, 2), gain), nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3, 1), gain), nn.ReLU(),
            nn.Flatten(),
            layer(nn.Linear(64 * 7 * 7, 512), gain), nn.ReLU(),
        )  # fmt: skip
        self.policy = layer(nn.Linear(512, actions), 0.01)
        self.value = layer(nn.Linear(512, 1), 1.0)

    def forward(self, frames: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        seen = self.body(frames / 255.0)
        return torch.distributions.Categorical(logits=self.policy(seen)), self.value(seen).squeeze(-1)


class Loop:
    """Makes rollouts and updates in turn.

    Args:
        game: name of the game.
        seed: seed of environments and network.
        device: device of the network.
        window: records the games that end.
    """

    def __init__(self, game: str, seed: int, device: str, window: Window) -> None:
        torch.manual_seed(seed)
        n, t = int(SETTINGS["num_envs"]), int(SETTINGS["num_steps"])
        self.environments: Any = envpool.make(
            f"{game}-v5", env_type="gymnasium", num_envs=n, episodic_life=True, reward_clip=True, seed=seed
        )
        self.device = torch.device(device)
        self.network = Network(int(self.environments.action_space.n)).to(self.device)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), SETTINGS["learning_rate"], eps=SETTINGS["adam_eps"]
        )
        self.window = window
        self.env_steps = 0
        self.used = 0
        self.returns, self.lengths = np.zeros(n), np.zeros(n, int)
        self.shown = self._on_device(self.environments.reset()[0])
        self.done = torch.zeros(n, device=self.device)
        self.frames = torch.zeros((t, n, 4, 84, 84), dtype=torch.uint8, device=self.device)
        self.actions = torch.zeros((t, n), dtype=torch.long, device=self.device)
        self.log_probs, self.values, self.rewards, self.dones = torch.zeros((4, t, n), device=self.device)

    def _on_device(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)

    @torch.no_grad()
    def roll_out(self) -> bool:
        """Make a rollout; returns True, at once, if the threshold has been reached."""
        for t in range(len(self.frames)):
            policy, self.values[t] = self.network(self.shown)
            action = policy.sample()
            self.frames[t], self.dones[t], self.actions[t] = self.shown, self.done, action
            self.log_probs[t] = policy.log_prob(action)
            frames, reward, terminated, truncated, info = self.environments.step(action.cpu().numpy())
            self.shown = self._on_device(frames)
            self.rewards[t] = self._on_device(reward)
            self.done = self._on_device((terminated | truncated).astype(np.float32))
            self.env_steps += len(reward)
            if self._note_games(info["reward"], info["terminated"].astype(bool) | truncated):
                return True
        return False

    def _note_games(self, reward: Any, over: Any) -> bool:
        self.returns += reward
        self.lengths += 1
        reached = False
        for i in np.flatnonzero(over):
            episode = Episode(time.monotonic(), float(self.returns[i]), int(self.lengths[i]))
            reached = self.window.add(episode) or reached
            self.returns[i] = self.lengths[i] = 0
        return reached

    def learn(self) -> None:
        """Make the updates with one rollout."""
        share = max(0.0, 1.0 - self.env_steps / SETTINGS["anneal_over_steps"])
        self.optimizer.param_groups[0]["lr"] = SETTINGS["learning_rate"] * share
        advantages = self._advantages()
        data = [x.flatten(0, 1) for x in (self.frames, self.actions, self.log_probs, advantages, self.values)]
        samples = len(data[1])
        for _ in range(int(SETTINGS["epochs"])):
            order = torch.randperm(samples, device=self.device)
            for rows in order.chunk(int(SETTINGS["minibatches"])):
                self._update(*(x[rows] for x in data))
            self.used += samples

    @torch.no_grad()
    def _advantages(self) -> torch.Tensor:
        """Compute generalised advantage estimates ``[T, N]``, backwards."""
        value, done = self.network(self.shown)[1], self.done
        advantages, running = torch.zeros_like(self.rewards), torch.zeros_like(value)
        gamma, trace = SETTINGS["gamma"], SETTINGS["gamma"] * SETTINGS["gae_lambda"]
        for t in reversed(range(len(self.rewards))):
            delta = self.rewards[t] + gamma * value * (1 - done) - self.values[t]
            running = delta + trace * (1 - done) * running
            advantages[t], value, done = running, self.values[t], self.dones[t]
        return advantages

    def _update(
        self,
        frames: torch.Tensor,
        actions: torch.Tensor,
        old_log_prob: torch.Tensor,
        advantage: torch.Tensor,
        old_value: torch.Tensor,
    ) -> None:
        policy, value = self.network(frames)
        ratio = (policy.log_prob(actions) - old_log_prob).exp()
        target, clip = old_value + advantage, SETTINGS["clip"]
        normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.min(ratio * normal, ratio.clamp(1 - clip, 1 + clip) * normal).mean()
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = 0.5 * torch.max((value - target) ** 2, (clipped - target) ** 2).mean()
        entropy = policy.entropy().mean()
        loss = -gain + SETTINGS["value_coef"] * error - SETTINGS["entropy_coef"] * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), SETTINGS["max_grad_norm"])
        self.optimizer.step()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--threshold", type=float, default=18.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=30.0, help="to give up after")
    options = parser.parse_args()
    window = Window(options.threshold)
    loop = Loop(options.game, options.seed, options.device, window)
    began_s = time.monotonic()
    while not loop.roll_out() and time.monotonic() < began_s + 60 * options.minutes:
        loop.learn()
    settings = SETTINGS | {"game": options.game, "device": options.device, "threshold": options.threshold}
    packages = ("envpool", "torch", "numpy")
    write(
        report("envpool", options.seed, began_s, window, loop.env_steps, settings, packages, used=loop.used),
        options.json,
    )


if __name__ == "__main__":
    main()
