"""`tianji export`: writes a run's policy into an ONNX file that acts without tianji, and checks the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tianji_algos.errors import NotExportableError
from tianji_cli.commands.options import Json, Run
from tianji_cli.config.loader import load_run_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed, TianjiError, UsageError, describe, os_errors_as
from tianji_cli.files.exported import CHECKED, SUFFIX, load, port_document, require, written
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory, write_whole
from tianji_cli.quantities import memory
from tianji_cli.telemetry.progress import Progress, say, status
from tianji_cli.telemetry.report import print_lines
from tianji_cli.telemetry.tables import write_json

if TYPE_CHECKING:
    from tianji_algos.rules import ActionRule, Port

SCHEMA: Final = 1
ALLOWED: Final = 1e-4
"""Largest allowed difference of an output; see ``worker.comparison``."""


def export(
    run: Run,
    *,
    kind: Annotated[str, typer.Option("--format", metavar="onnx", help="What the file is to be.")],
    out: Annotated[Path, typer.Option(metavar="X.onnx", help="The file.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="best|last|STEP", help="Which one to write; as the config says by default."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help=f"Compare it with the policy itself over {CHECKED:,} observations."),
    ] = False,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Also sample actions: with an input of noise, as in training.")
    ] = False,
    json_to: Json = None,
) -> int:
    """Write a policy into a file, with its normaliser and how actions are chosen, and print what it takes.

    Example: tianji export ppo_cartpole --format onnx --out policy.onnx --check

    Raises:
        UsageError: there is no such run, checkpoint or format, or it cannot be exported or written.
        RunFailed: the file would not act as the policy does; nothing was written.
    """
    directory = RunDirectory.find(run, DEFAULT_OUT)
    for warning in directory.check():  # The run's config names modules that will run.
        say(f"warning: {warning}")
    _check_file(kind, out)
    require("onnx", f"--format {kind}")
    if check:
        require("onnxruntime", "--check")
    config = load_run_config(str(directory.config))
    name = directory.checkpoint(checkpoint or config.experiment.eval_checkpoint)
    try:
        with status("importing torch", quiet=json_to == "-") as progress:
            content, document, differences = _export(
                directory, config, name, check=check, sampled=sampled, progress=progress
            )
    except NotExportableError as cause:
        raise UsageError(str(cause)) from cause
    except TianjiError:
        raise
    except (Exception, SystemExit) as cause:  # A user's environment, model or agent may raise anything.
        raise RunFailed(f"cannot export {directory.path}: {describe(cause)}") from cause
    _refuse_differences(out, differences)
    with os_errors_as(UsageError, f"--out: cannot write {out}"):
        write_whole(out, content)
    checked = {"observations": CHECKED, "differences": differences} if check else None
    if write_json({"file": str(out), "format": kind, **document, "checked": checked}, json_to):
        print_lines(_described(out, f"{directory.path}, {name}", document, differences))
    return 0


def _check_file(kind: str, out: Path) -> None:
    """Check the format and the file.

    Raises:
        UsageError: there is no such format, or the file cannot be written or has another suffix.
    """
    if kind == "torchscript":
        raise UsageError("--format: torchscript is no format any more, since torch deprecates it; onnx is")
    if kind != "onnx":
        raise UsageError(f"--format: no format {kind!r}; onnx would be right")
    is_directory = os.path.isdir(out)  # Unlike Path's own, it raises nothing for a long name.
    if is_directory or not os.path.isdir(out.parent):
        what = "it is a directory" if is_directory else f"there is no directory {out.parent}"
        raise UsageError(f"--out: cannot write {out}: {what}; a file such as policy{SUFFIX} would be right")
    if out.suffix != SUFFIX:
        raise UsageError(f"--out: {out} is no name for {kind}; {out.with_suffix(SUFFIX)} would be right")


def _export(
    directory: RunDirectory,
    config: JobConfig,
    checkpoint: str,
    *,
    check: bool,
    sampled: bool,
    progress: Progress,
) -> tuple[bytes, dict[str, Any], dict[str, float]]:
    """Build the policy, write it in memory, and compare it with the original if ``check``.

    Returns:
        The file's content, its metadata, and the greatest difference of each output by name.
    """
    # torch is slow to import; errors of the command line are found before.
    from tianji_algos import registry as algorithms  # noqa: PLC0415
    from tianji_algos.export import ExportedPolicy, trace  # noqa: PLC0415
    from tianji_cli.worker.comparison import compare  # noqa: PLC0415
    from tianji_cli.worker.parts import Parts, SavedPolicy  # noqa: PLC0415

    progress.begin("building environment and policy")
    saved = SavedPolicy(Parts(config), directory.checkpoints / checkpoint)
    agent = algorithms.load("agent", config.agent.type)
    rule: ActionRule = agent.rule(saved.parts.spaces, config.agent.settings)
    policy = ExportedPolicy(saved.parts.spaces, saved.model, rule, sampled=sampled)
    progress.begin("tracing what the policy computes")
    traced = trace(policy)
    steps = (directory.checkpoints / checkpoint).resolve().name.removeprefix("best-")
    document = {
        "schema": SCHEMA,
        "tianji": version("tianji"),
        "run": "/".join(directory.path.absolute().parts[-2:]),
        "checkpoint": checkpoint,
        "env_steps": int(steps) if steps.isdecimal() else None,
        "environment": {"type": config.environment.type, "id": config.environment.id},
        "agent": config.agent.type,
        "model": config.model.type,
        "inputs": [_describe(port) for port in policy.inputs],
        "outputs": [_describe(port) for port in policy.outputs],
    }
    progress.begin(f"writing {config.experiment.name} as onnx")
    content = written(traced, policy.made_up(2, seed=0), document)
    if not check:
        return content, document, {}
    progress.begin(f"comparing {CHECKED:,} observations")
    return content, document, compare(saved, policy, load(content))


def _describe(port: Port) -> dict[str, Any]:
    described = port_document(port.name, port.dtype, port.shape, port.meaning)
    return described if port.initial is None else described | {"initial": port.initial}


def _refuse_differences(out: Path, differences: Mapping[str, float]) -> None:
    """Refuse a file that does not act like the policy.

    Raises:
        RunFailed: names the outputs.
    """
    wrong = {name: most for name, most in differences.items() if not most <= ALLOWED}
    if wrong:
        listed = ", ".join(f"{name} by {most:.2g}" for name, most in wrong.items())
        raise RunFailed(
            f"{out} was not written: over {CHECKED:,} observations it is off from the policy itself, "
            f"{listed}; {ALLOWED:g} at most would be right"
        )


def _described(
    out: Path, who: str, document: Mapping[str, Any], differences: Mapping[str, float]
) -> list[str]:
    lines = [f"{out}: {who}, {memory(out.stat().st_size)}"]
    for side in ("inputs", "outputs"):
        for first, port in zip([side, *[""] * len(document[side])], document[side], strict=False):
            shape = ", ".join(map(str, port["shape"]))
            lines.append(f"{first:<9}{port['name']} [{shape}] {port['dtype']}: {port['meaning']}")
    if differences:
        name = max(differences, key=lambda one: differences[one])
        lines.append(f"checked  {CHECKED:,} observations; off by {differences[name]:.2g} at most ({name})")
    return lines
