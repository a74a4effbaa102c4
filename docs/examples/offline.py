"""Trains on recorder.py's files, and steps no environment: python offline.py RUN --updates 5000.

Writes a run directory for `tianji eval`.
"""

# ruff: noqa: T201 - a script prints

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Two threads take three times as long for so small a network.

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Discrete
from recorder import read_layout

from tianji_algos.core import Model
from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.errors import TianjiError
from tianji_cli.files.checkpoint import CheckpointWriter, TrainingState
from tianji_cli.files.saved import Progress
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import make_plan
from tianji_cli.roles.buffer.replay.replay import PRIORITY, Replay, ReplaySettings
from tianji_cli.roles.learner.learner import Episodes
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_cli.worker.builder import Builder


def read_fragments(file: Path, layout: FragmentLayout) -> Iterator[Fragment]:
    """Map a file into memory, and yield its fragments one after the other, each checked.

    Raises:
        SystemExit: a fragment is damaged, or has another layout.
    """
    whole, rest = divmod(file.stat().st_size, layout.nbytes)
    if rest:
        print(f"{file}: the last fragment is cut off and left out ({rest} of {layout.nbytes} bytes)")
    memory = np.memmap(file, np.uint8, "r", shape=(whole, layout.nbytes)) if whole else ()
    for number, raw in enumerate(memory):
        fragment = Fragment(layout, raw.data)
        header = fragment.header
        refusal = fragment.refusal(int(header["job"]), [int(header["actor"])]) or damage(fragment)
        if refusal is not None:
            raise SystemExit(f"{file}, fragment {number}: {refusal}")
        yield fragment


def damage(fragment: Fragment) -> str | None:
    """Describe a value in a fragment that no actor writes, or return None; most flipped bits go unseen."""
    for name, array in fragment.fields.items():
        if array.dtype == np.bool_ and (array.view(np.uint8) > 1).any():
            return f"{name} is neither true nor false somewhere"
        # episode_return is not a number in steps that end no episode.
        if array.dtype.kind == "f" and name != "episode_return" and not np.isfinite(array).all():
            return f"{name} is not finite somewhere"
    samples, said = int(np.count_nonzero(fragment.fields["mask"])), int(fragment.header["samples"])
    if samples != said:
        return f"it claims {said} samples and its mask has {samples}"
    return None


class Recording:
    """Loads the files of a run's recorder into a replay.

    Args:
        run: the run's directory.
        role: name of the recorder in the run's config.

    Raises:
        SystemExit: there are no files, they do not fit the config, or it does not learn from transitions.
    """

    def __init__(self, run: Path, role: str) -> None:
        self.config = load_config(str(run / "config.toml"))
        if not self.config.learns_from_replay:
            raise SystemExit(f"{run} learns from rollouts, which have to be of its newest policy")
        if self.config.transition_settings is None:
            raise SystemExit(
                f"{run} learns from steps in a row; a rule that learns from transitions would be right"
            )
        plan = make_plan(self.config)
        job = Job("offline", dump_config(self.config), plan, run, run)
        self.builder = Builder(job, self.config, plan.processes[0], 0)
        directories = sorted((run / "roles").glob(f"{role}-*"))
        files = [file for directory in directories for file in sorted(directory.glob("*.fragments"))]
        if not files:
            raise SystemExit(f"{run} has no files of a role {role!r}")
        try:
            self.layout = read_layout(directories[0])
        except (OSError, ValueError) as cause:
            raise SystemExit(str(cause)) from cause
        if self.layout != self.builder.layout:
            raise SystemExit(f"{directories[0]} holds other fields than {run / 'config.toml'} asks for")
        self.fields = tuple(spec.name for spec in self.builder.agent_fields if spec.name != PRIORITY)
        self.replay = self._filled(files)

    def _is_possible(self, action: npt.NDArray[Any]) -> bool:
        space = self.builder.spaces.action
        return not isinstance(space, Discrete) or bool(
            ((action >= space.start) & (action < space.start + space.n)).all()
        )

    def _filled(self, files: list[Path]) -> Replay:
        settings, layout = self.config.replay_settings, self.layout
        fragments = sum(file.stat().st_size // layout.nbytes for file in files)
        replay = Replay(
            layout,
            ReplaySettings(
                max(fragments, 1) * layout.steps * layout.num_envs, "uniform", settings.n_step, settings.gamma
            ),
            agent_fields=self.fields,
            seed=self.config.experiment.seed,
        )
        for file in files:
            for number, fragment in enumerate(read_fragments(file, layout)):
                if not self._is_possible(fragment.fields["action"]):
                    raise SystemExit(f"{file}, fragment {number}: it has an action that there is not")
                replay.free[:] = fragment.memory
                replay.accept()
        if not replay.size:
            raise SystemExit(f"there is no whole fragment in {files[0].parent}")
        return replay


def train(recording: Recording, updates: int) -> tuple[Model, TrainingState]:
    """Make ``updates`` updates, each with a batch drawn uniformly from the recording."""
    replay, settings = recording.replay, recording.config.replay_settings
    model = recording.builder.model()
    embryo = recording.builder.embryo(model)
    batch = BatchArrays(BatchLayout.of(recording.layout, settings.batch_size, recording.fields))
    progress = Progress(env_steps=replay.accepted)
    for number in range(updates):
        # Schedules run over these updates in place of env steps.
        embryo.schedule(replay.accepted * number // updates)
        replay.sample(batch)
        progress.consumed += embryo.update(batch.batch)
        progress.updates += 1
    parameters = np.zeros(model.parameter_count, np.float32)
    model.write_parameters(parameters)
    return model, TrainingState(parameters, None, *embryo.state(), asdict(progress), Episodes().state())


def main() -> None:
    """Train by the command line, and write the run directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="directory of the run that was recorded")
    parser.add_argument("--updates", type=int, default=5000, help="gradient updates to make")
    parser.add_argument("--role", default="recorder", help="what the config called the recorder")
    parser.add_argument("--out", type=Path, help="directory to write; RUN-offline by default")
    given = parser.parse_args()
    if given.updates < 1:
        parser.error("--updates must be at least 1")
    out = given.out or given.run.with_name(f"{given.run.name}-offline")
    if out.exists():
        raise SystemExit(f"{out} is there already")
    try:
        recording = Recording(given.run, given.role)
    except TianjiError as error:
        raise SystemExit(str(error)) from error
    print(f"{recording.replay.size} env steps of experience")
    model, state = train(recording, given.updates)
    out.mkdir(parents=True)
    shutil.copy(given.run / "config.toml", out)
    CheckpointWriter(out / "checkpoints", model, keep=1).write(state)
    print(f"{given.updates} updates made; judge them with: tianji eval {out}")


if __name__ == "__main__":
    main()
