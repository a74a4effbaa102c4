"""Measures PPO's updates a second on one device, in tianji and in plain loops.

Five loops take turns with the same network, rollout and minibatches:

tianji     tianji's update rule: a rollout goes to the device once, with its advantages
plain      a loop as in one-file implementations such as CleanRL's: gather, loss, autograd, clip, Adam
compiled   the same, with gather, network and loss through ``torch.compile``
graph      ``plain``, captured once as a CUDA graph and replayed (as LeanRL does); with a GPU only
both       ``compiled``, captured; with a GPU only

    python benchmarks/ppo_update.py [--config configs/ppo_pong_gpu.toml] [--device cuda] [--json PATH]

All loops but ``tianji`` copy a rollout of noise to the device for each rollout. It has advantages, so these
loops do not estimate them. The loops use the peers' ideas, and none of their code.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from actor import Loop, steps_per_s
from replay import builder_of, fragment_of_noise
from torch import nn

from tianji_algos.core import RolloutEmbryo
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.ppo.settings import PPOSettings
from tianji_cli.config.loader import load_config
from tianji_cli.telemetry.machine import cpu_model
from tianji_cli.wire.fragment import Fragment
from tianji_cli.worker.builder import Builder
from tianji_lab.environment import busy_share

Tensors = tuple[torch.Tensor, ...]
Update = Callable[[torch.Tensor], None]
"""Function that makes one update with the samples of these indices, ``[B]``."""
Loss = Callable[[torch.Tensor], torch.Tensor]
"""Function that computes the loss of the samples of these indices, ``[B]``."""

CAPTURE_AFTER: Final = 5
"""Updates before a graph's capture, in which libraries choose algorithms and Adam allocates its moments."""


def model_of(builder: Builder, device: str) -> ActorCritic:
    """Build the network on a device."""
    model = builder.model().to(device)
    assert isinstance(model, ActorCritic)
    return model


def tianji(builder: Builder, device: str) -> Iterator[None]:
    """Make an update of tianji's rule for each item, for ever."""
    embryo, rng = builder.embryo(model_of(builder, device)), np.random.default_rng(1)
    assert isinstance(embryo, RolloutEmbryo)
    settings, layout = embryo.settings, builder.layout
    assert isinstance(settings, PPOSettings)
    number = max(1, round(settings.rollout_steps / (layout.steps * layout.num_envs)))
    fragments = []
    for _ in range(number):
        fields = Fragment(layout, fragment_of_noise(layout, rng).data).fields
        fields["log_prob"][...] = -math.log(builder.spaces.action.n)
        fields["value"][...] = rng.standard_normal(fields["value"].shape)
        fragments.append(fields)
    while True:
        for minibatch in embryo.minibatches(fragments):
            embryo.update(minibatch)
            yield


