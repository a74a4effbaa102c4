"""Builds environment, model and layout once: what cannot be built is said before anything runs.

The fork server's first child does it. It reports through a descriptor that it shares with the server, and its
output goes to another one: it has no log, for there is no run yet.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

import setproctitle

from tianji_cli.config.loader import parse_config
from tianji_cli.errors import describe
from tianji_cli.plan.plan import expected_hosts, make_plan
from tianji_cli.plan.spec import BuildSpec
from tianji_cli.wire.messages import BuildOutput, BuildReport, text
from tianji_cli.worker.worker import ParentDeathWatch

FORKABLE: Final = ("tianji_algos.", "tianji_cli.")
"""Packages of which a fork server may import everything: they start no threads and hold no files."""


def check_build(spec: BuildSpec, output: BuildOutput, lifeline: int) -> None:
    """Build what every process of a job will build, and report why it cannot be; exits with status 1 then.

    Args:
        spec: the config, and where its modules are.
        output: takes the report and whatever is printed.
        lifeline: descriptor of the pipe that is cut when the command ends.
    """
    setproctitle.setproctitle("tianji: first build")
    ParentDeathWatch(lifeline, saves=False)
    output.take_prints()
    sys.path[:] = spec.path
    before = set(sys.modules)
    try:
        _build(spec)
        imported = sorted(name for name in sys.modules.keys() - before if name.startswith(FORKABLE))
        report = BuildReport(imported=tuple(imported))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's modules raise
        report = BuildReport(error=text(describe(error)), traceback=text(traceback.format_exc()))
    os.write(output.report, report.model_dump_json().encode())
    sys.exit(1 if report.error else 0)


def _build(spec: BuildSpec) -> None:
    # Imported here: a process started anew has its title and its output before the first slow import.
    from tianji_cli.worker.experience import check_replay_memory  # noqa: PLC0415
    from tianji_cli.worker.parts import Job, Parts  # noqa: PLC0415

    config = parse_config(spec.config)
    plan = make_plan(config, expected_hosts(config))
    parts = Parts(Job("", config, plan, spec.directory), plan.carrying("learner")[0], 0)
    model = parts.model()
    parts.agent(model, 1, seed=0)
    parts.embryo(model)
    _ = parts.layout  # It refuses a model that does not go with the update rule.
    if config.learns_from_replay:
        check_replay_memory(parts, sum(plan.is_local(process.rank) for process in plan.carrying("buffer")))
