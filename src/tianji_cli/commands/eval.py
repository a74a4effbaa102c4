"""`tianji eval`: plays greedy episodes with a policy that a run has saved, or with one to compare it with."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tianji_cli.cluster.cleanup import remove_stale
from tianji_cli.commands.animation import Animation
from tianji_cli.config.loader import load_config
from tianji_cli.config.problems import did_you_mean
from tianji_cli.errors import RunFailed, TianjiError, UsageError, describe
from tianji_cli.roles.baselines import BASELINES, Baseline
from tianji_cli.telemetry.evaluation import Evaluation
from tianji_cli.telemetry.quantities import share
from tianji_cli.telemetry.report import of_agents, write_json
from tianji_cli.telemetry.rundir import DEFAULT_OUT, RunDirectory

if TYPE_CHECKING:
    from tianji_cli.cluster.assembly import Assembly
    from tianji_cli.roles.evaluator import Evaluator
    from tianji_envs.core import VectorEnvironment

TRAINED: Final = "trained"
"""The policy that a run has saved."""


def evaluate(
    run: str,
    *,
    episodes: int = 100,
    seed: int | None = None,
    checkpoint: str | None = None,
    policy: str = TRAINED,
    render: Path | None = None,
    out: Path | None = None,
    json_to: str | None = None,
) -> int:
    """Evaluate a checkpoint, or a baseline in the same environments, and print what came of it.

    Args:
        run: path of the run, ``name/n``, or ``name`` for its newest.
        episodes: how many to play.
        seed: of the environments.
        checkpoint: ``best``, ``last``, or a step that is kept; the config's choice by default.
        policy: ``trained``, ``random`` or ``heuristic``.
        render: file for an animation (GIF) of the first episode.
        out: directory of runs, in place of ``experiments``.
        json_to: file for the figures, ``-`` for stdout.

    Raises:
        UsageError: there is no such run, checkpoint or policy, or the animation cannot be written.
        RunFailed: the environment or the agent could not be built or did not play.
    """
    remove_stale()
    directory = RunDirectory.find(run, DEFAULT_OUT if out is None else out)
    for warning in directory.check():  # Its config names modules that will run.
        sys.stderr.write(f"tianji: warning: {warning}\n")
    config = load_config(str(directory.config))
    untrained = _baseline(policy, checkpoint)
    wanted = checkpoint or config.experiment.eval_checkpoint
    name = _find_checkpoint(directory, wanted) if untrained is None else ""
    # torch is slow to import, and what the command line got wrong is known by now.
    from tianji_cli.cluster.assembly import Assembly  # noqa: PLC0415
    from tianji_cli.cluster.parts import Job  # noqa: PLC0415
    from tianji_cli.cluster.plan import make_plan  # noqa: PLC0415

    plan = make_plan(config)
    # As the root, which computes on a CPU: a run that used GPUs may be judged where there is none.
    assembly = Assembly(Job("", config, plan, directory.path), plan.processes[0], 0)
    try:
        evaluator = _play(assembly, episodes, seed, name, untrained, render)
    except TianjiError:
        raise
    except Exception as cause:  # Whatever the user's own environment or agent may raise.
        raise RunFailed(f"cannot evaluate {directory.path}: {describe(cause)}") from cause
    _show(evaluator, f"{directory.path}, {name or f'{untrained} policy'}", untrained, json_to)
    return 0


def _baseline(policy: str, checkpoint: str | None) -> Baseline | None:
    """Say which untrained policy is to play; None: the trained one.

    Raises:
        UsageError: there is no such policy, or none that has checkpoints.
    """
    if policy == TRAINED:
        return None
    found = next((name for name in BASELINES if name == policy), None)
    if found is None:
        known = (TRAINED, *BASELINES)
        raise UsageError(f"--policy: no policy {policy!r}; {did_you_mean(policy, known, 'policies')}")
    if checkpoint is not None:
        raise UsageError(f"--checkpoint says which trained policy plays, and --policy {policy} is none")
    return found


def _play(
    assembly: Assembly,
    episodes: int,
    seed: int | None,
    checkpoint: str,
    untrained: Baseline | None,
    render: Path | None,
) -> Evaluator:
    """Play all episodes, and draw the first of them if that is wanted."""
    animation = None if render is None else Animation(render)

    def draw(environment: VectorEnvironment) -> None:
        if animation is not None and not animation.closed:
            animation.add(environment.render())

    with ExitStack() as stack:
        if animation is not None:
            stack.callback(animation.close)
        on_step = None if animation is None else draw
        evaluator = assembly.evaluator(episodes, seed, checkpoint, on_step, untrained)
        stack.callback(evaluator.close)
        while evaluator.finished is None:
            evaluator.turn()
            if animation is not None and evaluator.returns:
                animation.close()
        return evaluator


def _find_checkpoint(directory: RunDirectory, checkpoint: str) -> str:
    name = f"{int(checkpoint):012d}" if checkpoint.isdecimal() else checkpoint
    if not (directory.checkpoints / name / "model.safetensors").is_file():
        kept = [
            path.name.lstrip("0") or "0"
            for path in sorted(directory.checkpoints.glob("*"))
            if path.name.isdecimal()
        ]
        raise UsageError(
            f"{directory.path} has no checkpoint {checkpoint!r}; there are best, last, {', '.join(kept)}"
            if kept
            else f"{directory.path} has no checkpoints yet"
        )
    return name


def _show(evaluator: Evaluator, who: str, untrained: Baseline | None, json_to: str | None) -> None:
    """Print what came of it, for people or programs. Of wins and agents only where there are any."""
    returns = evaluator.returns
    evaluation = Evaluation.of(returns, evaluator.win_rate, evaluator.agents)
    if json_to is not None:
        figures = {"policy": untrained, **asdict(evaluation)}
        known = {name: value for name, value in figures.items() if value is not None}
        write_json({**known, "min": min(returns), "max": max(returns), "returns": returns}, json_to)
    if json_to == "-":
        return
    kind = "greedy episodes" if untrained is None else "episodes"
    won = "" if evaluation.win_rate is None else f", {share(evaluation.win_rate)} won"
    lines = [
        f"{who}: mean {evaluation.mean:.1f} +- {evaluation.std:.1f} over "
        f"{len(returns)} {kind}{won} (min {min(returns):.1f}, max {max(returns):.1f})"
    ]
    if evaluation.agents is not None:
        lines.append(f"mean of each agent: {of_agents(evaluation.agents)}")
    print("\n".join(lines))  # noqa: T201 - the command's result
