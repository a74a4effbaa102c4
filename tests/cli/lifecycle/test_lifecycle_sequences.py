"""Runs whose update rule learns from whole episodes: what it is shown, and the books."""

from typing import Any

import pytest
from cli.observer import CONFIG, IDLE, check_books

RULE = (
    IDLE
    + """
class Settings(BaseModel):
    batch_size: int = 8
    sequence_steps: int = 16
    replay_ratio: float = 2.0
    warmup_steps: int = 512
    publish_every: int = 4

class Observer(Idle, SequenceEmbryo):
    '''Learns nothing, and looks whether it is shown episodes of CartPole.'''
    settings_type = Settings

    def update(self, batch):
        most = self.settings.sequence_steps
        for seen, action, reward, length, terminated in zip(
            batch.observation, batch.fields["action"], batch.reward, batch.length, batch.terminated
        ):
            assert 1 <= length <= most and len(seen) == most + 1
            assert (reward[:length] == 1).all() and (seen[length:] == seen[length]).all()
            pushed = np.diff(seen[: length + 1, 1]) > 0
            assert (pushed == (action[:length] == 1)).all(), "each step leads to the next one"
            over = np.maximum(abs(seen[:, 2]) / np.radians(12.0), abs(seen[:, 0]) / 2.4)
            assert (over[:length] < 1.0001).all(), "nothing follows a fall"
            assert over[length] > 0.9999 if terminated else over[length] < 1.0001
        return self.of_all_learners(batch.length.sum())
"""
)
EPISODES: dict[str, Any] = CONFIG | {
    "agent": {"type": "dqn", "epsilon_steps": 2000},
    "model": {"type": "mlp_q", "hidden": [16]},
}


@pytest.fixture(autouse=True)
def rule(workplace: Any) -> None:
    workplace.base = EPISODES
    workplace.module(RULE)


@pytest.mark.parametrize(
    "distribution",
    [
        {"transport": "inproc"},
        pytest.param({"buffer": {"colocate": False}, "actor": {"num": 2}}, marks=pytest.mark.soak),
        {"buffer": {"colocate": False}, "transport": "zmq"},
        {"learner": {"num": 2}, "actor": {"num": 2}},
    ],
    ids=str,
)
def test_a_rule_is_shown_whole_episodes_wherever_the_replay_is(
    workplace: Any, distribution: dict[str, Any]
) -> None:
    check_books(workplace.train({"distribution": distribution}).finish())


def test_a_resumed_run_goes_on_with_the_episodes_that_were_saved(workplace: Any) -> None:
    kept = {"distribution": {"buffer": {"save_with_checkpoint": True}}}
    run = workplace.train(kept)
    first = run.finish()
    assert (run.path / "checkpoints/replay/last/replay_lengths.npy").exists()
    goal = f"experiment.stop.env_steps={first['env_steps'] + 4096}"
    summary = workplace.resume(run, "--set", goal).finish()
    check_books(summary, earlier=first["env_steps"])


def test_a_metric_that_is_no_number_ends_the_run_with_its_name(workplace: Any) -> None:
    rule = RULE.replace("return {}\n", 'return {"loss": "0.5"}\n', 1)
    workplace.module(rule)
    run = workplace.train()
    run.command.wait(1)
    assert "Observer.metrics() says 'loss' as str, and a number is wanted" in run.summary["reason"]
    assert run.summary["rejected_frames"] == 0
