"""Jobs over several hosts, which share one machine here: joining, extensions, losses, ends."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq
from cli.hangs import HANGS, hanging
from cli.lifecycle.conftest import ENDLESS
from cli.sessions import until
from ports import free_address
from safetensors.numpy import load_file

TWO_HOSTS: dict[str, Any] = {"distribution": {"transport": "zmq", "hosts": 2, "actor": {"num": 2}}}

Start = Callable[..., tuple[Any, Any]]


def write_strange_key(path: Path) -> None:
    """Write the key of a job that nobody has begun."""
    public, secret = zmq.curve_keypair()
    path.touch(0o600)
    path.write_text(json.dumps({"public": public.decode(), "secret": secret.decode()}))


@pytest.fixture
def start(workplace: Any) -> Start:
    """Start a job of two hosts, or resume one, and the second host."""

    def both(
        *changes: dict[str, Any], quiet: bool = True, shared: bool = True, resume: Any = None
    ) -> tuple[Any, Any]:
        address = free_address()
        options = ("--listen", address, *(["--quiet"] if quiet else []))
        if resume is not None:
            goal = f"experiment.stop.env_steps={resume.summary['env_steps'] + 20_000}"
            run = workplace.resume(resume, "--listen", address, "--set", goal)
        else:
            run = workplace.train(TWO_HOSTS, *changes, options=options)
        workplace.until((run.path / "job.key").exists, "the key is written")
        key = run.path / "job.key"
        if not shared:
            # What lies under the run directory's path there is something else.
            key = key.rename(workplace.place / f"{len(workplace.commands)}.key")
            write_strange_key(run.path / "job.key")
        return run, workplace.command("join", address, "--key", str(key))

    return both


@pytest.mark.parametrize("transport", ["zmq", {"local": "shm", "remote": "zmq"}])
def test_a_host_that_joins_gets_actors_and_leaves_when_the_job_is_over(start: Start, transport: Any) -> None:
    run, host = start({"distribution": {"transport": transport}})
    summary = run.finish()
    host.wait(0)
    assert "joined run at tcp://127.0.0.1:" in host.stderr
    assert host.last_words == "tianji: the job is over"
    actors = [role for role in summary["roles"] if role["role"] == "actor"]
    assert len({role["host"] for role in actors}) == 2, "each host has one"
    assert summary["transport"] == (transport if isinstance(transport, str) else "shm+zmq")
    assert (summary["lost"], summary["last_report_only"]) == (0, [])
    run.check_refusals()


def test_the_only_actor_of_a_job_may_be_on_another_host(start: Start) -> None:
    run, host = start({"distribution": {"actor": {"num": 1}}})
    summary = run.finish()
    host.wait(0)
    (actor,) = [role for role in summary["roles"] if role["role"] == "actor"]
    (learner,) = [role for role in summary["roles"] if role["role"] == "learner"]
    assert actor["host"] != learner["host"]
    assert summary["received"] >= 2048


@pytest.mark.soak
def test_an_actor_that_hangs_on_another_host_comes_again_and_its_log_has_the_place(
    workplace: Any, start: Start
) -> None:
    workplace.module(HANGS)
    goal = {"experiment": {"stop": {"env_steps": 20_000}}}
    run, host = start(hanging(3.0, once=True), {"distribution": {"actor": {"num": 1}}}, goal)
    summary = run.finish()
    host.wait(0)
    assert sum(role["restarts"] for role in summary["roles"]) >= 1
    assert " in a step, an action or a picture (its output: " in run.log
    assert "in step\n" in next((run.path / "logs").glob("actor-*.log")).read_text()


def test_an_actor_suspended_on_another_host_is_spared_until_it_is_continued(start: Start) -> None:
    limit = {"environment": {"step_limit_s": 1.0}}
    run, host = start(limit, ENDLESS, {"distribution": {"actor": {"num": 1}}})
    run.train_until(2000)
    actor = host.kill("actor 0", signal.SIGSTOP)
    until(lambda: "nothing heard of actor 0" in run.log, "it is missed")
    time.sleep(5.0)  # Several times its limit, and as often spared.
    os.kill(actor, signal.SIGCONT)
    run.train_until(run.env_steps + 2000)
    assert host.pids("actor 0") == [actor]
    assert "ending it" not in run.log
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    host.wait(0)
    assert sum(role["restarts"] for role in summary["roles"]) == 0


MAZE = """
import gymnasium, numpy as np
from tianji_envs.core import BaseEnv
import maze_rules

