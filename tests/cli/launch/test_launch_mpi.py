"""A command hands its options and environment on to the ranks that mpiexec starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch import mpi as mpiexec


@pytest.mark.parametrize("resumed", [False, True])
def test_ranks_are_told_what_the_command_has_chosen_and_built_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    said: list[str] = []
    code = {f"module{number}": "0" * 64 for number in range(5000)}  # More than an environment takes.
    run = RunDirectory.create("x", tmp_path)

    def ranks(processes: int, more: Sequence[str]) -> int:
        said.extend(more)
        assert mpiexec.code_of_job(run) == code
        run.summary.write_text(json.dumps({"status": "finished", "reason": ""}))
        return 0

    monkeypatch.setattr(mpiexec, "run_again_under_mpiexec", ranks)
    job = load_config("ppo_cartpole", ["distribution.actor.num=3", "distribution.pin_cores=false"])
    assert mpiexec.run_under_mpiexec(job, 6, run, code, resumed=resumed) == 0
    assert not (run.path / mpiexec.CODE).exists()
    told = ["--set", "distribution.actor.num=3", "--set", "distribution.pin_cores=false"]
    assert said == (told if resumed else [*told, "--run", str(run.path)])
