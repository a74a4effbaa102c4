"""Experiment trackers: real ones offline, one of a user's own, those that fail or hang, and TensorBoard."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import mlflow
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

MINE = '''
import json
import os
import time

from tianji_cli.telemetry.trackers import Tracker


class Mine(Tracker):
    """Writes down what it is told."""

    def __init__(self, run):
        self.id = run.earlier or "the-first"
        self._file = open(os.environ["NOTES"], "a")
        self._note(name=run.name, earlier=run.earlier, seed=run.config["experiment.seed"])

    def log(self, env_steps, values):
        self._note(env_steps=env_steps, values=values)

    def finish(self, summary, files):
        best, names = summary["returns.best_mean_100"], [file.name for file in files]
        self._note(status=summary["status"], best=best, files=names)

    def _note(self, **said):
        self._file.write(json.dumps(said) + "\\n")
        self._file.flush()


class Fails(Mine):
    def log(self, env_steps, values):
        raise OSError("the server is down")


class Hangs(Mine):
    def finish(self, summary, files):
        super().finish(summary, files)
        time.sleep(600)
'''
EVALUATED = {"evaluation": {"every_env_steps": 2000, "episodes": 4}}


def tracked(*names: str, **more: Any) -> dict[str, Any]:
    return {"experiment": {"track": list(names)} | more}


@pytest.fixture
def notes(workplace: Any) -> Path:
    workplace.module(MINE)
    path: Path = workplace.place / "notes"
    workplace.environment["NOTES"] = str(path)
    return path


def noted(notes: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in notes.read_text().splitlines()]


def test_a_tracker_of_ones_own_hears_all_of_a_run_and_goes_on_with_it(workplace: Any, notes: Path) -> None:
    run = workplace.train(tracked("my_env:Mine", plots=True, stop={"evaluation": 1.0}, **EVALUATED))
    summary = run.finish()
    first, *rows, last = noted(notes)
    assert first == {"name": "run/1", "earlier": None, "seed": 1}
    snapshots = [row for row in run.rows if "kind" not in row]
    evaluations = [row for row in run.rows if row.get("kind") == "evaluation"]
    logged = [row for row in rows if "updates" in row["values"]]
    assert [row["env_steps"] for row in logged] == [row["env_steps"] for row in snapshots]
    assert logged[-1]["values"]["returns/mean_100"] == summary["returns"]["mean_100"]
    means = [row["values"]["evaluated/mean"] for row in rows if "evaluated/mean" in row["values"]]
    assert means == [row["mean"] for row in evaluations]
    assert len(means) >= 1
    assert (last["status"], last["best"]) == ("finished", summary["returns"]["best_mean_100"])
    assert "return_over_steps.png" in last["files"]
    again = workplace.resume(run, "--set", "experiment.seed=9", "--set", "experiment.stop={wall_s=1.5}")
    again.finish()
    begun = [said for said in noted(notes) if "name" in said]
    assert begun[1:] == [{"name": "run/1", "earlier": "the-first", "seed": 9}]
    later = noted(notes)[noted(notes).index(begun[1]) + 1 : -1]
    assert sum("updates" in row["values"] for row in later) == len(
        [row for row in run.rows if "kind" not in row]
    ) - len(snapshots), "what was before it is not told twice"


def test_a_tracker_that_fails_ends_nothing(workplace: Any, notes: Path) -> None:
    run = workplace.train(tracked("my_env:Fails"))
    assert run.finish()["status"] == "finished"
    assert notes.exists()
    said = "tracker 'my_env:Fails' failed, and the run went on without it: OSError: the server is down"
    assert said in run.log


def test_nobody_waits_for_a_tracker_that_hangs_once_the_user_has_asked_twice(
    workplace: Any, notes: Path
) -> None:
    run = workplace.train(tracked("my_env:Hangs"))
    workplace.until(lambda: notes.exists() and '"status"' in notes.read_text(), "the run is over")

    for _ in range(2):
        run.command.interrupt()
    run.finish()
    assert "tracker 'my_env:Hangs' did not finish in time and was killed" in run.log


def test_a_tracker_ends_with_a_run_that_is_killed(workplace: Any, notes: Path) -> None:
    workplace.begins_cold = True
    run = workplace.train(tracked("my_env:Mine", stop={"env_steps": 10**9}))
    workplace.until(lambda: notes.exists() and "updates" in notes.read_text(), "it is tracked")
    os.kill(run.command.pid, signal.SIGKILL)
    run.command.wait(-signal.SIGKILL)
    run.command.wait_for_all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's, of SQLAlchemy.
@pytest.mark.alone  # Two libraries of some weight have a minute at the end to bring what is left.
def test_real_trackers_have_the_run_and_a_resumed_one_goes_on_in_it(
    workplace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = workplace.place
    store = f"sqlite:///{place}/ml.db"
    workplace.environment |= {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": store,
        "HOME": str(place),
    }
    names = ("wandb", "mlflow")
    films = {"evaluation": EVALUATED["evaluation"] | {"every_env_steps": 1000, "video": 1}}
    run = workplace.train(tracked(*names, plots=True, stop={"env_steps": 10**9}, **films))
    workplace.until(lambda: list((run.path / "videos").glob("[!.]*")), "a film")
    run.command.signal_all(signal.SIGTERM)
    summary = run.finish(130)
    assert "tracker" not in run.log
    videos = [path.name for path in (run.path / "videos").iterdir()]
    ids = {name: json.loads((run.path / f"trackers/{name}.json").read_text())["id"] for name in names}
    more = f"experiment.stop={{ env_steps = {run.saved_env_steps + 10_000} }}"
    again = workplace.resume(run, "--set", more)
    longer = again.finish()
    assert "tracker" not in again.log
    assert ids == {name: json.loads((run.path / f"trackers/{name}.json").read_text())["id"] for name in names}

    sessions = list((run.path / "wandb").glob("offline-run-*"))
    assert len(sessions) == 2
    assert all(list(session.glob(f"run-{ids['wandb']}.wandb")) for session in sessions)
    assert list((run.path / "wandb").glob("offline-run-*/files/media/videos/*.mp4"))

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    client = mlflow.MlflowClient(store)
    found = client.get_run(ids["mlflow"])
    assert found.info.status == "FINISHED"
    assert found.data.params["training.rollout_steps"] == "512"
    assert found.data.metrics["summary/env_steps"] == longer["env_steps"]
    steps = [point.step for point in client.get_metric_history(ids["mlflow"], "updates")]
    assert steps[0] == 0
    assert summary["env_steps"] in steps
    assert max(steps) == longer["env_steps"]
    assert client.get_metric_history(ids["mlflow"], "evaluated/mean")
    artifacts = [file.path for file in client.list_artifacts(ids["mlflow"])]
    assert {"return_over_steps.png", *videos} <= set(artifacts)


def test_tensorboard_has_the_settings_and_is_left_out_where_it_is_not_named(workplace: Any) -> None:
    run = workplace.train()
    run.finish()
    events = EventAccumulator(str(run.path))
    events.Reload()
    (content,) = (
        data.content for data in (events.SummaryMetadata("_hparams_/session_start_info").plugin_data,)
    )
    assert b"training.rollout_steps" in content
    other = workplace.train(tracked())
    other.finish()
    assert not list(other.path.glob("events.*"))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["wandbb"], "experiment.track: no tracker 'wandbb'; did you mean 'wandb'?"),
        (["tensorbord"], "experiment.track: no tracker 'tensorbord'; did you mean 'tensorboard'?"),
        (["trackio"], "one of your own, 'module:Class', logs to it after `import trackio as wandb`"),
        (["mlflow", "mlflow"], "experiment.track: 'mlflow' is there twice"),
        (["my_env:Nothing"], "experiment.track: tracker 'my_env:Nothing': module 'my_env' has no 'Nothing'"),
        (["my_env:json"], "not a subclass of Tracker"),
    ],
)
def test_a_tracker_that_is_none_is_refused_before_anything_starts(
    workplace: Any, notes: Path, names: list[str], said: str
) -> None:
    command = workplace.train(tracked(*names)).command
    command.wait(2)
    assert said in command.stderr
    assert not (workplace.place / "out").exists()
    assert not notes.exists()
