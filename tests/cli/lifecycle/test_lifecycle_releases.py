"""Runs of earlier releases, kept in tests/fixtures, are read, played and gone on with.

A release adds a directory of its own, by `python tests/fixtures/make.py VERSION` with that version installed.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tianji

FIXTURES = Path(__file__).parents[2] / "fixtures"
RUNS = sorted(path.parent for path in FIXTURES.glob("*/*/*/config.toml"))


@pytest.fixture(params=RUNS, ids=lambda run: str(run.relative_to(FIXTURES).parent))
def run(request: pytest.FixtureRequest, workplace: Any) -> Path:
    """A copy of a kept run."""
    return Path(shutil.copytree(request.param, workplace.place / "kept/1", symlinks=True))


def test_each_release_has_left_runs() -> None:
    assert {run.parent.name for run in RUNS} >= {"ppo", "dqn"}


def test_its_policy_plays(run: Path, workplace: Any) -> None:
    policy = tianji.load(run)
    observation = policy.observation_space.sample()
    assert policy.action_space.contains(policy.act(observation))
    workplace.command("eval", str(run), "--episodes", "2", "--out", "films").wait(0)


def test_its_files_are_read(run: Path, workplace: Any) -> None:
    shown = workplace.command("list", "runs", "--out", ".")
    shown.wait(0)
    assert "finished" in shown.stdout
    assert tianji.Run(run).summary["env_steps"] > 0
    workplace.command("report", str(run), "--out", "page.html").wait(0)
    workplace.command("compare", str(run), str(run)).wait(0)


def test_it_goes_on(run: Path, workplace: Any) -> None:
    before = json.loads((run / "summary.json").read_text())
    goal = f"experiment.stop.env_steps={before['env_steps'] + 4096}"
    workplace.command("train", "--resume", str(run), "--quiet", "--set", goal).wait(0)
    after = json.loads((run / "summary.json").read_text())
    assert after["env_steps"] == before["env_steps"] + after["received"]
    assert after["session"]["number"] == before["session"]["number"] + 1
