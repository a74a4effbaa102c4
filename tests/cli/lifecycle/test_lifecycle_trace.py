"""Runs that are traced: by themselves, from another process, on another host, and while an actor dies."""

import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS

IDLE = {"wait for credit", "sleep"}
ROUNDED_US = 0.002
"""Times are written to a nanosecond."""
DONE = {
    "actor": {"turn", "act", "step", "push", "adopt"},
    "buffer": {"turn", "claim"},
    "learner": {"turn", "draw", "update", "publish"},
}

Event = dict[str, Any]


class Trace:
    """A Chrome trace as it was written: the spans of each role by its name, the outer ones first."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text())
        self.about = document["otherData"]
        self.window_us = 1e6 * self.about["seconds"]
        names, self.spans = {}, defaultdict[str, list[Event]](list)
        for event in document["traceEvents"]:
            place = event["pid"], event["tid"]
            if event["ph"] == "M" and event["name"] == "thread_name":
                names[place] = event["args"]["name"]
            elif event["ph"] == "X":
                self.spans[names[place]].append(event)
        self.roles = set(names.values())

    def process(self, title: str) -> dict[str, Any]:
        (found,) = [process for process in self.about["processes"] if process["title"] == title]
        return dict(found)

    def check(self) -> None:
        """Check what is true of every trace: spans lie in the window, and in one another or apart."""
        for spans in self.spans.values():
            around: list[float] = []
            busy_us = 0.0
            for span in spans:
                began, ended = span["ts"], span["ts"] + span["dur"]
                assert 0 <= began <= ended <= self.window_us + ROUNDED_US, span
                while around and around[-1] <= began + ROUNDED_US:
                    around.pop()
                assert not around or ended <= around[-1] + ROUNDED_US, span
                busy_us += 0 if around else span["dur"]
                around.append(ended)
            assert busy_us <= self.window_us + ROUNDED_US * len(spans)

    def seconds_of(self, role: str, *names: str) -> float:
        return sum(span["dur"] for span in self.spans[role] if span["name"] in names) / 1e6


def test_a_training_that_traces_itself_has_the_spans_of_every_role(workplace: Any) -> None:
    run = workplace.train(workplace.with_goal(), options=("--quiet", "--trace", "1.5"))
    workplace.until(lambda: list(run.path.glob("trace/*/result.json")), "it is traced")
    run.reach_goal()
    run.finish()
    trace = Trace(run.path / "trace.json")
    trace.check()
    assert trace.about["seconds"] == pytest.approx(1.5)
    assert trace.roles == {"actor 0", "buffer", "learner"}
    for role, spans in trace.spans.items():
        assert {span["name"] for span in spans} - IDLE == DONE[role.partition(" ")[0]]
        assert all(span["args"]["core"] == "any" for span in spans)
    turns_s = trace.seconds_of("actor 0", "turn")
    assert 0.5 * turns_s < trace.seconds_of("actor 0", "act", "step") < turns_s
    assert "rank  role" in run.command.stdout
    assert f"{trace.about['run']}/trace.json" in run.command.stdout
    assert (run.path / "plots/timeline.png").read_bytes().startswith(b"\x89PNG")
    picture = (run.path / "plots/timeline.svg").read_text()
    assert all(f">{label}<" in picture for label in ("actor 0", "learner", "update", "busy"))
    assert not (run.path / "trace").exists()


def test_a_run_is_traced_from_another_process_by_one_at_a_time(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    first = workplace.command("trace", "out/run/1", "--seconds", "3", "--out", "first.json")
    workplace.until(lambda: list(run.path.glob("trace/*")), "it asks for a trace")
    second = workplace.command("trace", "out/run/1")
    second.wait(2)
    assert second.last_words == (
        "tianji: error: out/run/1 is being traced by another process: wait until that is done"
    )
    first.wait(0)
    trace = Trace(workplace.place / "first.json")
    trace.check()
    assert trace.about["seconds"] == pytest.approx(3.0)
    assert trace.roles == {"actor 0", "buffer", "learner"}
    assert not (run.path / "trace").exists()
    # The lock of a command that is killed goes with it, and the root gives its trace up for the next.
    killed = workplace.command("trace", "out/run/1", "--seconds", "600")
    workplace.until(lambda: "tracing 2 processes for 600 s" in run.log, "the trace begins")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    again = workplace.command("trace", "out/run/1", "--seconds", "0.5")
    again.wait(0)
    assert Trace(run.path / "trace.json").about["seconds"] == pytest.approx(0.5)
    # As on a full disk, what a worker has measured cannot be kept: nobody waits for it then.
    asked = workplace.command("trace", "out/run/1", "--seconds", "1")
    workplace.until(lambda: list(run.path.glob("trace/*")), "it asks for a trace")
    next(run.path.glob("trace/*")).joinpath("2.spans").mkdir()
    asked.wait(1)
    assert asked.last_words == (
        "tianji: error: the trace of out/run/1 was given up: tianji logs out/run/1 root-0 says why"
    )
    assert "a trace was given up: " in run.log
    run.command.signal_all(signal.SIGINT)
    run.finish(130)


def test_an_actor_that_dies_while_it_is_traced_loses_its_own_spans_alone(workplace: Any) -> None:
    run = workplace.train(ENDLESS, {"distribution": {"actor": {"num": 2}}})
    run.train_until(1000)
    command = workplace.command("trace", "out/run/1", "--seconds", "4")
    workplace.until(lambda: "tracing 3 processes for 4 s" in run.log, "the trace begins")
    run.command.kill("actor 1")
    command.wait(0)
    trace = Trace(run.path / "trace.json")
    trace.check()
    assert trace.roles == {"actor 0", "buffer", "learner"}
    assert trace.process("actor 1 (group 0)")["missing"] == "was killed by SIGKILL"
    assert "nothing is known of actor 1 (group 0): was killed by SIGKILL" in command.stdout
    run.command.signal_all(signal.SIGINT)
    run.finish(130)


def test_a_trace_ends_with_the_training(workplace: Any) -> None:
    run = workplace.train({"experiment": {"stop": {"wall_s": 2.0}}}, options=("--quiet", "--trace", "500"))
    run.finish()
    trace = Trace(run.path / "trace.json")
    trace.check()
    assert 0 < trace.about["seconds"] < 60
    assert not any(process["missing"] for process in trace.about["processes"])


def test_a_training_that_is_over_at_once_says_that_it_was_not_traced(workplace: Any) -> None:
    run = workplace.train({"experiment": {"stop": {"env_steps": 1024}}}, options=("--quiet", "--trace", "1"))
    run.finish()
    assert "nothing was traced: training was over" in run.command.stderr
    assert not (run.path / "trace.json").exists()
    late = workplace.command("trace", "out/run/1")
    late.wait(2)
    assert "out/run/1 does not run: finished" in late.stderr
