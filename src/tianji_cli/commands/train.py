"""`tianji train`: its options, and the fork server that it starts before it imports the rest of itself."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from tianji_cli.commands.completion import agents, environments, runs, transports
from tianji_cli.commands.options import ConfigToTrain, Json, Name, Override, Quiet, Resume, Runs
from tianji_cli.launch.ranks import launched
from tianji_cli.launch.server_process import ServerProcess

Env = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Train here by defaults, without a file.", autocompletion=environments),
]
Agent = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="With --env: ppo (the default), dqn, sac or td3.", autocompletion=agents
    ),
]
InitFrom = Annotated[
    str | None,
    typer.Option(
        "--init-from",
        metavar="RUN[:CHECKPOINT]|FILE",
        help="Begin with what another run has learnt, or with a file of safetensors.",
        autocompletion=runs,
    ),
]
RunIn = Annotated[
    Path | None, typer.Option("--run", metavar="DIR", help="Use the directory that `tianji launch` made.")
]
Listen = Annotated[
    str | None, typer.Option(metavar="tcp://HOST:PORT", help="Where hosts that join reach this one.")
]
Transport = Annotated[
    str | None,
    typer.Option(help="Engine of every edge, in place of the config's.", autocompletion=transports),
]
Device = Annotated[
    str | None,
    typer.Option(help="Where learners compute, such as cpu or cuda; actors: distribution.actor.device."),
]
Seeds = Annotated[
    str | None,
    typer.Option(metavar="N|LIST", help="Train several seeds side by side: 5 of them, or 3,7,11."),
]
Trace = Annotated[
    float | None,
    typer.Option(metavar="S", help="Trace S seconds of the training, from the first update on: a timeline."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print who would run where, and start nothing; --out X.svg draws it."),
]


def train(  # noqa: PLR0913 - the options of a command are its parameters
    config: ConfigToTrain = None,
    *,
    env: Env = None,
    agent: Agent = None,
    overrides: Override = None,
    name: Name = None,
    out: Runs = None,
    resume: Resume = None,
    init_from: InitFrom = None,
    run_in: RunIn = None,
    listen: Listen = None,
    transport: Transport = None,
    device: Device = None,
    seeds: Seeds = None,
    trace: Trace = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json_to: Json = None,
) -> int:
    """Run a job from a config or by defaults for an environment, or go on with an earlier run.

    Example: tianji train --env CartPole-v1 --agent ppo --set training.learning_rate=0.001

    Started by mpiexec or srun with several tasks, all ranks come here: the first is the root, the others
    serve it.

    Raises:
        UsageError: the command does not fit together, or wants a GPU; ConfigError: the config cannot be run.
        RunFailed: the run began and could not be finished.
    """
    launch = launched()
    with nullcontext() if launch is not None else ServerProcess(preload=True) as early:
        # Imported here, while the server imports torch.
        from tianji_cli.commands.training import Options, run_training  # noqa: PLC0415

        options = Options(
            config=config,
            env=env,
            agent=agent,
            overrides=overrides or (),
            name=name,
            out=out,
            resume=resume,
            init_from=init_from,
            run_in=run_in,
            listen=listen,
            transport=transport,
            device=device,
            seeds=seeds,
            trace=trace,
            dry_run=dry_run,
            quiet=quiet,
            json_to=json_to,
        )
        return run_training(options, launch, early)
