"""Refuses settings that are right one by one and could never work together.

A learner gathers whole fragments of T x N env steps until a rollout is full. So a rollout that is no
whole number of fragments, or one whose share no actor can deliver, would be waited for in vain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata

from tianji_cli.config.schema import (
    Component,
    Distribution,
    Environment,
    Experiment,
    JobConfig,
    Section,
    Stop,
)
from tianji_cli.config.source import Tree


def check_together(tree: Tree, sections: Mapping[str, Section]) -> None:
    """Note every pair of settings that excludes the other.

    Args:
        tree: where problems are noted.
        sections: the sections that are valid by themselves.
    """
    training, distribution = sections.get("training"), sections.get("distribution")
    if isinstance(distribution, Distribution):
        _check_device(tree, distribution.device)
    rollout = getattr(training.settings, "rollout_steps", None) if isinstance(training, Component) else None
    if not isinstance(rollout, int):
        return  # An update rule that gathers no rollouts.
    environment, experiment = sections.get("environment"), sections.get("experiment")
    if isinstance(environment, Environment) and isinstance(distribution, Distribution):
        _check_fragments(tree, rollout, environment, distribution)
    if isinstance(experiment, Experiment):
        _check_end(tree, rollout, experiment.stop)


def host_warnings(config: JobConfig, cores: int | None = None) -> list[str]:
    """Say what will run but badly on a host of so many cores (those this process may use by default)."""
    if cores is None:
        cores = len(os.sched_getaffinity(0))
    distribution = config.distribution
    wanted = (
        distribution.learner.num * distribution.learner.cores
        + distribution.actor.num * distribution.actor.cores
    ) * distribution.groups
    if distribution.transport.local == "inproc" or wanted <= cores:
        return []
    return [f"learners and actors ask for {wanted} cores and there are {cores}: they will take turns"]


def _check_fragments(tree: Tree, rollout: int, environment: Environment, distribution: Distribution) -> None:
    actor = distribution.actor
    fragment = actor.send_size * environment.num_envs
    senders = actor.num if distribution.mode == "sync" else 1
    share = fragment * senders
    if rollout % share == 0:
        return
    what = f"{rollout} steps are no whole number of fragments of {fragment}"
    if senders > 1:
        what = f"{rollout} steps cannot be shared evenly by {senders} actors in fragments of {fragment}"
    below = rollout // share * share
    right = f"{below} or {below + share}" if below else str(share)
    tree.problem(
        ("training", "rollout_steps"),
        f"{what} (send_size {actor.send_size} x num_envs {environment.num_envs})",
        f"{right} would be right",
    )


def _check_end(tree: Tree, rollout: int, stop: Stop) -> None:
    if stop.env_steps is not None and stop.env_steps < rollout:
        what = f"{stop.env_steps} steps never fill the first rollout of {rollout}"
        tree.problem(("experiment", "stop", "env_steps"), what, f"at least {rollout} would be right")


def _check_device(tree: Tree, device: str) -> None:
    if not device.startswith("cuda"):
        return
    # The build says it in its version; asking torch itself would cost seconds. The plan asks the driver.
    version = metadata.version("torch")
    if version.endswith("+cpu"):
        tree.problem(
            ("distribution", "device"),
            f"{device!r} is not there: torch {version} is built without CUDA",
            '"cpu" would be right, or a CUDA build of torch',
        )
