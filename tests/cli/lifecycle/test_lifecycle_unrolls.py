"""Runs whose update rule learns from unrolls: what it is shown, R2D2 itself, and the books."""

from typing import Any

import pytest
from cli.observer import CONFIG, IDLE, RHO, check_books

RULE = (
    IDLE
    + """
import torch
from tianji_algos.fields import FieldSpec
from tianji_algos.models.recurrent import RecurrentQNetwork
from tianji_algos.settings import NoSettings

class Counter(RecurrentQNetwork):
    '''Remembers how many steps its episode has had.'''
    settings_type = NoSettings

    def __init__(self, spaces, settings):
        super().__init__()
        self.state_size, self.unused = 1, torch.nn.Parameter(torch.zeros(1))

    @classmethod
    def recorded(cls, spaces, settings):
        return (FieldSpec("state", np.dtype(np.float32), (1,), once=True),)

    def unroll(self, observation, first, state):
        assert len(first) == 1, "it acts"
        return torch.zeros(len(state), 2), state.masked_fill(first[0, :, None], 0.0) + 1

class Settings(BaseModel):
    batch_size: int = 8
    burn_in: int = 8
    unroll_steps: int = 16
    replay_ratio: float = 2.0
    warmup_steps: int = 512
    publish_every: int = 4

class Observer(Idle, UnrollEmbryo):
    '''Learns nothing, and looks whether it is shown CartPole.'''
    settings_type = Settings

    def update(self, batch):
        before = batch.fields["state"][:, 0]
        seen, mask = batch.observation, batch.mask
        fresh = (np.abs(seen) <= 0.05).all(axis=2)
        assert ((before == 0) <= fresh[:, 0]).all(), "nothing is remembered of what was before an episode"
        assert (before[~fresh[:, 0]] > 0).all(), "else something is"
        assert mask[:, :-1][~mask[:, 1:]].all(), "it takes one step to begin an episode"
        assert fresh[:, 1:][~mask].all(), "which leads to its first observation"
        pushed = np.diff(seen[:, :, 1], axis=1) > 0
        assert (pushed == (batch.fields["action"] == 1))[mask].all(), "each step leads to the next one"
        over = np.maximum(abs(seen[:, :, 2]) / np.radians(12.0), abs(seen[:, :, 0]) / 2.4)[:, 1:]
        assert (over[batch.terminated] > 0.9999).all(), "nothing ends but by a fall"
        assert (over[mask & ~batch.terminated] < 1.0001).all(), "which it does"
        assert (batch.reward[mask] == 1).all() and not batch.terminated[~mask].any()
        steps = self.of_all_learners(mask[:, self.settings.burn_in:].sum())
        return UpdateResult(steps, np.ones(len(mask), np.float32))
"""
)
UNROLLS: dict[str, Any] = CONFIG | {
    "agent": {"type": "r2d2", "epsilon_steps": 2000},
    "model": {"type": "my_env:Counter"},
}
R2D2: dict[str, Any] = {
    "model": {"type": "recurrent_q", "hidden": [8], "width": 8},
    "training": {
        "type": "r2d2",
        "batch_size": 8,
        "burn_in": 8,
        "unroll_steps": 16,
        "warmup_steps": 512,
        "replay_ratio": RHO,
        "publish_every": 4,
    },
}
PRIORITISED = {"buffer": {"sampler": "prioritised"}}
APART = {"buffer": {"sampler": "prioritised", "colocate": False, "priority_updates": "sync"}}


@pytest.fixture(autouse=True)
def rule(workplace: Any) -> None:
    workplace.base = UNROLLS
    workplace.module(RULE)


@pytest.mark.parametrize(
    "distribution",
    [
        {"transport": "inproc", **PRIORITISED},
        {"transport": "zmq", **APART},
        {"learner": {"num": 2}, "actor": {"num": 2}},
    ],
    ids=str,
)
def test_a_rule_is_shown_what_happened_wherever_the_replay_is(
    workplace: Any, distribution: dict[str, Any]
) -> None:
    summary = workplace.train({"distribution": distribution}).finish()
    check_books(summary)
    assert summary["steps_given_up"] == 0


def test_r2d2_trains_with_several_learners_and_is_evaluated(workplace: Any) -> None:
    several = {"distribution": {"learner": {"num": 2}, "groups": 2, **PRIORITISED}}
    summary = workplace.train(R2D2, several, {"experiment": {"eval_episodes": 4}}).finish()
    check_books(summary)
    assert summary["evaluation"]["mean"] >= 8.0, "the shortest episode has as many steps"
    assert summary["groups"] == 2


def test_r2d2_trains_on_observations_of_several_parts(workplace: Any) -> None:
    grid = {"environment": {"id": "minigrid:MiniGrid-Empty-5x5-v0"}}
    check_books(workplace.train(R2D2, grid).finish())


def test_a_resumed_run_goes_on_with_the_unrolls_that_were_saved(workplace: Any) -> None:
    run = workplace.train(R2D2, {"distribution": {"buffer": {"save_with_checkpoint": True}}})
    first = run.finish()
    assert (run.path / "checkpoints/replay/last/replay_flags.npy").exists()
    goal = f"experiment.stop.env_steps={first['env_steps'] + 2048}"
    summary = workplace.resume(run, "--set", goal).finish()
    check_books(summary, earlier=first["env_steps"])
    assert summary["updates"] > first["updates"]


def test_stacks_of_frames_are_refused_before_training(workplace: Any) -> None:
    pong = {
        "environment": {"type": "atari", "id": "Pong"},
        "model": {"type": "recurrent_q", "encoder": "nature"},
    }
    run = workplace.train({**R2D2, **pong})
    run.command.wait(2)
    assert "environment.options.stack: policies see stacks of 4 observations" in run.command.stderr
    assert "stack = 1 would be right" in run.command.stderr


def test_a_network_that_does_not_say_what_it_remembers_is_refused(workplace: Any) -> None:
    workplace.module(RULE.replace("once=True),)", "once=True),)[:0]"))
    run = workplace.train()
    run.command.wait(2)
    assert "'my_env:Counter' does not say what it remembers" in run.command.stderr
