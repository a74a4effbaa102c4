"""Images of all kinds, through the command line: trained, evaluated, exported, loaded; and older runs."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.lifecycle.conftest import BASE, Run
from cli.lifecycle.test_lifecycle_export import Exported
from cli.lifecycle.test_lifecycle_python import returns_of_eval, trained

import tianji

COLUMNS = '''
import numpy as np
from gymnasium import Env, spaces


class Column(Env):
    """A bright column in a third of the width; the action that names the third is paid."""

    action_space = spaces.Discrete(3)

    def __init__(self, shape=(16, 18), width=1, dtype="uint8", high=255):
        self.observation_space = spaces.Box(0, high, tuple(shape), np.dtype(dtype))
        self.axis = width

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 8
        return self.look(), {}

    def step(self, action):
        paid = float(action == self.third)
        self.left -= 1
        return self.look(), paid, False, self.left == 0, {}

    def look(self):
        space = self.observation_space
        shown = np.zeros(space.shape, space.dtype)
        wide = space.shape[self.axis]
        at = int(self.np_random.integers(wide))
        self.third = 3 * at // wide
        np.moveaxis(shown, self.axis, 0)[at] = space.high.max()
        self.where = 2 * at / (wide - 1) - 1
        return shown


class Follow(Column):
    """The same; the action is to be where the column is, from -1 to 1."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action):
        paid = 1 - abs(float(action[0]) - self.where)
        return self.look(), paid, False, self.steps_left() == 0, {}

    def steps_left(self):
        self.left -= 1
        return self.left
'''
SMALL = {
    "experiment": {"stop": {"env_steps": 512}},
    "model": {"type": "cnn_actor_critic", "channels": [4], "kernels": [4], "strides": [4], "hidden": [16]},
    "training": {"rollout_steps": 256, "minibatch_size": 128},
}


@pytest.fixture(autouse=True)
def modules_of_a_test_are_not_the_next_one_s(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_env", None)


def columns(workplace: Any, **options: Any) -> Path:
    """Train in columns of these options."""
    workplace.module(COLUMNS)
    workplace.base = {key: table for key, table in BASE.items() if key not in {"environment", "model"}}
    layout = options.pop("image_layout", "auto")
    environment = {"type": "my_env:Column", "num_envs": 8, "options": options, "image_layout": layout}
    return trained(workplace, SMALL, {"environment": environment})


def drawn(policy: tianji.Policy, number: int) -> Any:
    policy.observation_space.seed(2)
    return np.stack([policy.observation_space.sample() for _ in range(number)])


@pytest.mark.parametrize(
    ("shape", "width", "dtype", "high", "channels"),
    [((2, 16, 18, 3), 2, "uint8", 255, 6), ((16, 18, 3), 1, "int32", 255, 3), ((16, 18, 7), 1, "bool", 1, 7)],
)
def test_a_policy_of_images_acts_alike_in_training_evaluation_file_and_program(
    shape: tuple[int, ...], width: int, dtype: str, high: int, channels: int, workplace: Any
) -> None:
    run = columns(workplace, shape=list(shape), width=width, dtype=dtype, high=high)
    policy = tianji.load(run, "last")
    assert policy._saved.model.encoder.first.weight.shape[1] == channels
    seen = drawn(policy, 50)
    found = Exported(workplace, run, "--checkpoint", "last")(observation=seen)
    np.testing.assert_array_equal(found["action"], policy.act(seen))
    assert len(returns_of_eval(workplace, run, 4)) == 4


def test_a_run_from_before_the_key_acts_by_the_network_that_it_has_trained(workplace: Any) -> None:
    run = columns(workplace, shape=[16, 18, 20], image_layout="legacy")
    policy = tianji.load(run, "last")
    assert policy._saved.model.encoder.first.weight.shape[1] == 16  # as [planes, H, W]
    wanted = policy.act(drawn(policy, 20))
    file = run / "config.toml"
    written = file.read_text()
    file.write_text(written.replace('image_layout = "legacy"\n', ""))
    assert "image_layout" not in tomllib.loads(file.read_text())["environment"]
    np.testing.assert_array_equal(tianji.load(run, "last").act(drawn(policy, 20)), wanted)
    assert len(returns_of_eval(workplace, run, 4)) == 4


def test_an_image_in_a_row_is_refused_with_the_ways_out(workplace: Any) -> None:
    workplace.module(COLUMNS)
    command = workplace.command(
        *("train", "--env", "my_env:Column", "--set", "environment.options.shape=[12_288]"),
        *("--set", "environment.options.width=0"),
    )
    command.wait(2)
    assert (
        "4,096 raw numbers; a convolutional one would be right, of axes such as [H, W, C]"
        in command.last_words
    )
    assert "environment.image_layout = 'none' if these are no pixels" in command.last_words


@pytest.mark.timeout(400)  # Hundreds of updates of a convolutional network.
@pytest.mark.parametrize("agent", ["sac", pytest.param("td3", marks=pytest.mark.soak)])
def test_actions_between_bounds_are_learnt_from_images_without_a_file(agent: str, workplace: Any) -> None:
    workplace.module(COLUMNS)
    settings = (
        *("training.batch_size=16", "training.replay_ratio=16"),
        *("training.warmup_steps=200", "training.gamma=0", "training.learning_rate=1e-3"),
        *("agent.warmup_hold=1", "training.publish_every=4", "experiment.stop.env_steps=800"),
        *("experiment.eval_episodes=30", "experiment.plots=false", "experiment.seed=3"),
    )
    words = [word for setting in settings for word in ("--set", setting)]
    command = workplace.command(
        "train", "--env", "my_env:Follow", "--agent", agent, "--out", "out", "--quiet", *words
    )
    run = Run(workplace.place / f"out/{agent}_Follow/1", command)
    workplace.until(lambda: run.env_steps >= 400, "half of it")
    workplace.until(lambda: "training is over" in run.log, "the rest")
    summary = run.finish()
    # Of 8, actions at random get 2.7, and the middle 4.
    assert summary["evaluation"]["mean"] > 6.0, summary["evaluation"]
    policy = tianji.load(run.path, "last")
    seen = drawn(policy, 50)
    found = Exported(workplace, run.path, "--checkpoint", "last")(observation=seen)
    np.testing.assert_allclose(found["action"], policy.act(seen), rtol=1e-4, atol=1e-5)
