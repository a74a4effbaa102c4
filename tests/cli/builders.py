"""Builders of the learner's process in small jobs of PPO and DQN on CartPole."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tianji_algos.dqn.settings import DQNAgentSettings, DQNSettings
from tianji_algos.models.settings import MLPActorCriticSettings, MLPQSettings
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_cli.config.schema import Component, JobConfig
from tianji_cli.files.saved import Progress
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.worker.builder import Builder

STEPS = 4
"""Steps of a fragment."""


def components(rule: str, training: PPOSettings | DQNSettings) -> dict[str, Component]:
    """Agent, network and update rule of a config; the network has one hidden layer of 8."""
    agent, model, network = {
        "ppo": (PPOAgentSettings(), "mlp_actor_critic", MLPActorCriticSettings(hidden=(8,))),
        "dqn": (DQNAgentSettings(), "mlp_q", MLPQSettings(hidden=(8,))),
    }[rule]
    return {
        "agent": Component(type=rule, settings=agent),
        "model": Component(type=model, settings=network),
        "training": Component(type=rule, settings=training),
    }


def learner_builder(
    rule: str,
    training: PPOSettings | DQNSettings,
    directory: Path,
    job: str,
    *,
    learners: int = 1,
    actors: int = 1,
    num_envs: int = 4,
    progress: tuple[Progress, ...] = (),
    distribution: Mapping[str, Any] | None = None,
    **buffer: Any,
) -> Builder:
    """Builder of the learner's process; builders of other processes differ in their ranks only."""
    config = JobConfig(
        experiment={"name": "x", "stop": {"env_steps": 10**6}, "eval_episodes": 0},
        environment={"type": "gym", "id": "CartPole-v1", "num_envs": num_envs},
        **components(rule, training),
        distribution={
            "transport": "shm",
            "pin_cores": False,
            "learner": {"num": learners},
            "actor": {"num": actors, "send_size": STEPS, "window": 2},
            "buffer": {"capacity": 1024, **buffer} if rule == "dqn" else buffer,
            **(distribution or {}),
        },
    )
    plan = make_plan(config, [Host(socket.gethostname(), tuple(range(8)))])
    (learner,) = plan.carrying("learner")
    return Builder(Job(job, "", plan, directory, directory, progress), config, learner, 0)
