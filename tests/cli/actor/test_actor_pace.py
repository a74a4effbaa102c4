"""Steps that last as long as `environment.step_ms` says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.errors import ConfigError
from tianji_cli.roles.actor import pace
from tianji_cli.roles.actor.pace import PacedStep
from tianji_envs.gym import GymFactory

CONFIG = "configs/ppo_cartpole.toml"
COPIES = 4


class Clock:
    """Time that passes while somebody sleeps, and a little at each look.

    Attributes:
        now_s: seconds since it began.
        slept_s: seconds of all sleeps.
    """

    def __init__(self) -> None:
        self.now_s = self.slept_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def turns(clock: Clock, own_s: float, steps: int, **settings: Any) -> list[float]:
    """Seconds of some turns through all copies, of environments whose step takes ``own_s``."""
    overrides = [f"environment.num_envs={COPIES}", "training.rollout_steps=2048"]
    overrides += [f"environment.{key}={value}" for key, value in settings.items()]
    section = load_config(CONFIG, overrides).environment
    environment = GymFactory().make("CartPole-v1", COPIES)
    own, observation = environment.step, environment.new_observations()
    environment.reset(1, observation)

    def slow(*arrays: Any) -> None:
        clock.now_s += own_s
        own(*arrays)

    slow_environment: Any = SimpleNamespace(step=slow, num_envs=COPIES)
    step = PacedStep(slow_environment, section, seed=1)
    reward, terminated, truncated = np.zeros(COPIES), np.zeros(COPIES, np.bool_), np.zeros(COPIES, np.bool_)
    lasted, ended = [], 0
    for _ in range(steps):
        began_s = clock.now_s
        step(np.zeros(COPIES, np.int64), observation, reward, terminated, truncated)
        lasted.append(clock.now_s - began_s)
        ended += np.count_nonzero(terminated)
    assert ended or steps < 100, "it steps nothing"
    environment.close()
    return lasted


@pytest.mark.parametrize(
    ("own_s", "work", "turn_s", "slept_s"),
    [
        pytest.param(0.0, "sleep", 0.04, 0.04, id="waits for all of it"),
        pytest.param(0.03, "sleep", 0.04, 0.01, id="waits for the rest"),
        pytest.param(0.05, "sleep", 0.05, 0.0, id="is slower by itself"),
        pytest.param(0.03, "busy", 0.04, 0.0, id="keeps the core busy"),
    ],
)
def test_a_turn_lasts_as_long_as_all_copies_are_to_take(
    clock: Clock, own_s: float, work: str, turn_s: float, slept_s: float
) -> None:
    lasted = turns(clock, own_s, 3, step_ms=10, step_work=f'"{work}"')
    assert lasted == pytest.approx([turn_s] * 3, abs=1e-4)
    assert clock.slept_s == pytest.approx(3 * slept_s, abs=1e-4)


def test_jitter_varies_each_turn_evenly(clock: Clock) -> None:
    lasted = turns(clock, 0.0, 500, step_ms=10, step_jitter=0.5)
    assert min(lasted) >= 0.02
    assert max(lasted) <= 0.0601
    assert len(set(lasted)) > 400
    assert np.mean(lasted) == pytest.approx(0.04, rel=0.03)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["step_jitter=0.5"], "step_jitter: there is nothing that could vary; set step_ms"),
        (["step_ms=2000", "num_envs=32"], "32 environments in turn take up to 1 min 4 s"),
        (["step_ms=-1"], "environment.step_ms"),
        (["step_ms=1", "step_work=wait"], "environment.step_work"),
    ],
)
def test_times_that_cannot_be_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(CONFIG, [f"environment.{override}" for override in overrides])
