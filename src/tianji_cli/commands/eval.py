"""`tianji eval`: plays greedy episodes with a policy that a run has saved."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tianji_cli.cluster.cleanup import remove_stale
from tianji_cli.commands.animation import Animation
from tianji_cli.config.loader import load_config
from tianji_cli.errors import RunFailed, TianjiError, UsageError, describe
from tianji_cli.telemetry.report import write_json
from tianji_cli.telemetry.rundir import DEFAULT_OUT, RunDirectory

if TYPE_CHECKING:
    from tianji_cli.cluster.assembly import Assembly
    from tianji_envs.core import VectorEnvironment


def evaluate(
    run: str,
    *,
    episodes: int = 100,
    seed: int | None = None,
    checkpoint: str = "best",
    render: Path | None = None,
    out: Path | None = None,
    json_to: str | None = None,
) -> int:
    """Evaluate a checkpoint and print what came of it.

    Args:
        run: path of the run, ``name/n``, or ``name`` for its newest.
        episodes: how many to play.
        seed: of the environments.
        checkpoint: ``best``, ``last``, or a step that is kept.
        render: file for an animation (GIF) of the first episode.
        out: directory of runs, in place of ``experiments``.
        json_to: file for the figures, ``-`` for stdout.

    Raises:
        UsageError: there is no such run or checkpoint, or the animation cannot be written.
        RunFailed: the environment or the agent could not be built or did not play.
    """
    remove_stale()
    directory = RunDirectory.find(run, DEFAULT_OUT if out is None else out)
    config = load_config(str(directory.config))
    name = _find_checkpoint(directory, checkpoint)
    # torch is slow to import, and what the command line got wrong is known by now.
    from tianji_cli.cluster.assembly import Assembly  # noqa: PLC0415
    from tianji_cli.cluster.parts import Job  # noqa: PLC0415
    from tianji_cli.cluster.plan import make_plan  # noqa: PLC0415

    plan = make_plan(config)
    # As the root, which computes on a CPU: a run that used GPUs may be judged where there is none.
    assembly = Assembly(Job("", config, plan, directory.path), plan.processes[0], 0)
    try:
        returns = _play(assembly, episodes, seed, name, render)
    except TianjiError:
        raise
    except Exception as cause:  # Whatever the user's own environment or agent may raise.
        raise RunFailed(f"cannot evaluate {directory.path}: {describe(cause)}") from cause
    _show(returns, directory, name, json_to)
    return 0


def _play(
    assembly: Assembly, episodes: int, seed: int | None, checkpoint: str, render: Path | None
) -> list[float]:
    """Play all episodes, and draw the first of them if that is wanted."""
    animation = None if render is None else Animation(render)

    def draw(environment: VectorEnvironment) -> None:
        if animation is not None and not animation.closed:
            animation.add(environment.render())

    with ExitStack() as stack:
        if animation is not None:
            stack.callback(animation.close)
        evaluator = assembly.evaluator(episodes, seed, checkpoint, None if animation is None else draw)
        stack.callback(evaluator.close)
        while evaluator.finished is None:
            evaluator.turn()
            if animation is not None and evaluator.returns:
                animation.close()
        return evaluator.returns


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


def _show(returns: list[float], directory: RunDirectory, checkpoint: str, json_to: str | None) -> None:
    figures = {
        "episodes": len(returns),
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "min": min(returns),
        "max": max(returns),
    }
    if json_to is not None:
        write_json({**figures, "returns": returns}, json_to)
    if json_to != "-":
        print(  # noqa: T201 - the command's result
            f"{directory.path}, {checkpoint}: mean {figures['mean']:.1f} +- {figures['std']:.1f} over "
            f"{len(returns)} greedy episodes (min {figures['min']:.1f}, max {figures['max']:.1f})"
        )
