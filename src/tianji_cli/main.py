"""The `tianji` command: reads the command line, calls one function, turns errors into exit statuses.

Nothing heavy is imported before it is known which command runs: `tianji --help` costs what typer costs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Sequence
from importlib.metadata import version
from json import dumps
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated

import typer

from tianji_cli.commands import bench_app
from tianji_cli.errors import ConfigError, TianjiError, describe, printable
from tianji_cli.signals import INTERRUPTED, Interruption

app = typer.Typer(
    name="tianji",
    help="Distributed reinforcement learning with relaxed assignment dependencies.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
launch = typer.Typer(help="Start a job on a cluster.", no_args_is_help=True)
app.add_typer(launch, name="launch")
app.add_typer(bench_app.app, name="bench")

JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write the figures as JSON; - is stdout.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Replace a setting; repeatable."),
]
NameOption = Annotated[str | None, typer.Option(help="Name of the experiment.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Runs are in DIR, not experiments/.")
]


@app.callback(invoke_without_command=True)
def common(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Distributed reinforcement learning with relaxed assignment dependencies."""
    del debug  # Declared for the help's sake; main() takes it out wherever it stands.
    if show_version:
        typer.echo(f"tianji {version('tianji')}")
        raise typer.Exit


@app.command()
def train(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="A TOML file, or a shipped one's name.")
    ] = None,
    set_: SetOption = None,
    name: NameOption = None,
    out: OutOption = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with a run from its last checkpoint.")
    ] = None,
    run_in: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Use the directory that `tianji launch` made.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Where hosts that join reach this one.")
    ] = None,
    transport: Annotated[
        str | None, typer.Option(help="Engine of every edge, in place of the config's.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Where learners compute, such as cpu or cuda; actors: distribution.actor.device."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print who would run where, and start nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    json: JsonOption = None,
) -> None:
    """Train from a config, or go on with an earlier run."""
    from tianji_cli.commands.train import train as run  # noqa: PLC0415

    overrides = list(set_ or [])
    overrides += [f"distribution.transport={dumps(transport)}"] if transport else []
    overrides += [f"distribution.device={dumps(device)}"] if device else []
    status = run(
        config,
        overrides=overrides,
        name=name,
        out=out,
        resume=resume,
        run_in=run_in,
        listen=listen,
        dry_run=dry_run,
        quiet=quiet,
        json_to=json,
    )
    raise typer.Exit(status)


@app.command(name="eval")
def evaluate(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    run: Annotated[str, typer.Argument(metavar="RUN", help="Path of a run, NAME/N, or NAME for its newest.")],
    episodes: Annotated[int, typer.Option(min=1, help="Greedy episodes to play.")] = 100,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the environments.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="best|last|STEP", help="Which one to play with; as the config says by default."),
    ] = None,
    policy: Annotated[
        str, typer.Option(metavar="trained|random|heuristic", help="Who plays: the trained one by default.")
    ] = "trained",
    max_s: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.001, help="Longest time; the config's eval_max_s by default."),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most env steps; the config's eval_max_steps by default."),
    ] = None,
    render: Annotated[
        Path | None, typer.Option(metavar="X.gif", help="Save an animated GIF of the first episode.")
    ] = None,
    out: OutOption = None,
    json: JsonOption = None,
) -> None:
    """Play greedy episodes with a policy that a run has saved."""
    from tianji_cli.commands.eval import evaluate as play  # noqa: PLC0415

    raise typer.Exit(
        play(
            run,
            episodes=episodes,
            seed=seed,
            checkpoint=checkpoint,
            policy=policy,
            max_s=max_s,
            max_steps=max_steps,
            render=render,
            out=out,
            json_to=json,
        )
    )


@app.command()
def watch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Path of a run, NAME/N, or NAME for its newest.")],
    out: OutOption = None,
    json: JsonOption = None,
) -> None:
    """Show a run that is going on, until it is over, and then its result."""
    from tianji_cli.commands.watch import watch as look_on  # noqa: PLC0415

    raise typer.Exit(look_on(run, out=out, json_to=json))


