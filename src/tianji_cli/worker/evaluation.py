"""Builds evaluators: of the newest policy while others train, and of a saved one, or a baseline, at the end.

Both look at their own environments for the spaces of the policy, and play there by one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Agent, Model
from tianji_cli.config.edges import POLICY
from tianji_cli.files.checkpoint import BestWriter
from tianji_cli.files.film import remove_leftovers
from tianji_cli.files.rundir import VIDEOS
from tianji_cli.files.saved import saved_progress
from tianji_cli.plan.graph import slot_name
from tianji_cli.roles.episodes import EpisodePlayer, EvaluationLimits
from tianji_cli.roles.evaluator import AtTheEnd, Evaluator, WhileTraining
from tianji_cli.roles.filming import Films
from tianji_cli.roles.policies import BASELINES, ExploringPolicy, Policy, PolicyName, baseline
from tianji_cli.worker.builder import Builder
from tianji_cli.worker.parts import Parts, SavedPolicy, seed_streams
from tianji_envs.core import VectorEnvironment, derive_seed
from tianji_transports.core import Transport

SAMPLED: Final = 10
"""Episodes of the policy as it acts in training, after at least ten times as many greedy ones."""
MAX_PARALLEL: Final = 32
"""Most environments stepped side by side; more gain little and cost memory."""
FREE_S: Final = 1.0
"""Least seconds in which the final evaluation may begin episodes, however short the training was."""


def final_evaluation(
    parts: Parts,
    checkpoints: Path,
    episodes: int | None = None,
    seed: int | None = None,
    checkpoint: str | None = None,
    policy: PolicyName = "trained",
    limits: EvaluationLimits | None = None,
    *,
    render: bool = False,
) -> AtTheEnd:
    """Begin the evaluation of a checkpoint, played greedily unless ``policy`` says otherwise.

    Arguments that are None have the config's values.

    Args:
        checkpoints: the run's directory of checkpoints.
        checkpoint: name of a directory there.
        policy: "sampled" lets the checkpoint explore as at the end of training; a baseline replaces it.
        render: play all episodes in one environment, which can be rendered.

    Raises:
        UsageError: the environment has no such policy.
    """
    config, experiment = parts.config, parts.config.experiment
    number = experiment.last_episodes if episodes is None else episodes
    limits = limits or EvaluationLimits(experiment.eval_max_s, experiment.eval_max_steps)
    most = MAX_PARALLEL
    if episodes is None and experiment.eval_episodes is None and config.distribution.mode != "sync":
        progress = saved_progress(checkpoints, config.distribution.groups)
        limits = replace(limits, begins_s=max(FREE_S, *(group.train_s / 10 for group in progress)))
        most = SAMPLED  # The evaluator plays at least so many in any case.
    seed = parts.seed("evaluation") if seed is None else seed
    place = checkpoints / (checkpoint or experiment.eval_checkpoint)
    player = _play_by_name(policy, parts, place, number, min(number, most), seed, limits, render=render)
    follow: Callable[[EvaluationLimits], EpisodePlayer] | None = None
    if policy == "trained" and number >= 10 * SAMPLED and not render and parts.samples:
        follow = partial(_play_by_name, "sampled", parts, place, SAMPLED, SAMPLED, seed)
    return AtTheEnd(player, limits, follow)


def _play_by_name(
    name: PolicyName,
    parts: Parts,
    place: Path,
    episodes: int,
    num_envs: int,
    seed: int,
    limits: EvaluationLimits,
    *,
    render: bool = False,
) -> EpisodePlayer:
    """Begin an evaluation of a baseline, or of the checkpoint in a directory, in environments of its own."""
    num_envs = 1 if render else num_envs
    seed_streams(seed)
    environment = parts.environment(num_envs, render=render, evaluation=True)
    try:
        if name in BASELINES:
            policy: Policy = baseline(name, environment, seed)
        else:
            parts.look_at(environment)
            seed_streams(seed)
            policy = _saved_policy(parts, place, num_envs, seed, explores=name == "sampled")
    except Exception:
        environment.close()
        raise
    return _play(policy, environment, episodes, seed, limits, parts.config.environment.metrics)


def _saved_policy(parts: Parts, place: Path, num_envs: int, seed: int, *, explores: bool) -> Policy:
    """Load the policy of a checkpoint."""
    saved = SavedPolicy(parts, place)
    agent = saved.agent(num_envs, derive_seed(seed, num_envs) if explores else 0)
    if explores:
        agent.schedule(saved.env_steps)
    return _policy_of(parts, agent, num_envs, explores=explores)


def _play(
    policy: Policy,
    environment: VectorEnvironment,
    episodes: int,
    seed: int,
    limits: EvaluationLimits,
    metrics: Sequence[str],
) -> EpisodePlayer:
    """Begin an evaluation, reproducible by its seed even if code draws from global streams."""
    seed_streams(seed)
    return EpisodePlayer(policy, environment, episodes, seed, limits, metrics)


def _policy_of(parts: Parts, agent: Agent, num_envs: int, *, explores: bool) -> Policy:
    """Return a policy that plays greedily, or as the agent does in training."""
    return ExploringPolicy(agent, parts.agent_fields, num_envs) if explores else agent


def examiner(builder: Builder, transport: Transport) -> Evaluator:
    """Build the evaluator that plays while others train."""
    experiment = builder.config.experiment
    pace = experiment.evaluation
    assert pace is not None
    num_envs, seed = min(pace.episodes, MAX_PARALLEL), builder.seed("examiner")
    limits, metrics = EvaluationLimits(pace.max_s), builder.config.environment.metrics
    model = builder.acting_model()
    best = BestWriter(builder.job.checkpoints, model, anew=builder.job.own_best and not builder.incarnation)
    agent = builder.agent(model, num_envs, derive_seed(seed, num_envs))
    policy = _policy_of(builder, agent, num_envs, explores=not pace.deterministic)
    seed_streams(seed)
    environment = builder.environment(num_envs, evaluation=True)
    films = None
    if pace.video and not builder.incarnation:
        films = _films(builder, model, seed, limits)
    elif pace.video:  # Rendering may have killed the last examiner, so this one goes without films.
        remove_leftovers(builder.job.run / VIDEOS)
    schedule = WhileTraining(
        transport,
        [slot_name(POLICY, group) for group in builder.job.plan.groups],
        agent=agent,
        player=lambda: _play(policy, environment, pace.episodes, seed, limits, metrics),
        films=films,
        environment=environment,
        pace=pace,
        stop=experiment.stop,
        best=best,
        parameters=model.parameter_count,
    )
    return Evaluator(schedule)


def _films(builder: Builder, model: Model, seed: int, limits: EvaluationLimits) -> Films:
    """Build the films of evaluations during training, with an environment that the first film builds.

    Only this one environment renders: those of an evaluation are many, and some kinds would all render at
    once.
    """
    pace = builder.config.experiment.evaluation
    assert pace is not None
    agent = builder.agent(model, 1, derive_seed(seed, 1))
    policy = _policy_of(builder, agent, 1, explores=not pace.deterministic)
    episodes, metrics = pace.video, builder.config.environment.metrics

    def build() -> VectorEnvironment:
        return builder.environment(1, render=True, evaluation=True)

    def begin(
        environment: VectorEnvironment, parameters: npt.NDArray[np.float32], env_steps: int
    ) -> EpisodePlayer:
        agent.adopt(parameters)
        agent.schedule(env_steps)
        return _play(policy, environment, episodes, seed, limits, metrics)

    place = builder.job.run / VIDEOS
    return Films(place, pace.keep_videos, build, begin, overlay=pace.overlay, max_s=pace.max_s)