class Maze(BaseEnv):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, seed=None):
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, maze_rules.over(self.steps), False
"""
RULES = """
import os
def over(steps):
    with open(os.environ["WITNESS"], "a") as file:
        file.write(__file__ + "\\n") if steps == 1 else None
    return steps % 20 == 0
"""


def test_the_user_s_own_modules_go_with_the_job(workplace: Any, start: Start, tmp_path: Path) -> None:
    (workplace.place / "maze.py").write_text(MAZE)
    (workplace.place / "maze_rules.py").write_text(RULES)
    witness = tmp_path / "witness"
    workplace.environment["WITNESS"] = str(witness)
    run, host = start({"environment": {"type": "maze:Maze", "id": ""}, "distribution": {"mode": "sync"}})
    run.finish()
    host.wait(0)
    used = {Path(line).parent for line in witness.read_text().split()}
    assert workplace.place in used, "the root's host imports the user's file"
    (sent,) = used - {workplace.place}
    assert sent.name == "extensions", "the other host imports what it was sent"
    assert not sent.exists(), "and keeps nothing"


def test_an_actor_killed_on_another_host_is_restarted_there(start: Start) -> None:
    run, host = start(ENDLESS)
    run.train_until(2000)
    host.kill("actor 1")
    for _ in range(3):
        run.train_until(run.env_steps + 2000)
    assert host.pid_of("actor 1")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    host.wait(0)
    assert [role["restarts"] for role in summary["roles"] if role["role"] == "actor"] == [0, 1]


def test_a_trace_brings_the_clock_of_another_host_to_the_root_s(start: Start, workplace: Any) -> None:
    run, host = start(ENDLESS, shared=False)
    run.train_until(2000)
    workplace.command("trace", str(run.path), "--seconds", "1").wait(0)
    document = json.loads((run.path / "trace.json").read_text())
    known, compared = sorted(
        document["otherData"]["processes"], key=lambda process: process["uncertainty_s"]
    )[1:]
    assert known["offset_s"] == known["uncertainty_s"] == 0.0
    # Both hosts are this machine, and have one clock.
    assert abs(compared["offset_s"]) <= compared["uncertainty_s"] < 1.0
    assert compared["host"] != known["host"]
    names = {event["name"] for event in document["traceEvents"] if event["pid"] == compared["rank"]}
    assert {"act", "step", "push"} <= names
    run.command.signal_all(signal.SIGINT)
    run.finish(130)
    host.wait(0)


def test_a_suspended_fork_server_on_another_host_is_named_and_holds_no_end_up(start: Start) -> None:
    run, host = start(ENDLESS)
    run.train_until(1000)
    server = host.kill("fork server", signal.SIGSTOP)
    until(lambda: f"(process {server}) is stopped" in run.log, "the root names it")
    os.kill(run.command.pid, signal.SIGINT)
    began = time.monotonic()
    summary = run.finish(130)
    assert time.monotonic() - began < 60
    assert summary["status"] == "stopped"
    host.wait(0)


def test_what_raises_on_another_host_ends_the_run_with_its_cause(workplace: Any, start: Start) -> None:
    (workplace.place / "maze.py").write_text(
        MAZE.replace("import maze_rules", "import os").replace("maze_rules.over(self.steps)", "self.boom()")
        + "    def boom(self):\n"
        + "        if self.steps == 200 and 'extensions' in __file__:\n"
        + "            raise RuntimeError('the boom')\n"
        + "        return False\n"
    )
    run, host = start({"environment": {"type": "maze:Maze", "id": ""}}, ENDLESS)
    summary = run.finish(1)
    host.wait(0)
    assert "actor 1 (group 0): RuntimeError: the boom" in summary["reason"]
    log = (run.path / "logs/actor-3.log").read_text()
    assert "RuntimeError: the boom" in log, "the root keeps what the other host's worker wrote"


TALKATIVE = """
import gymnasium, numpy as np, sys
from tianji_envs.core import BaseEnv

