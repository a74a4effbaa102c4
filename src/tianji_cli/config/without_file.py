"""Makes the config of `tianji train --env ID`: looks at the environment, and lays ``--set`` over defaults.

This process builds the environment once to see its spaces, and again if it gets a wrapper. Building imports
gymnasium, so only a job without a file imports this module.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import gymnasium
import numpy as np

from tianji_algos.fields import ACTION_MASK
from tianji_cli.config.checks import companions_fit, wrong_agent
from tianji_cli.config.defaults import CORES_OF_ONE_ACTOR, Seen, check_agent, defaults, usual_steps
from tianji_cli.config.environment import build_environment, start_limit
from tianji_cli.config.loader import check_environment, find_extensions, resolve
from tianji_cli.config.problems import known_sections, validated
from tianji_cli.config.schema import Environment, JobConfig, Wrapper
from tianji_cli.config.source import KeyPath, Tree, lay_over, read, shipped_configs
from tianji_cli.errors import ConfigError, UsageError, describe
from tianji_cli.limits import usable_cores
from tianji_envs import registry as environments
from tianji_envs.core import VectorEnvironment
from tianji_envs.errors import EnvironmentFailure, UnknownEnvironmentError

ORIGIN: Final = "--env"
"""Name for messages in place of a file."""

STEPPED_S: Final = 0.1
"""Seconds in which an environment is stepped to measure the time of a step."""
LEAST_STEPS: Final = 3
LONGEST_S: Final = 1.0
"""The environment makes ``LEAST_STEPS`` at least, unless they take longer than ``LONGEST_S``."""

_MASK: Final = Wrapper(type="ActionMask")

_OPTION_OF_KEY: Final[dict[KeyPath, str]] = {
    ("environment", "type"): "--env",
    ("environment", "id"): "--env",
    ("agent", "type"): "--agent",
}
"""Keys that the defaults depend on, and the options that set them."""


def config_without_file(
    env: str, agent: str, overrides: Sequence[str] = (), cores: int | None = None
) -> JobConfig:
    """Choose a config for an environment, and make sure that it can be run.

    Args:
        env: an id of gymnasium, a game of Atari, or ``"my_module:MyEnv"``.
        overrides: the values of ``--set``, which win.
        cores: that the job may use; those this process may use by default.

    Raises:
        UsageError: the agent has no defaults, or cannot act in this environment.
        ConfigError: the config cannot be run; lists every problem.
    """
    check_agent(agent)
    cores = cores or len(usable_cores())
    environment = find_environment(env, overrides)
    named: dict[str, Any] = _named(environment)
    own: dict[str, Any] = {"environment": named, "experiment": {"name": _run_name(env, agent)}}
    given = lay_over([own], ORIGIN, overrides)
    may_wrap = given.origin(("environment", "wrappers")) != "--set"
    with start_limit(environment):
        seen, wants_mask = _look(env, agent, environment, cores, may_wrap=may_wrap)
    if wants_mask:
        named["wrappers"] = [_MASK.type]
        masked = environment.model_copy(update={"wrappers": (_MASK,)})
        seen, _ = _look(env, agent, masked, cores, may_wrap=False)

    def tree_for(env_steps: int | None) -> Tree:
        chosen = defaults(agent, seen, cores, env_steps)
        for section in ("model", "training"):
            if _type_of(given, section) not in (None, chosen[section]["type"]):
                chosen[section] = {}  # Its keys are those of another type.
        return lay_over([chosen, own], ORIGIN, overrides)

    usual = usual_steps(seen)
    tree = tree_for(usual)
    wanted = _steps_of(tree)
    return resolve(tree if wanted == usual else tree_for(wanted), cores)


def tuned_config(env: str, agent: str) -> str | None:
    """Find the config that comes with tianji for an environment's id and an agent; None if there is none."""
    for name, path in sorted(shipped_configs().items(), key=lambda shipped: len(shipped[0])):
        if path.name.startswith(agent):
            values = read(str(path)).values
            known = str(values["environment"].get("id"))
            if (values["agent"]["type"], known.rpartition(":")[2]) == (agent, env.rpartition(":")[2]):
                return name
    return None


def find_environment(env: str, overrides: Sequence[str]) -> Environment:
    """Find the environment that an id names, and make its modules importable.

    Raises:
        ConfigError: there is no such environment, or ``--set`` does not fit it or the command line.
    """
    find_extensions(lay_over([{"environment": {"type": "gym", "id": env}}], ORIGIN, overrides))
    tree = lay_over([{"environment": _kind_of(env)}], ORIGIN, overrides)
    known_sections(tree, list(JobConfig.model_fields))
    table = tree.values["environment"]
    environment = None
    if isinstance(table, dict):
        for path, option in _OPTION_OF_KEY.items():
            if tree.origin(path) == "--set":
                tree.problem(path, f"{option} says it", "leave one of them out")
        environment = validated(tree, ("environment",), Environment, table)
        check_environment(tree)
        if environment is not None:
            tree.report(companions_fit(environment))
    if tree.problems or environment is None:
        raise ConfigError(tree.problems)
    return environment


