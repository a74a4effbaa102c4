"""Trains for three seconds, which shows errors in the environment or the config."""

from pathlib import Path

import tianji


def test_it_trains_for_three_seconds(tmp_path: Path) -> None:
    """Episodes end, and the learner learns from them."""
    run = tianji.train(
        Path(__file__).with_name("config.toml"),
        out=tmp_path,
        experiment={"stop": {"wall_s": 3.0}, "eval_episodes": 0, "plots": False},
    )
    assert run.summary is not None
    assert run.summary["status"] == "finished"
    assert run.summary["updates"] > 0
    assert run.summary["returns"]["episodes"] > 0