class Talker(BaseEnv):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, seed=None):
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        sys.stdout.buffer.write(b"step %d \\xe9 %s\\n" % (self.steps, b"." * 80))
        sys.stdout.buffer.flush()
        return np.zeros(2, np.float32), 1.0, self.steps % 20 == 0, False
"""


def lines_said(log: Path) -> list[bytes]:
    return [line for line in log.read_bytes().splitlines() if line.startswith(b"step ")]


def test_all_that_a_worker_on_another_host_writes_comes_back(workplace: Any, start: Start) -> None:
    (workplace.place / "talker.py").write_text(TALKATIVE)
    run, host = start(
        {"environment": {"type": "talker:Talker", "id": "", "num_envs": 1}},
        {"experiment": {"stop": {"env_steps": 10_000}}, "distribution": {"mode": "sync"}},
    )
    run.finish()
    host.wait(0)
    log = run.path / "logs/actor-3.log"
    assert log.stat().st_size > 200_000
    said = lines_said(log)
    numbers = [int(line.split()[1]) for line in said]
    assert numbers == list(range(1, len(said) + 1)), "each line once, from the first to the last"
    assert said[0] == b"step 1 \xe9 " + b"." * 80


ONE_ACTOR = {"distribution": {"actor": {"num": 1}}}


def test_what_a_lost_host_s_workers_wrote_before_is_kept(workplace: Any, start: Start) -> None:
    (workplace.place / "talker.py").write_text(TALKATIVE)
    talker = {"environment": {"type": "talker:Talker", "id": "", "num_envs": 1}}
    run, host = start(talker, ENDLESS, ONE_ACTOR)
    log = run.path / "logs/actor-2.log"
    workplace.until(lambda: log.exists() and lines_said(log), "the root has some of it")
    os.kill(host.pid, signal.SIGKILL)
    run.finish(1)
    host.wait_for_all()
    assert lines_said(log)[0].startswith(b"step 1 ")


@pytest.mark.parametrize(
    "why", [ONE_ACTOR, {"distribution": {"mode": "sync"}}], ids=["last actor", "in step"]
)
def test_a_lost_host_that_a_run_needs_ends_it_and_its_last_report_counts(
    workplace: Any, start: Start, why: dict[str, Any]
) -> None:
    run, host = start(ENDLESS, why)
    run.train_until(5000)
    os.kill(host.pid, signal.SIGKILL)
    summary = run.finish(1)
    host.wait_for_all()
    assert "was lost with its host" in summary["reason"]
    *_, actor = [role for role in summary["roles"] if role["role"] == "actor"]
    assert summary["last_report_only"] == [actor["rank"]]
    assert summary["env_steps"] >= 5000
    assert run.saved_env_steps == summary["env_steps"]
    assert list((workplace.place / "tmp").iterdir()) == [], "the root removed what it could not remove itself"


JOINS_IN = "and a host that joins takes its place"


def join(workplace: Any, run: Any, host: Any) -> Any:
    """Start another host for a run."""
    return workplace.command("join", host.arguments[1], "--key", str(run.path / "job.key"))


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.soak)])
def test_a_job_goes_on_without_a_host_of_actors_until_another_takes_its_seat(
    workplace: Any, start: Start, times: int
) -> None:
    run, host = start(ENDLESS)
    for lost in range(1, times + 1):
        run.train_until(run.env_steps + 3000)
        os.kill(host.pid, signal.SIGKILL)
        until(lambda lost=lost: run.log.count(JOINS_IN) == lost, "it is missed")
        host.wait_for_all()
        run.train_until(run.env_steps + 3000)
        host = join(workplace, run, host)
        until(lambda host=host: host.pids("actor 1"), "its actor begins")
    run.train_until(run.env_steps + 6000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    host.wait(0)
    assert [role["restarts"] for role in summary["roles"] if role["role"] == "actor"] == [0, times]
    assert summary["last_report_only"] == [3]
    run.check_refusals()


def test_hosts_that_come_later_get_actors_and_one_too_many_is_refused(workplace: Any) -> None:
    address = free_address()
    range_of_hosts = {"distribution": {"hosts": {"min": 1, "max": 2}}}
    run = workplace.train(TWO_HOSTS, range_of_hosts, ENDLESS, options=("--quiet", "--listen", address))
    run.train_until(3000)
    host = workplace.command("join", address, "--key", str(run.path / "job.key"))
    host.pid_of("actor 1")
    join(workplace, run, host).wait(2)
    run.train_until(run.env_steps + 6000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    host.wait(0)
    assert "has joined as host-1" in run.log
    assert "1 more host may join" in run.log
    learner, first, second = (role for role in summary["roles"] if role["role"] in {"learner", "actor"})
    assert (first["host"], second["host"]) == (learner["host"], "host-1")
    assert (first["restarts"], second["restarts"]) == (0, 0)
    assert (summary["lost"], summary["last_report_only"]) == (0, [])
    run.check_refusals()


def test_inference_goes_on_to_newer_policies_without_the_actors_of_a_lost_host(start: Start) -> None:
    hosts = {"min": 1, "max": 2}
    run, host = start(ENDLESS, {"distribution": {"inference": {}, "actor": {"num": 12}, "hosts": hosts}})
    host.pid_of("actors 4 and 5")
    run.train_until(run.env_steps + 6000)
    os.kill(host.pid, signal.SIGKILL)
    until(lambda: JOINS_IN in run.log, "it is missed")
    run.train_until(run.env_steps + 20_000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    host.wait_for_all()
    # Until it is missed the dead hold a version, for two seconds; most uses are later.
    assert summary["staleness"]["p50"] <= 8, "no dead actor keeps the others at an old version"


def test_a_host_that_may_leave_does_so_by_a_signal_and_the_others_go_on(workplace: Any) -> None:
    address = free_address()
    hosts = {"distribution": {"hosts": {"min": 1, "max": 2}}}
    run = workplace.train(TWO_HOSTS, hosts, workplace.with_goal(), options=("--quiet", "--listen", address))
    workplace.until((run.path / "job.key").exists, "the key is written")
    host = workplace.command("join", address, "--key", str(run.path / "job.key"))
    host.pid_of("actor 1")
    run.train_until(3000)
    os.kill(host.pid, signal.SIGTERM)
    host.wait(130)
    assert "leaving the job, which goes on" in host.stderr
    until(lambda: JOINS_IN in run.log, "it is missed")
    run.train_until(run.env_steps + 3000)
    run.reach_goal()
    assert run.finish()["status"] == "finished"


@pytest.mark.parametrize(
    "whole", [pytest.param(False, marks=pytest.mark.soak), True], ids=["its node alone", "with its actors"]
)
def test_a_host_that_was_suspended_for_too_long_is_fenced_and_takes_a_seat_anew(
    workplace: Any, start: Start, whole: bool
) -> None:
    workplace.shorten(silent_s=5.0)
    run, host = start(ENDLESS)
    run.train_until(3000)
    (actor,) = host.pids("actor 1")
    for pid in (host.pid, *([actor] if whole else [])):
        os.kill(pid, signal.SIGSTOP)
    until(lambda: JOINS_IN in run.log, "it is given up")
    run.train_until(run.env_steps + 3000)
    for pid in (*([actor] if whole else []), host.pid):
        os.kill(pid, signal.SIGCONT)
    until(lambda: host.pids("actor 1") not in ([], [actor]), "it has taken its seat anew")
    run.train_until(run.env_steps + 6000)
    run.command.signal_all(signal.SIGINT)
    run.finish(130)
    host.wait(0)
    assert "the job goes on without it; its workers here are ended" in host.stderr


def test_without_its_root_a_host_ends_its_workers_and_says_so(start: Start) -> None:
    run, host = start(ENDLESS)
    run.train_until(2000)
    os.kill(run.command.pid, signal.SIGKILL)
    host.wait(1)
    assert "the root at tcp://127.0.0.1:" in host.last_words
    assert "is gone" in host.last_words
    host.wait_for_all()
    run.command.wait_for_all()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_to_one_host_stops_the_job_in_order(start: Start, number: signal.Signals) -> None:
    run, host = start(ENDLESS)
    run.train_until(2000)
    host.signal_all(number)
    summary = run.finish(130)
    host.wait(130)
    assert summary["status"] == "stopped"
    assert summary["lost"] == 0


def test_a_host_too_many_is_refused_and_told_why(workplace: Any, start: Start) -> None:
    run, host = start(ENDLESS)
    run.train_until(2000)
    address = host.arguments[1]
    late = workplace.command("join", address, "--key", str(run.path / "job.key"))
    late.wait(2)
    assert "the job has all its hosts" in late.last_words
    run.command.signal_all(signal.SIGINT)
    run.finish(130)
    host.wait(0)


def test_a_wrong_key_is_told_apart_from_nobody_there(workplace: Any) -> None:
    address = free_address()
    run = workplace.train(TWO_HOSTS, options=("--listen", address))
    workplace.until((run.path / "job.key").exists, "the key is written")
    other = workplace.place / "other.key"
    shutil.copy(run.path / "job.key", other)
    other.write_text(other.read_text().replace('"public"', '"PUBLIC"'))
    host = workplace.command("join", address, "--key", str(other))
    host.wait(2)
    assert "holds no key of a job" in host.stderr
    workplace.until(lambda: "tianji join" in run.command.stderr, "it says how to join")
    run.command.signal_all(signal.SIGINT)
    assert run.command.wait() == 130, "it still waits for its host"


def test_a_key_of_another_job_opens_nothing(workplace: Any) -> None:
    address = free_address()
    run = workplace.train(TWO_HOSTS, options=("--listen", address))
    workplace.until((run.path / "job.key").exists, "the key is written")
    write_strange_key(workplace.place / "other.key")
    host = workplace.command("join", address, "--key", str(workplace.place / "other.key"))
    host.wait(2)
    assert "does not know this key" in host.last_words
    run.command.signal_all(signal.SIGINT)
    assert run.command.wait() == 130


def test_an_engine_that_stays_inside_a_host_cannot_span_two(workplace: Any) -> None:
    run = workplace.train(TWO_HOSTS, {"distribution": {"transport": "shm"}})
    run.command.wait(2)
    assert "'shm' does not reach from one host to another" in run.command.stderr
    assert 'transport = { local = "shm", remote = "zmq" }' in run.command.stderr


@pytest.mark.parametrize(
    "address", ["127.0.0.1:5555", "tcp://127.0.0.1", "tcp://0.0.0.0:5555", "tcp://a:99999"]
)
def test_an_address_that_is_none_is_refused(workplace: Any, address: str) -> None:
    for arguments in (("join", address, "--key", "x"), ("train", "ppo_cartpole", "--listen", address)):
        command = workplace.command(*arguments)
        command.wait(2)
        assert address in command.stderr


TWO_GROUPS = {"distribution": {"groups": 2, "sync_interval": 8, "actor": {"num": 1}}}


@pytest.mark.parametrize(
    "transport", [pytest.param("zmq", marks=pytest.mark.soak), {"local": "shm", "remote": "zmq"}]
)
def test_groups_on_two_hosts_are_averaged_over_both(start: Start, transport: Any) -> None:
    run, host = start(TWO_GROUPS, ENDLESS, {"distribution": {"transport": transport}})
    until(lambda: bool(run.rows) and run.rows[-1]["averaging"]["rounds"] > 2, "averages")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    host.wait(0)
    learners = [role["host"] for role in summary["roles"] if role["role"] == "learner"]
    assert len(set(learners)) == 2, "each host has a group"
    assert summary["lost"] == 0
    run.check_refusals()


def test_a_host_that_is_lost_with_its_group_leaves_the_other_group_training(
    workplace: Any, start: Start
) -> None:
    run, host = start(TWO_GROUPS, workplace.with_goal())
    run.train_until(5000)
    host.end()
    until(lambda: "group 1 is lost" in run.log, "it is lost")
    run.train_until(run.env_steps + 2000)
    run.reach_goal()
    summary = run.finish()
    assert summary["status"] == "finished"
    assert summary["averaging"]["lost"] == [1]


STEPS = {"experiment": {"stop": {"env_steps": 20_000}}}


def test_a_run_over_two_hosts_is_resumed_though_an_actor_elsewhere_sees_no_checkpoint(start: Start) -> None:
    run, host = start(shared=False)
    first = run.finish()
    host.wait(0)
    again, host = start(shared=False, resume=run)
    summary = again.finish()
    host.wait(0)
    assert summary["env_steps"] == first["env_steps"] + summary["received"]
    assert summary["received"] >= 20_000
    actors = [role["host"] for role in summary["roles"] if role["role"] == "actor"]
    assert len(set(actors)) == 2
    assert "cannot reach" not in run.log, "nothing is written elsewhere"


def test_a_group_on_a_host_that_reaches_the_run_directory_saves_there_and_is_resumed(start: Start) -> None:
    run, host = start(TWO_GROUPS, STEPS)
    first = run.finish()
    host.wait(0)
    saved = run.path / "checkpoints/group-1/last/state.json"
    by_group = {group["group"]: group["env_steps"] for group in first["by_group"]}
    assert json.loads(saved.read_text())["progress"]["env_steps"] == by_group[1]
    again, host = start(resume=run)
    summary = again.finish()
    host.wait(0)
    assert summary["env_steps"] == first["env_steps"] + summary["received"]
    assert "cannot reach" not in run.log


def test_what_a_host_without_the_run_directory_writes_is_named_at_the_start(
    workplace: Any, start: Start
) -> None:
    (workplace.place / "noter.py").write_text(NOTER)
    run, host = start(
        TWO_GROUPS, STEPS, {"roles": {"noter": {"type": "noter:Noter", "reads": ["policy"]}}}, shared=False
    )
    run.finish()
    host.wait(0)
    elsewhere = [line for line in run.log.splitlines() if "cannot reach the run directory" in line]
    assert len(elsewhere) == 2
    assert "the checkpoints of group 1 stay there" in elsewhere[0]
    assert "the files of noter (group 1) stay there" in elsewhere[1]
    assert (run.path / "roles/noter-0/note").exists()
    assert not (run.path / "roles/noter-1").exists()
    again, host = start(shared=False, resume=run)
    again.command.wait(1)
    host.wait(0)
    assert "is to go on with group 1 and cannot reach" in again.command.stderr


SEER = """
import numpy as np
from tianji_cli.roles.user_role import UserRole

