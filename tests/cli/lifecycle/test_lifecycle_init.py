"""Runs that begin with what another has learnt: by the command line, and from Python."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import tianji

MODEL = "model.safetensors"


@pytest.fixture
def base(workplace: Any) -> Path:
    run = workplace.train()
    run.finish()
    path: Path = run.path
    return path


def refused(workplace: Any, *options: str, changes: dict[str, Any] | None = None) -> str:
    command = workplace.command("train", str(workplace.config(changes or {})), "--out", "out", *options)
    command.wait(2)
    said: str = command.stderr
    return said


def test_a_run_begins_with_another_and_says_of_what(workplace: Any, base: Path) -> None:
    shorter = {"experiment": {"name": "tuned", "init": {"freeze": ["policy.0.*"]}}}
    options = ("--out", "out", "--init-from", "run:last", "--set", "environment.num_envs=4", "--quiet")
    command = workplace.command("train", str(workplace.config(shorter)), *options)
    command.wait(0)
    run = workplace.place / "out/tuned/1"
    begun, now = load_file(base / "checkpoints/last" / MODEL), load_file(run / "checkpoints/last" / MODEL)
    first = load_file(run / "checkpoints/000000000000" / MODEL)
    assert all((first[name] == begun[name]).all() for name in begun)
    frozen = [name for name in begun if name.startswith("policy.0.")]
    assert len(frozen) == 2
    assert all((now[name] == begun[name]).all() for name in frozen)
    assert all((now[name] != begun[name]).any() for name in begun.keys() - set(frozen))
    said = json.loads((run / "summary.json").read_text())["init"]
    assert said["sha256"] == sha256((base / "checkpoints/last" / MODEL).read_bytes()).hexdigest()
    assert (sorted(said["taken"]), said["new"], sorted(said["frozen"])) == (sorted(begun), {}, sorted(frozen))
    assert said["from"] == f"{base}:{(base / 'checkpoints/last').resolve().name}"
    log = (run / "logs/root-0.log").read_text()
    assert f"begins with {len(begun)} of {len(begun)} tensors of {said['from']} (sha256 " in log
    assert "frozen: policy.0.weight; policy.0.bias" in log
    assert f"began with      {len(begun)} tensors of {said['from']}" in command.stdout

    # It goes on without its source, begins nothing again, and freezes still, until it is told otherwise.
    (base / "checkpoints/last" / MODEL).unlink()
    more = ("train", "--resume", str(run), "--quiet", "--set")
    workplace.command(*more, "experiment.stop.env_steps=4096").wait(0)
    later = load_file(run / "checkpoints/last" / MODEL)
    assert all((later[name] == begun[name]).all() for name in frozen)
    assert any((later[name] != now[name]).any() for name in later)
    workplace.command(*more, "experiment.stop.env_steps=6144", "--set", "experiment.init.freeze=[]").wait(0)
    latest = load_file(run / "checkpoints/last" / MODEL)
    assert all((latest[name] != begun[name]).any() for name in frozen)
    other = workplace.command(*more, "experiment.stop.env_steps=9999", "--set", "experiment.init_from=run")
    other.wait(2)
    assert "experiment.init_from: the run has begun already; --init-from begins a new one" in other.stderr


def test_what_would_be_taken_is_shown_without_a_run(workplace: Any, base: Path) -> None:
    config = str(workplace.config({"model": {"hidden": [16, 16]}}))
    command = workplace.command("train", config, "--out", "out", "--init-from", "run", "--dry-run")
    command.wait(0)
    assert f"tensors of {base}:best-" in command.stdout
    assert "new: policy.2.weight ([16, 16], [2, 16] there); " in command.stdout
    assert [path.name for path in (workplace.place / "out/run").iterdir()] == ["1"]


def test_what_cannot_be_begun_with_is_refused_before_there_is_a_run(workplace: Any, base: Path) -> None:
    begin = "--init-from"
    assert "there are no runs" in refused(workplace, begin, "x", "--out", "nowhere")
    assert "experiment.init_from" in refused(workplace, begin, "")  # A shell's variable that is not set.
    assert "no run 'nothing'" in refused(workplace, begin, "nothing")
    assert "has no checkpoint '17'; there are best, last, 0" in refused(workplace, begin, "run:17")
    assert "nothing of " in refused(
        workplace, begin, "run", changes={"model": {"hidden": [9], "shared": True}}
    )
    freeze = {"experiment": {"init": {"freeze": ["encodr.*"]}}}
    said = refused(workplace, begin, "run", changes=freeze)
    assert "'encodr.*' matches no parameter; there are policy.0.weight, policy.0.bias" in said
    assert "init: there is nothing to begin with; set init_from" in refused(workplace, changes=freeze)
    resumed = workplace.command("train", "--resume", str(base), begin, "run")
    resumed.wait(2)
    assert "--init-from is how a new run begins" in resumed.last_words
    file = workplace.place / "theirs.safetensors"
    file.write_bytes(b"\x80\x04K\x01." * 20)
    assert "cannot read " in refused(workplace, begin, str(file))
    model = base / "checkpoints/best" / MODEL
    model.write_bytes(model.read_bytes()[:-1])
    assert "is damaged" in refused(workplace, begin, "run")
    assert [path.name for path in (workplace.place / "out/run").iterdir()] == ["1"]


def test_each_group_and_each_seed_begins_with_the_same(workplace: Any, base: Path) -> None:
    begun = load_file(base / "checkpoints/best" / MODEL)
    changes = {"experiment": {"name": "many"}, "distribution": {"groups": 2}}
    freeze = ("--set", 'experiment.init.freeze=["policy.0.*"]', "--out", "out", "--quiet")
    config = str(workplace.config(changes))
    workplace.command("train", config, "--init-from", "run", *freeze, "--seeds", "2").wait(0)
    for seed in (1, 2):
        for group in ("", "group-1/"):
            place = workplace.place / f"out/many/seeds-1/{seed}/checkpoints/{group}"
            first, last = (load_file(place / name / MODEL) for name in ("000000000000", "last"))
            assert all((first[name] == begun[name]).all() for name in begun), place
            frozen = [name for name in begun if name.startswith("policy.0.")]
            assert all((last[name] == begun[name]).all() for name in frozen), place
            assert any((last[name] != begun[name]).any() for name in begun), place


def test_python_begins_with_a_run_or_a_file(workplace: Any, base: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(workplace.place)
    file = base / "checkpoints/best" / MODEL
    changes = {"experiment": {"stop": {"env_steps": 1024}}}
    for name, source in (("of_run", tianji.Run(base)), ("of_file", file)):
        run = tianji.train(workplace.config(), name=name, out="out", init_from=source, **changes)
        summary = run.summary
        assert summary is not None
        assert summary["init"]["sha256"] == sha256(file.read_bytes()).hexdigest()
        first, theirs = tianji.load(run, checkpoint=0), tianji.load(base)
        for _ in range(20):
            seen = np.random.default_rng(1).uniform(-1, 1, 4).astype(np.float32)
            assert first.act(seen) == theirs.act(seen)
