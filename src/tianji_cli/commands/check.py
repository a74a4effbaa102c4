"""`tianji check`: plays in an environment for a few seconds, and reports what would go wrong in a training.

gymnasium's own checker runs first. Then come checks that it does not make: numbers, spaces and episodes over
many steps, seeds, copies side by side, speed, and whether another process can build environment and network.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
import typer
from gymnasium.utils.env_checker import check_env

from tianji_algos.fields import ACTION_MASK, leaves_choices, sizes_of_choices
from tianji_algos.models.images import how_seen
from tianji_cli.commands.completion import configs
from tianji_cli.commands.doctor import show_findings
from tianji_cli.commands.options import Json, Override
from tianji_cli.conditions import Finding, Grade, check_machine
from tianji_cli.config.checks import host_warnings
from tianji_cli.config.defaults import AGENTS
from tianji_cli.config.environment import build_environment
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import Environment, JobConfig
from tianji_cli.config.source import find_config
from tianji_cli.config.without_file import ORIGIN, config_without_file, find_environment
from tianji_cli.errors import ConfigError, TianjiError, UsageError, describe, one_line
from tianji_cli.files.directories import remove_stale
from tianji_cli.launch.node import LocalNode
from tianji_cli.limits import pin
from tianji_cli.plan.plan import expected_hosts, make_plan
from tianji_cli.quantities import count, several
from tianji_cli.root.session import job_to_build
from tianji_cli.signals import HangsError, limit
from tianji_cli.telemetry.progress import Progress, say
from tianji_envs.core import VectorEnvironment
from tianji_envs.results import bounds_of, faults, missing_reset
from tianji_envs.serial import SerialVectorEnvironment
from tianji_envs.team import AVAILABLE

Array = npt.NDArray[Any]

COPIES: Final = 4
"""Copies of the environment that are played side by side."""
PLAY_STEPS: Final = 5000
PLAY_S: Final = 5.0
"""Random play ends after ``PLAY_STEPS`` steps of all copies together or ``PLAY_S`` seconds."""
SEED: Final = 7
SEED_STEPS: Final = 300
"""Maximum steps of each copy that is compared with its twin."""
SEED_S: Final = 5.0
"""Seconds after which comparing twins ends before ``SEED_STEPS`` steps."""
SPEED_S: Final = 0.5
LOOK_S: Final = 5.0
"""Maximum seconds of a look if every call returns at once."""
PATIENCE_S: Final = 120.0
"""Default seconds to wait for a call that does not return."""

_NO_MATTER: Final = ("infinity", "symmetric and normalized", "render modes")
"""Words of gymnasium's warnings that do not matter: bounds may be open, and actions are scaled to theirs."""

Target = Annotated[
    str,
    typer.Argument(
        metavar="module:Env|CONFIG",
        help="Your class, an id of gymnasium, or a config.",
        autocompletion=configs,
    ),
]


def check(
    target: Target,
    *,
    overrides: Override = None,
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience",
            metavar="SECONDS",
            min=1.0,
            help="How long a reset or a step may take.",
        ),
    ] = PATIENCE_S,
    json_to: Json = None,
) -> int:
    """Print what was looked at; the exit status is 1 if something is wrong.

    Example: tianji check my_env:MyEnv

    Raises:
        UsageError: there is no such environment; ConfigError: the config cannot be run.
    """
    remove_stale()
    check_machine()
    # The prints of an environment are no part of the result.
    with contextlib.redirect_stdout(sys.stderr), _watched(len(_LOOKS) + 2, json_to) as progress:
        findings = list(_examine(target, overrides or (), patience_s, progress))
    return show_findings(findings, target, "nothing is to be mended", json_to)


def _watched(steps: int, json_to: str | None) -> Progress:
    progress = Progress(steps, json_to == "-", ticks=True, plain=False)
    progress.begin(f"building {COPIES} copies")
    return progress