@app.command()
def join(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="tcp://HOST:PORT of the job's root.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The job's key, job.key of its run directory.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Take part in a job of another host, until it is over."""
    from tianji_cli.commands.join import join as take_part  # noqa: PLC0415

    raise typer.Exit(take_part(address, key, quiet=quiet))


@launch.command()
def slurm(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file, or a shipped one's name.")],
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes to ask for.")],
    print_: Annotated[bool, typer.Option("--print", help="Print the script, and make nothing.")] = False,
    partition: Annotated[str | None, typer.Option(help="Where to queue.")] = None,
    time: Annotated[
        str | None, typer.Option(metavar="LIMIT", help="As Slurm writes it, such as 2:00:00.")
    ] = None,
    account: Annotated[str | None, typer.Option(help="Whom to charge.")] = None,
    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="CPUs of each node; what the plan uses by default.")
    ] = None,
    set_: SetOption = None,
    name: NameOption = None,
    out: OutOption = None,
) -> None:
    """Write a batch script into a new run directory, and submit it."""
    from tianji_cli.commands.launch import launch_slurm  # noqa: PLC0415
    from tianji_cli.launch.slurm import Request  # noqa: PLC0415

    request = Request(nodes, partition, time, account, cpus_per_node)
    raise typer.Exit(
        launch_slurm(config, request, overrides=set_ or (), name=name, out=out, print_only=print_)
    )


@app.command()
def profile(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A TOML file, or a shipped one's name.")
    ] = "configs/ppo_cartpole.toml",
    cores: Annotated[
        int | None,
        typer.Option(metavar="M", min=1, help="Cores of each node; as many as measured by default."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="How many, like this one; the config's hosts by default."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="G", min=1, help="Of each node, for learners on cuda.")
    ] = None,
    link_mb: Annotated[
        float | None,
        typer.Option(metavar="MB/S", help="What the link between nodes carries; else no limit."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Train for some seconds with the choice and with others.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the config with the recommended split.")
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="Take what an earlier profile's --json measured."),
    ] = None,
    set_: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write profile.json and profile.png into DIR.")
    ] = None,
    json: JsonOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Measure what a config's parts cost here, and recommend how to split the cores among them.

    Measured is this machine, in most of a minute; nothing with --from.
    What cannot be measured on it, as other --cores, --nodes and --gpus, is reckoned.
    """
    from tianji_cli.commands.profile import Options  # noqa: PLC0415
    from tianji_cli.commands.profile import profile as run  # noqa: PLC0415

    options = Options(
        config=config,
        overrides=tuple(set_ or ()),
        cores=cores,
        nodes=nodes,
        gpus=gpus,
        link_mb_per_s=link_mb,
        verify=verify,
        write=write,
        out=out,
        earlier=from_,
        quiet=quiet,
        json_to=json,
    )
    raise typer.Exit(run(options))


@app.command(name="list")
def list_(
    kind: Annotated[
        str, typer.Argument(metavar="agents|models|environments|roles|transports", help="What to list.")
    ],
    json: JsonOption = None,
) -> None:
    """List what a config can name."""
    from tianji_cli.commands.list import list_things  # noqa: PLC0415

    raise typer.Exit(list_things(kind, json))


@app.command()
def doctor(json: JsonOption = None) -> None:
    """Look at this machine and say what would keep a training from running."""
    from tianji_cli.commands.doctor import examine  # noqa: PLC0415

    raise typer.Exit(examine(json))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; the entry point of the `tianji` script.

    Args:
        arguments: what follows the program's name; the process's own by default.
    """
    # Every process of a job sums in the same order, or runs would not repeat themselves: workers set their
    # own numbers of threads, and libraries that read these when they are imported get one.
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    _raise_descriptor_limit()
    # A run executes and trusts what lies in its directories: only its user may write there.
    os.umask(os.umask(0) | 0o022)
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Every command takes --debug, before or after its name.
    sys.exit(_status_of([word for word in words if word != "--debug"], debug="--debug" in words))


def _raise_descriptor_limit() -> None:
    """Let this process and its children open as many files and connections as the system grants them.

    The soft limit is 1,024 in most places, for the sake of ``select``, which nothing here calls with a
    descriptor beyond that.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # A system may refuse; then the soft limit counts.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _status_of(arguments: Sequence[str], *, debug: bool) -> int:
    """Run a command and turn whatever it raises into an exit status and a message of a few lines."""
    try:
        app(args=arguments, prog_name="tianji")
    except TianjiError as error:
        if debug:
            raise
        # A config's problems begin with their file, as a compiler's do.
        _complain(str(error) if isinstance(error, ConfigError) else f"tianji: error: {error}")
        return error.exit_status
    except (Interruption, KeyboardInterrupt):
        _complain("tianji: interrupted")
        return INTERRUPTED
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except Exception as error:
        if debug:
            raise
        _complain(f"tianji: error: {describe(error)}\n(--debug shows where it came from)")
        return 1
    return 0


def _complain(message: str) -> None:
    """Write to stderr: on a terminal long lines break between words, in a pipe they stay whole."""
    message = printable(message)
    if sys.stderr.isatty():
        width = max(20, get_terminal_size().columns)
        lines = [
            wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in message.split("\n")
        ]
        message = "\n".join("\n".join(parts) for parts in lines)
    sys.stderr.write(f"{message}\n")


if __name__ == "__main__":
    main()