def _kind_of(env: str) -> dict[str, str]:
    """Find the type of environment that has an id; gymnasium's if none has, whose error names the nearest."""
    try:
        environments.find("gym").check_id(env)
    except UnknownEnvironmentError:
        other = {"type": env} if ":" in env else {"type": "atari", "id": env}
        is_own = ":" in env and not re.search(r"-v\d+$", env)  # Its error names what the module has.
        if is_own or _exists(other):
            return other
    except (Exception, SystemExit):  # noqa: BLE001, S110 - a module of the user's may raise anything; it is checked again
        pass
    return {"type": "gym", "id": env}


def _exists(kind: dict[str, str]) -> bool:
    try:
        environments.find(kind["type"]).check_id(kind.get("id", ""))
    except EnvironmentFailure:
        return False
    return True


def _look(env: str, agent: str, environment: Environment, cores: int, *, may_wrap: bool) -> tuple[Seen, bool]:
    """Build one copy; returns its spaces and speed, and whether it needs the wrapper for its action mask.

    The time of a step is measured only if there are cores for several actors, and no wrapper is needed any
    more.

    Raises:
        UsageError: the environment cannot be built or reset, or is a team's.
    """
    try:
        vector = build_environment(environment, 1)
    except EnvironmentFailure as error:
        raise UsageError(_failed(env, error)) from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"--env {env} cannot be built: {describe(error)}") from error
    try:
        if vector.agents:
            what, right = wrong_agent(agent, env, team=True)
            raise UsageError(f"{what}; a config with {right}")
        layout = environment.image_layout
        seen = Seen(vector.observation_space, vector.action_space, vector.stack, layout)
        if seen.has_pictures:
            seen = replace(seen, work_per_s=_work_per_s())
        wants_mask = _tells_mask(env, environment, vector) and may_wrap
        if cores > CORES_OF_ONE_ACTOR and not wants_mask:
            seen = replace(seen, step_s=_time_of_a_step(vector))
        return seen, wants_mask
    finally:
        vector.close()


def _tells_mask(env: str, environment: Environment, vector: VectorEnvironment) -> bool:
    """Whether an environment that can have wrappers has an action mask in its info, and not in observations.

    Raises:
        UsageError: the environment cannot be reset, or its mask has another number of actions.
    """
    space = vector.observation_space
    can_be_wrapped = environments.find(environment.type).takes_wrappers
    if not (can_be_wrapped and isinstance(vector.action_space, gymnasium.spaces.Discrete)):
        return False
    try:
        vector.reset(0, vector.new_observations())
    except EnvironmentFailure as error:
        raise UsageError(_failed(env, error)) from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"--env {env} cannot be reset: {describe(error)}") from error
    shows_mask = isinstance(space, gymnasium.spaces.Dict) and ACTION_MASK in space.spaces
    return ACTION_MASK in vector.info_keys and not shows_mask


def _time_of_a_step(vector: VectorEnvironment) -> float:
    """Step one environment at random for a moment, and measure the median seconds of a step.

    Returns:
        0 if stepping fails: an environment may refuse actions that its mask forbids, and the training reports
        any other error.
    """
    times: list[float] = []
    observation = vector.new_observations()
    reward, (terminated, truncated) = np.zeros(1, np.float32), np.zeros((2, 1), np.bool_)
    vector.action_space.seed(0)
    try:
        vector.reset(0, observation)
        began_s = time.monotonic()
        while (stepped_s := time.monotonic() - began_s) < STEPPED_S or (
            len(times) < LEAST_STEPS and stepped_s < LONGEST_S
        ):
            action = np.asarray(vector.action_space.sample())[None]
            began = time.perf_counter()
            vector.step(action, observation, reward, terminated, truncated)
            times.append(time.perf_counter() - began)
    except (Exception, SystemExit):  # noqa: BLE001 - of whatever kind the environment raises
        return 0.0
    return statistics.median(times)


def _work_per_s() -> float:
    """Measure multiply-adds of a core per CPU second, for some milliseconds; other load does not count."""
    factor, times = np.ones((256, 256), np.float32), []
    for _ in range(LEAST_STEPS):
        began_s = time.process_time()
        np.matmul(factor, factor)
        times.append(time.process_time() - began_s)
    return 256**3 / max(min(times), 1e-9)


def _failed(env: str, error: EnvironmentFailure) -> str:
    """Write an error of the environment for the user; names the environment once."""
    text = str(error)
    return f"--env {text}" if text.startswith(env) else f"--env {env}: {text}"


def _named(environment: Environment) -> dict[str, str]:
    return {"type": environment.type} | ({} if environment.id is None else {"id": environment.id})


def _type_of(tree: Tree, section: str) -> object:
    """Read the type that a section names; None if it names none."""
    table = tree.values.get(section)
    return table.get("type") if isinstance(table, dict) else None


def _run_name(env: str, agent: str) -> str:
    """Name the run after agent and environment, in characters that a directory may have."""
    return f"{agent}_{re.sub(r'[^A-Za-z0-9.-]+', '_', env.rpartition(':')[2])}"


def _steps_of(tree: Tree) -> int | None:
    """Read the env steps that end the run; None if something else ends it, or the value is no number."""
    stop = tree.values["experiment"].get("stop")
    steps = stop.get("env_steps") if isinstance(stop, dict) else None
    return int(steps) if isinstance(steps, int | float) and 1 <= steps < 2**63 else None