def _examine(
    target: str, overrides: Sequence[str], patience_s: float, progress: Progress
) -> Iterator[Finding]:
    job = None
    if target.endswith(".toml") or find_config(target, Path.cwd()) is not None:
        job = load_config(target, overrides)
        yield Finding("config", "its keys and values fit one another")
        yield from (
            Finding("config", warning, "warning", "") for warning in (*job.notes, *host_warnings(job))
        )
    section = job.environment if job is not None else _environment(target, overrides)
    try:
        with _patient(patience_s):
            environment = build_environment(section, COPIES)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's environment may raise anything
        yield Finding("built", _describe(error), "problem", "mend its constructor, or what it is given")
        return
    observation, action = environment.observation_space, environment.action_space
    yield Finding("built", f"{COPIES} copies: observations {observation}, actions {action}")
    for subject, look in _LOOKS.items():
        progress.done()
        progress.begin(subject)
        try:
            with _patient(LOOK_S + patience_s):
                yield from list(look(section, environment))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - likewise
            yield Finding(subject, _describe(error), "problem", "mend what is named there, and check again")
            return
    # The copies above are still open: files, ports and devices for one process at a time show now.
    progress.done()
    progress.begin("processes: building environment and model")
    jobs = [job] if job is not None else []
    if job is None:
        yield from _agents(target, overrides, jobs)
    yield from _processes(jobs, environment)
    try:
        with _patient(patience_s):
            environment.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - likewise
        yield Finding(
            "closing", _describe(error), "problem", "mend close(), which every process calls at its end"
        )


@contextlib.contextmanager
def _patient(patience_s: float) -> Iterator[None]:
    """Limit the time of the body.

    Raises:
        TimeoutError: the time is up; the error's cause has the line that did not return.
    """
    try:
        with limit(patience_s):
            yield
    except HangsError as cause:
        raise TimeoutError(
            f"a call had not returned after {patience_s:g} s; --patience SECONDS waits longer"
        ) from cause


def _environment(target: str, overrides: Sequence[str]) -> Environment:
    """Find an environment that no config names.

    Raises:
        ConfigError: there is no such environment; the problems name the command's argument.
    """
    try:
        return find_environment(target, overrides)
    except ConfigError as error:
        raise ConfigError(
            [replace(one, where=target) if one.where == ORIGIN else one for one in error.problems]
        ) from error