class Seer(UserRole):
    restartable, held = True, False
    def __init__(self, context):
        super().__init__(context)
        self.seen = np.zeros(50_000)  # More than one message has.
    def turn(self):
        if not self.held and self.probe("fragments") is None:
            return False
        self.held = not self.forward("fragments", self.count)
        return not self.held
    def count(self, fields):
        self.seen += 1
    def stop(self):
        self.forward_rest("fragments", self.count)
    def state(self):
        return {"seen": self.seen}
    def load_state(self, state):
        self.seen[:] = state["seen"]
    def report(self):
        return super().report() | {"seen": int(self.seen[-1])}
"""


def test_the_state_of_a_role_on_a_host_without_the_run_directory_comes_to_it_and_back_in_a_resumed_run(
    workplace: Any, start: Start
) -> None:
    (workplace.place / "seer.py").write_text(SEER)
    path = {"graph": {"channels": {"fragments": {"path": ["actor", "seer", "buffer"]}}}}
    often = {"experiment": {"checkpoint_every_s": 0.5, **STEPS["experiment"]}}
    run, host = start({"roles": {"seer": {"type": "seer:Seer", "num": 2}}}, path, often, shared=False)
    first = run.finish()
    host.wait(0)
    names = [f"checkpoints/roles/seer-{number}/last/state.safetensors" for number in range(2)]
    seen = [said["seen"] for said in first["extra"].values()]
    assert [int(load_file(run.path / name)["seen"][-1]) for name in names] == seen
    assert all(seen)
    again, host = start(shared=False, resume=run)
    second = again.finish()
    host.wait(0)
    for earlier, said in zip(seen, second["extra"].values(), strict=True):
        assert said["seen"] == earlier + said["channels"]["fragments"]["sent"]
    assert len({role["host"] for role in second["roles"] if role["role"] == "seer"}) == 2
    assert [int(load_file(run.path / name)["seen"][-1]) for name in names] == [
        said["seen"] for said in second["extra"].values()
    ]


NOTER = """
from tianji_cli.roles.user_role import UserRole

class Noter(UserRole):
    def turn(self):
        return False
    def stop(self):
        (self.directory / "note").touch()
"""


def test_a_role_on_a_host_that_reaches_the_run_directory_writes_there(workplace: Any, start: Start) -> None:
    (workplace.place / "noter.py").write_text(NOTER)
    run, host = start(TWO_GROUPS, {"roles": {"noter": {"type": "noter:Noter", "reads": ["policy"]}}})
    run.finish()
    host.wait(0)
    assert {path.parent.name for path in run.path.glob("roles/*/note")} == {"noter-0", "noter-1"}