class PlainLoop:
    """Makes PPO's updates on rollouts of noise, in a plain loop.

    Args:
        is_compiled: whether to compute the loss through ``torch.compile``.
        capture: whether to replay the update as a CUDA graph.
    """

    def __init__(
        self, builder: Builder, device: str, *, is_compiled: bool = False, capture: bool = False
    ) -> None:
        settings = builder.config.training.settings
        assert isinstance(settings, PPOSettings)
        self._settings = settings
        self._model = model_of(builder, device)
        rate = torch.tensor(settings.learning_rate, device=device) if capture else settings.learning_rate
        self._optimizer = torch.optim.Adam(
            self._model.parameters(), rate, eps=settings.adam_eps, fused=True, capturable=capture
        )
        self._host = self._noise(builder)
        self._rollout = tuple(each.to(device) for each in self._host)
        self._loss: Loss = torch.compile(self._loss_of) if is_compiled else self._loss_of
        self._update: Update = self._captured(torch.device(device)) if capture else self._make_update

    def updates(self) -> Iterator[None]:
        """Make an update for each item, for ever."""
        settings, size = self._settings, len(self._host[1])
        device = self._rollout[0].device
        while True:
            for here, there in zip(self._host, self._rollout, strict=True):
                there.copy_(here, non_blocking=True)
            for _ in range(settings.epochs):
                order = torch.randperm(size, device=device)
                for rows in order[: size - size % settings.minibatch_size].split(settings.minibatch_size):
                    self._update(rows)
                    yield

    def _noise(self, builder: Builder) -> Tensors:
        """Make observations, actions, log-probabilities, advantages and targets on the host."""
        steps, space = self._settings.rollout_steps, builder.spaces.observation
        rng, actions = np.random.default_rng(1), int(builder.spaces.action.n)
        observation = rng.integers(0, 255, (steps, *space.shape)).astype(space.dtype)
        action = rng.integers(0, actions, steps)
        log_prob = np.full(steps, -math.log(actions), np.float32)
        advantage, target = rng.standard_normal((2, steps), np.float32)
        arrays = (observation, action, log_prob, advantage, target)
        pinned = torch.cuda.is_available()
        return tuple(t.pin_memory() if pinned else t for t in map(torch.from_numpy, arrays))

    def _loss_of(self, rows: torch.Tensor) -> torch.Tensor:
        settings, epsilon = self._settings, self._settings.clip_range
        observation, action, old_log_prob, advantage, target = (each[rows] for each in self._rollout)
        policy, value = self._model(observation)
        log_probs = policy.log_softmax(dim=-1)
        log_prob = log_probs.gather(1, action[:, None]).squeeze(1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (log_prob - old_log_prob).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * advantage)
        error = 0.5 * (value - target).square()
        return (-gain + settings.value_coef * error - settings.entropy_coef * entropy).mean()

    def _make_update(self, rows: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        self._loss(rows).backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_grad_norm)
        self._optimizer.step()

    def _captured(self, device: torch.device) -> Update:
        """Capture an update as a CUDA graph; returns a function that replays it."""
        rows = torch.arange(self._settings.minibatch_size, device=device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(CAPTURE_AFTER):
                self._make_update(rows)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._make_update(rows)

        def replay(numbers: torch.Tensor) -> None:
            rows.copy_(numbers)
            graph.replay()

        return replay


def loop(updates: Iterator[None], device: str) -> Loop:
    """Return a loop that makes so many updates, and waits for the last."""

    def run(number: int) -> None:
        for _ in itertools.islice(updates, number):
            pass
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    return run


def contenders(builder: Builder, device: str) -> dict[str, Loop]:
    """Build all loops that run on the device."""

    def peer(*, is_compiled: bool = False, capture: bool = False) -> Loop:
        return loop(PlainLoop(builder, device, is_compiled=is_compiled, capture=capture).updates(), device)

    loops = {
        "tianji": loop(tianji(builder, device), device),
        "plain": peer(),
        "compiled": peer(is_compiled=True),
    }
    if device.startswith("cuda"):
        loops |= {"graph": peer(capture=True), "both": peer(is_compiled=True, capture=True)}
    return loops


def report(rates: Mapping[str, list[float]]) -> dict[str, Any]:
    """Print and return the loops' rates, their medians, and the median ratio to tianji's rate."""
    rows: dict[str, Any] = {}
    for name, values in rates.items():
        over = median(ours / theirs for ours, theirs in zip(rates["tianji"], values, strict=True))
        rows[name] = {"rates": values, "median": median(values), "tianji_over_it": over}
        print(
            f"{name:10} {median(values):9.1f} {min(values):9.1f} {max(values):9.1f} {over:8.2f}", flush=True
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="configs/ppo_pong_gpu.toml")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each loop, in each round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(options.config, options.set)
    gpu = torch.cuda.get_device_name() if options.device.startswith("cuda") else "none"
    environment = {
        "machine": f"{cpu_model()}, {busy_share():.0%} of the cores busy before; GPU: {gpu}",
        "torch": f"{torch.__version__} on Python {platform.python_version()}",
        "config": " ".join([options.config, *options.set]),
    }
    for key, value in environment.items():
        print(f"# {key}: {value}")
    loops = contenders(builder_of(config), options.device)
    print(f"{'updates/s':10} {'median':>9} {'least':>9} {'most':>9} {'tianji x':>8}")
    rows = report(steps_per_s(loops, 1, options.rounds, options.seconds))
    if options.json:
        Path(options.json).write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