def _describe(error: BaseException) -> str:
    """Describe an exception, and its line in the user's own code."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    libraries = (
        os.sep + "site-packages" + os.sep,
        str(Path(__file__).parents[1]),
        str(Path(os.__file__).parent),
    )
    own = [frame for frame in frames if not any(library in frame.filename for library in libraries)]
    own = [frame for frame in own if f"{os.sep}tianji_" not in frame.filename]
    return describe(error) + (f" ({own[-1].filename}:{own[-1].lineno})" if own else "")


def _gymnasium(section: Environment, _environment: VectorEnvironment) -> Iterator[Finding]:
    """Run gymnasium's checker on a copy without wrappers."""
    subject = "gymnasium's checker"
    if section.type == "gym":
        single: gymnasium.Env[Any, Any] | None = gymnasium.make(section.id or "", **section.options).unwrapped
    else:
        of_its_own = build_environment(section, 1)
        single = of_its_own.first_of_gymnasium if isinstance(of_its_own, SerialVectorEnvironment) else None
    if single is None:
        yield Finding(subject, "has no say: it is none of gymnasium's")
        return
    complaints: list[str] = []
    with contextlib.closing(single), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            check_env(single, skip_render_check=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it asserts, and a user's environment may raise anything
            yield Finding(
                subject, _describe(error), "problem", "https://gymnasium.farama.org/api/env has the contract"
            )
        for one in warned:
            text = one_line(re.sub(r"\x1b\[\d*m|^WARN: ", "", re.sub(r"\x1b\[\d*m", "", str(one.message))))
            if text not in complaints and not any(words in text for words in _NO_MATTER):
                complaints.append(text)
                yield Finding(
                    subject, text, "warning", "https://gymnasium.farama.org/api/env has the contract"
                )
    if not complaints:
        yield Finding(subject, "has nothing to say")


class _Play:
    """Steps copies of an environment with random actions, and owns the arrays of their results."""

    def __init__(self, environment: VectorEnvironment, seed: int) -> None:
        n = environment.num_envs
        self.environment = environment
        self.observation = environment.new_observations()
        self.bounds = bounds_of(environment.observation_space, n)
        self.reward = np.zeros(n, np.float32)
        self.terminated, self.truncated = np.zeros(n, bool), np.zeros(n, bool)
        self._random = np.random.default_rng(seed)
        environment.action_space.seed(seed)
        environment.reset(seed, self.observation)

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """Whether each copy's episode ended with the step."""
        return self.terminated | self.truncated

    @property
    def masks_choices(self) -> bool:
        """Whether observations have an action mask that fits the action space."""
        sizes = sizes_of_choices(self.environment.action_space)
        return (
            ACTION_MASK in (self.observation.dtype.names or ())
            and bool(sizes)
            and self.observation[ACTION_MASK].shape[1:] == (sum(sizes),)
        )

    def draw(self) -> Array:
        """Draw random actions; only available ones if the observation has a mask."""
        names = self.observation.dtype.names or ()
        for masks in (AVAILABLE, ACTION_MASK):
            if masks in names and not isinstance(self.environment.action_space, gymnasium.spaces.Box):
                there = self.observation[masks].astype(bool)
                drawn: Array = np.where(there, self._random.random(there.shape), -1.0).argmax(axis=-1)
                if drawn.shape[1:] == (self.environment.action_space.shape or ()):
                    return drawn
        return np.stack([self.environment.action_space.sample() for _ in self.reward])

    def step(self, actions: Array) -> None:
        """Act once in every copy."""
        self.environment.step(actions, self.observation, self.reward, self.terminated, self.truncated)


def _played(_section: Environment, environment: VectorEnvironment) -> Iterator[Finding]:
    """Play at random, and check every number."""
    play = _Play(environment, SEED)
    faults: dict[str, Finding] = {}

    def note(subject: str, found: str, remedy: str, grade: Grade = "problem") -> None:
        faults.setdefault(subject, Finding(subject, found, grade, remedy))

    steps, episodes, ended, low, high = 0, 0, play.ended, np.inf, -np.inf
    until_s = time.monotonic() + PLAY_S
    _look_at(play, "reset()", note)
    while steps < PLAY_STEPS and (steps == 0 or time.monotonic() < until_s):
        play.step(play.draw())
        steps += environment.num_envs
        where = f"step {steps // environment.num_envs}"
        _look_at(play, where, note)
        if not np.isfinite(play.reward).all():
            note("rewards", f"{where} gave {play.reward[~np.isfinite(play.reward)][0]}", "give finite ones")
        if fault := missing_reset(ended, play.reward, play.terminated, play.truncated):
            what, _, remedy = fault[1].partition(". ")
            note("autoreset", f"copy {fault[0]} {what}", remedy)
        given = play.reward[~ended]
        low, high = min(low, given.min(initial=low)), max(high, given.max(initial=high))
        ended = play.ended
        episodes += int(ended.sum())
    if not episodes:
        what = f"none has ended in {several(steps // environment.num_envs, 'step')} of random actions"
        note("episodes", what, "if they never end, set environment.max_episode_steps", "warning")
    of_all = f"in {count(steps)} steps"
    fine = {
        "observations": f"finite and as observation_space says, {of_all}",
        "rewards": f"finite, from {low:g} to {high:g}",
        "episodes": f"{several(episodes, 'episode')} {of_all}",
        "autoreset": "the step after an episode's end begins another",
    }
    if play.masks_choices:
        fine[ACTION_MASK] = f"leaves something to choose, {of_all}"
    yield from (faults.get(subject, Finding(subject, found)) for subject, found in fine.items())


def _look_at(play: _Play, where: str, note: Callable[..., None]) -> None:
    """Note the faults of a step's observations."""
    for fault in faults(play.observation[None], play.bounds):
        what = f"{where}: copy {fault.copy} {fault.gave}"
        note("observations", what, fault.wanted, "warning" if fault.outside else "problem")
    if not play.masks_choices:
        return
    leaves = leaves_choices(play.observation[ACTION_MASK], play.environment.action_space)
    if not (leaves | play.ended).all():
        note(ACTION_MASK, f"{where} forbade every action", "allow one at least unless the episode is over")


def _seeding(section: Environment, _environment: VectorEnvironment) -> Iterator[Finding]:
    """Play twice with the same seed and the same actions, and compare the results."""
    twins = [build_environment(section, 2) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for twin in twins:
            stack.enter_context(contextlib.closing(twin))
        one, other = (_Play(twin, SEED) for twin in twins)
        remedy = "draw every random number from self.np_random, which reset(seed=...) begins anew"
        until_s = time.monotonic() + SEED_S
        step = 0
        while step < SEED_STEPS and (step < 2 or time.monotonic() < until_s):
            differing = [
                what
                for what in ("observation", "reward", "terminated", "truncated")
                if getattr(one, what).tobytes() != getattr(other, what).tobytes()
            ]
            if differing:
                where = f"step {step}" if step else "reset()"
                found = f"with one seed, two copies differ in {', '.join(differing)} at {where}"
                yield Finding("seeding", found, "problem", remedy)
                return
            actions = one.draw()
            one.step(actions)
            other.step(actions)
            step += 1
    yield Finding("seeding", f"a seed repeats itself, over {several(step, 'step')}")


def _speed(_section: Environment, environment: VectorEnvironment) -> Iterator[Finding]:
    """Measure the speed of steps on one core."""
    began_s = time.perf_counter()
    play = _Play(environment, SEED)
    reset_s = (time.perf_counter() - began_s) / environment.num_envs
    cores = os.sched_getaffinity(0)
    pin({min(cores)})
    try:
        steps, spent_s = 0, 0.0
        while spent_s < SPEED_S:
            actions = play.draw()
            began_s = time.perf_counter()
            play.step(actions)
            spent_s += time.perf_counter() - began_s
            steps += environment.num_envs
    finally:
        pin(cores)
    yield Finding(
        "speed", f"{count(steps / spent_s)} env steps/s on one core; a reset takes {1e3 * reset_s:.1f} ms"
    )


_LOOKS: Final[Mapping[str, Callable[[Environment, VectorEnvironment], Iterator[Finding]]]] = {
    "gymnasium's checker": _gymnasium,
    "played": _played,
    "seeding": _seeding,
    "speed": _speed,
}
"""Checks of an environment, by the subject under which an exception is reported."""


def _agents(env: str, overrides: Sequence[str], jobs: list[JobConfig]) -> Iterator[Finding]:
    """Ask each agent that has defaults whether it can act here; adds the jobs of those that can."""
    refusals = {}
    for agent in AGENTS:
        try:
            jobs.append(config_without_file(env, agent, overrides))
        except TianjiError as error:
            refusals[agent] = re.sub(r"^--(agent|env) \S+: ", "", str(error).partition("\n")[0])
    able = ", ".join(job.agent.type for job in jobs)
    if able:
        yield Finding("agents", f"{able} can act in it")
    else:
        yield Finding(
            "agents", f"none of {', '.join(AGENTS)} can act in it", "problem", next(iter(refusals.values()))
        )


def _processes(jobs: Sequence[JobConfig], environment: VectorEnvironment) -> Iterator[Finding]:
    """Build environment, network and fragments in another process, as a training does first."""
    if not jobs:
        return
    job = jobs[0]
    try:
        with LocalNode() as node:
            node.build_once(job_to_build(job, make_plan(job, expected_hosts(job)), Path.cwd()), say)
    except UsageError as error:
        only_one = "it was built above: files, ports or devices may be only one process's at a time"
        remedy = only_one if "cannot be built" in str(error) else "mend what is named there, and check again"
        yield Finding("processes", one_line(str(error)), "problem", remedy)
        return
    yield Finding("processes", f"one of its own has built it, with {job.agent.type}'s network and fragments")
    if ":" not in job.model.type and not environment.agents:
        space, layout = environment.observation_space, job.environment.image_layout
        parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {"the observation": space}
        seen = [f"{name}: {how_seen(one, layout)}" for name, one in parts.items() if name != ACTION_MASK]
        yield Finding("network", f"{job.model.type} sees {'; '.join(seen)}")
