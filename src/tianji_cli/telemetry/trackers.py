"""Experiment trackers that log a run besides its own files: Weights & Biases, MLflow.

``experiment.track`` names them; packages bring others by the entry-point group ``tianji.trackers``, and a
user's own is ``module:Class``. Each has a process of its own (``tracking.py``), so a slow or failing tracker
does not disturb the run.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final

from tianji_cli.errors import UsageError
from tianji_plugins import Plugins, did_you_mean

PROJECT: Final = "tianji"
"""Project of the runs, unless the tracker's own environment variable names another."""
TENSORBOARD: Final = "tensorboard"
"""Entry of ``experiment.track`` for TensorBoard, whose files the run's process writes itself."""


@dataclass(frozen=True)
class TrackedRun:
    """A run, as a tracker sees it.

    Attributes:
        name: such as ``ppo_cartpole/3``.
        path: directory of the run.
        config: resolved config, with dotted names.
        earlier: the tracker's id of the run, from an earlier session; None in the first.
    """

    name: str
    path: Path
    config: Mapping[str, Any]
    earlier: str | None


class Tracker(ABC):
    """A run in one tracker. Built as ``TrackerType(run)`` in a process that has nothing else to do.

    An exception ends this process alone, and the user is told.

    Attributes:
        id: the tracker's id of the run; a resumed run continues with it.
    """

    library: ClassVar[str] = ""
    """Library that the tracker imports, if any; its absence is noticed before training begins."""

    id: str

    @abstractmethod
    def __init__(self, run: TrackedRun) -> None:
        """Begin the run, or continue ``run.earlier``."""

    @abstractmethod
    def log(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Log numbers by their paths with slashes, such as ``returns/mean_100``."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """End the run.

        Args:
            summary: numbers and texts of ``summary.json`` with dotted names; its ``status`` is "finished",
                "stopped" or "failed".
            files: plots and videos.
        """


class WandbTracker(Tracker):
    """Weights & Biases; ``WANDB_PROJECT``, ``WANDB_MODE=offline`` and the like configure it."""

    library = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # noqa: PLC0415 - only this process has it

        self._wandb = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.earlier,
            resume="allow",
            dir=run.path,
            config=dict(run.config),
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric("*", step_metric="env_steps")  # W&B's own steps may not go back.
        self.id = self._run.id

    def log(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Log over ``env_steps``."""
        self._run.log({"env_steps": env_steps, **values})

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Log the summary, plots as images and videos as videos."""
        self._run.summary.update(dict(summary))
        kinds = {".png": self._wandb.Image, ".mp4": self._wandb.Video}
        media = {path.stem: kinds[path.suffix](str(path)) for path in files if path.suffix in kinds}
        if media:
            self._run.log(media)
        self._run.finish(exit_code=int(summary["status"] == "failed"))


class MlflowTracker(Tracker):
    """MLflow; ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` configure it."""

    library = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        import mlflow  # noqa: PLC0415 - only this process has it

        self._mlflow = mlflow
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        self.id = mlflow.start_run(run_id=run.earlier, run_name=run.name).info.run_id
        if run.earlier is None:  # MLflow does not let a logged parameter change.
            mlflow.log_params(dict(run.config))

    def log(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Log over ``env_steps``."""
        self._mlflow.log_metrics(dict(values), step=env_steps)

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Log the numbers of the summary as metrics, its texts as tags, and files as artifacts."""
        numbers = {name: value for name, value in summary.items() if isinstance(value, int | float)}
        self._mlflow.log_metrics({f"summary/{name}": float(value) for name, value in numbers.items()})
        self._mlflow.set_tags({name: value for name, value in summary.items() if isinstance(value, str)})
        for path in files:
            self._mlflow.log_artifact(str(path))
        ends = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self._mlflow.end_run(ends[summary["status"]])


TRACKERS: Final = Plugins("tracker", "tianji.trackers", UsageError, UsageError)
REMOVED: Final = {
    "trackio": "'trackio' is no tracker of tianji's any more; it takes wandb's calls, so one of your own, "
    "'module:Class', logs to it after `import trackio as wandb`; a package brings it to all of its users by "
    "the entry-point group 'tianji.trackers'"
}
"""Former names of trackers, each with a hint for its users."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that do not exist or whose library is missing, and duplicate names.

    Raises:
        UsageError: a name is wrong; the message says what would be right.
    """
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"experiment.track: {twice!r} is there twice; once is enough")
    known = [TENSORBOARD, *TRACKERS.names()]
    for name in names:
        if name not in known and ":" not in name:
            hint = did_you_mean(name, known, "trackers")
            hint = REMOVED.get(name, f"no tracker {name!r}; {hint} (your own: 'module:Class')")
            raise UsageError(f"experiment.track: {hint}")
        if name != TENSORBOARD:
            try:
                find_tracker(name)
            except UsageError as cause:
                raise UsageError(f"experiment.track: {cause}") from cause


def find_tracker(name: str) -> type[Tracker]:
    """Import a tracker; its library must be installed, but is not imported.

    Raises:
        UsageError: there is no such tracker, or its library is not installed: the message has the command.
    """
    found = TRACKERS.load(name)
    if not (isinstance(found, type) and issubclass(found, Tracker)):
        raise UsageError(f"tracker {name!r} is {found!r}, not a subclass of Tracker")
    if found.library and find_spec(found.library) is None:
        extra = f"'tianji[{found.library}]'" if TRACKERS.source(name) == "tianji" else found.library
        raise UsageError(f"tracker {name!r} needs {found.library}: pip install {extra}")
    return found
