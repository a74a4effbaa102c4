"""The first build of a job: builds what its processes are made of once, as a check, before there is a run."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from tianji_algos.fields import ACTION_MASK, leaves_choices
from tianji_cli.config.environment import start_limit
from tianji_cli.config.loader import parse_config
from tianji_cli.config.schema import Environment
from tianji_cli.errors import UsageError, describe
from tianji_cli.plan.job import Job
from tianji_cli.roles.buffer.replay.replay import bytes_of
from tianji_cli.worker.build import kept_fields, replay_settings
from tianji_cli.worker.builder import Builder, seed_process
from tianji_envs import registry as environments
from tianji_envs.core import VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.results import bounds_of, first_fault
from tianji_envs.serial import SerialVectorEnvironment


def first_build(job: Job) -> tuple[dict[str, Any] | None, int]:
    """Build the parts of a job once; return a report of another run's tensors, and a fragment's bytes."""
    plan = job.plan
    process = plan.carrying("learner")[0]
    seed_process(job, process, 0)
    config = parse_config(job.config)
    builder = Builder(job, config, process, 0)
    with start_limit(config.environment):
        with contextlib.closing(builder.environment(1)) as environment:
            builder.look_at(environment)
            model = builder.model()
            builder.agent(model, 1, seed=0)
            embryo, init = builder.begun_embryo(model)
            for learner in plan.carrying("learner"):
                if learner.group and (saved := Builder(job, config, learner, 0).saved) is not None:
                    saved.restore(embryo)  # The saved state of each resumed group has to fit.
            _ = builder.stored_layout  # Raises if the model does not fit the update rule.
            _ = builder.records
            if config.distribution.inference is not None:
                _ = builder.passes
            _check_first_observation(config.environment, environment)
        if config.experiment.evaluation is not None and config.experiment.evaluation.video:
            _check_pictures(builder)
    if config.learns_from_replay:
        _check_replay_memory(builder, sum(plan.is_local(process.rank) for process in plan.carrying("buffer")))
    return init, builder.layout.nbytes


def _check_replay_memory(builder: Builder, buffers: int) -> None:
    """Make sure that one host can hold the replays of so many buffers.

    Raises:
        ReplayMemoryError: the host cannot; the message says how large the replays may be.
    """
    section = builder.config.distribution.buffer
    capacity = section.capacity + sum(table.capacity for table in section.tables.values())
    settings = replay_settings(builder, capacity)
    bytes_of(builder.stored_layout, settings, kept_fields(builder)).place(
        settings, builder.job.directory, buffers
    )


def _check_first_observation(section: Environment, environment: VectorEnvironment) -> None:
    """Make sure that an environment begins an episode with a valid observation: a wrapper may lie.

    This checks gymnasium's environments only: elsewhere, beginning an episode may start a game, or a
    compiler.

    An environment whose reward is several numbers by its own account, such as a multi-objective one, makes
    one step: a wrapper may have made a single number of them.

    Raises:
        BrokenEnvironmentError: an observation of another shape or type than its space's, one that is not
            finite, or one that forbids every action; a reward that is no single number.
    """
    if not environments.find(section.type).takes_wrappers:
        return
    shown, called = environment.new_observations(), section.id or section.type
    sys.stderr.write(f"beginning an episode in {called}\n")  # Seen if a signal ends it here.
    sys.stderr.flush()
    environment.reset(0, shown)
    if fault := first_fault(shown[None], bounds_of(environment.observation_space, 1)):
        raise BrokenEnvironmentError(f"{called} {fault.gave} when it was reset: {fault.wanted}")
    masks = shown[ACTION_MASK] if ACTION_MASK in (shown.dtype.names or ()) else None
    if masks is not None and not leaves_choices(masks, environment.action_space).all():
        raise BrokenEnvironmentError(
            f"{called} gave an {ACTION_MASK} that forbids all actions when it was reset; one at least "
            "would be right"
        )
    single = environment.first_of_gymnasium if isinstance(environment, SerialVectorEnvironment) else None
    is_masked = masks is not None or ACTION_MASK in environment.info_keys
    if getattr(getattr(single, "reward_space", None), "shape", ()) and not is_masked:
        action = np.asarray(environment.action_space.sample())[None]
        environment.step(action, shown, np.zeros(1, np.float32), *np.zeros((2, 1), np.bool_))


def _check_pictures(builder: Builder) -> None:
    """Make sure that the environment can be rendered, as films of evaluations need it.

    Raises:
        UsageError: the environment cannot be rendered; the message says what would be right.
    """
    environment = builder.environment(1, render=True, evaluation=True)
    try:
        environment.reset(0, environment.new_observations())
        sys.stderr.write("drawing it for experiment.evaluation.video\n")  # Seen if a signal ends it here.
        sys.stderr.flush()
        environment.render()
    except (Exception, SystemExit) as cause:
        raise UsageError(f"experiment.evaluation.video: {describe(cause)}; 0 trains without films") from cause
    finally:
        environment.close()
