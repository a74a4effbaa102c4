"""A training that is over in seconds, for tests of where it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import tomli_w

TIANJI: Final = Path(sys.executable).with_name("tianji")
ENV_STEPS: Final = 20_000


def write_config(place: Path, transport: str | dict[str, str], actors: int = 2, hosts: int = 1) -> Path:
    """Write ``run.toml``: PPO on CartPole.

    Args:
        place: where to.
        transport: engine of the edges.
        actors: how many.
        hosts: how many, where no launcher says it.
    """
    config = {
        "experiment": {"name": "run", "stop": {"env_steps": ENV_STEPS}, "eval_episodes": 0, "plots": False},
        "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
        "agent": {"type": "ppo"},
        "model": {"type": "mlp_actor_critic", "hidden": [16]},
        "training": {"rollout_steps": 512, "minibatch_size": 128, "epochs": 2},
        "distribution": {
            "transport": transport,
            "pin_cores": False,
            "actor": {"num": actors, "send_size": 32, "window": 2},
            "hosts": hosts,
        },
    }
    path = place / "run.toml"
    path.write_text(tomli_w.dumps(config))
    return path


def finished_summary(run: Path) -> dict[str, Any]:
    """Read a run's summary, and check what is true of every run that finished."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished", summary
    assert summary["env_steps"] >= ENV_STEPS
    accounts = ("received", "in_flight", "lost", "dropped")
    assert summary["produced"] == sum(summary[account] for account in accounts), summary
    assert summary["lost"] == 0, summary
    assert not (run / "job.key").exists()
    return summary


def hosts_of(summary: dict[str, Any]) -> dict[int, str]:
    """Say on which host each rank was."""
    return {role["rank"]: role["host"] for role in summary["roles"]}
