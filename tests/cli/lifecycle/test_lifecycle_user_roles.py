"""Runs with roles of the user's own: the recorder of docs/examples, slow and broken ones."""

import importlib
import shutil
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS
from ports import free_address

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
RECORDER: dict[str, Any] = {
    "experiment": {"extensions": [str(EXAMPLES), "."]},
    "roles": {"recorder": {"type": "recorder:Recorder", "receives": ["fragments"]}},
}
BEHIND = "actors wait for recorder (group 0), which claims its fragments too slowly or not at all"
DQN: dict[str, Any] = {
    "agent": {"type": "dqn", "epsilon_steps": 2000},
    "model": {"type": "mlp_q", "hidden": [16]},
    "training": {"batch_size": 64, "replay_ratio": 2.0, "warmup_steps": 512, "publish_every": 8},
}
ROLES = """
from tianji_cli.roles.user_role import UserRole
import recorder

class Waiting(recorder.Recorder):
    def turn(self):
        return (self.directory / "go").exists() and super().turn()

class Late(recorder.Recorder):
    def turn(self):
        return False

class Numbers(UserRole):
    def turn(self):
        return any(True for _ in self.fragments())
    def report(self):
        import numpy
        return super().report() | {"mean": numpy.float32(self.samples)}

class Broken(UserRole):
    def turn(self):
        if any(True for _ in self.fragments()):
            raise RuntimeError("the role's own mistake")
        return False

class Judge(UserRole):
    finished = None
    def turn(self):
        policy = self.policy(newer_than=2)
        if policy is not None:
            self.finished = f"version {policy.version} will do"
        return False
    def report(self):
        return super().report() | {"done": self.finished is not None}
"""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Read everything that a run has recorded, with the reader of the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    read_layout = importlib.import_module("recorder").read_layout
    read_fragments = importlib.import_module("offline").read_fragments

    def read_all(run: Any, group: int = 0) -> list[Any]:
        directory = run.path / "roles" / f"recorder-{group}"
        layout = read_layout(directory)
        files = sorted(directory.glob("*.fragments"))
        return [fragment.header.copy() for file in files for fragment in read_fragments(file, layout)]

    return read_all


def by_source(headers: list[Any]) -> dict[tuple[int, ...], list[int]]:
    """Sequence numbers in the order of the file, by session, actor and incarnation."""
    found = defaultdict(list)
    for header in headers:
        source = int(header["job"]), int(header["actor"]), int(header["incarnation"])
        found[source].append(int(header["sequence"]))
    return found


def check_recording(headers: list[Any], summary: dict[str, Any]) -> None:
    """Every fragment that the buffers received was recorded once, and in order."""
    for sequence in by_source(headers).values():
        assert sequence == list(range(len(sequence)))
    samples = sum(int(header["samples"]) for header in headers)
    assert samples == summary["received"] + summary["in_flight"]
    assert summary["rejected_frames"] == 0


@pytest.mark.parametrize(
    ("transport", "learns"),
    [
        ("shm", "dqn"),
        ("inproc", "ppo"),
        *(pytest.param(engine, "ppo", marks=pytest.mark.soak) for engine in ("shm", "zmq", "mpi", "ucx")),
    ],
)
def test_a_recorder_gets_every_fragment_that_was_pushed(
    workplace: Any, read: Any, transport: str, learns: str
) -> None:
    if learns == "dqn":
        workplace.base = workplace.base | DQN
    run = workplace.train(RECORDER, {"distribution": {"transport": transport, "actor": {"num": 2}}})
    summary = run.finish()
    assert (summary["status"], summary["lost"]) == ("finished", 0)
    headers = read(run)
    check_recording(headers, summary)
    assert {int(header["actor"]) for header in headers} == {0, 1}
    (said,) = summary["extra"].values()
    assert said == {"written": len(headers), "left_out": 0}


def test_a_run_in_step_is_the_same_run_with_a_recorder(workplace: Any, read: Any) -> None:
    in_step = {"distribution": {"mode": "sync", "actor": {"num": 2}}}
    alone = workplace.train(in_step)
    alone.finish()
    workplace.begins_cold = True  # Warm commands have one seed of hashes in common.
    recorded = workplace.train(in_step, RECORDER)
    summary = recorded.finish()
    check_recording(read(recorded), summary)
    place = "checkpoints/last/model.safetensors"
    assert (alone.path / place).read_bytes() == (recorded.path / place).read_bytes()


def test_a_recorder_that_is_behind_holds_the_actors_back_and_nothing_is_lost(
    workplace: Any, read: Any
) -> None:
    (workplace.place / "my_roles.py").write_text(ROLES)
    run = workplace.train(RECORDER, {"roles": {"recorder": {"type": "my_roles:Waiting"}}})
    window = 2 * 16 * 8
    run.produce_until(window // 2 + 1)
    seen = len(run.rows)
    workplace.until(lambda: len(run.rows) > seen + 5, "a second has passed")
    assert run.produced <= window, "the actor has not begun a third fragment"
    (run.path / "roles/recorder-0/go").touch()
    summary = run.finish()
    check_recording(read(run), summary)
    assert summary["received"] >= 2048


@pytest.mark.parametrize(
    "transport",
    ["shm", *(pytest.param(one, marks=pytest.mark.soak) for one in ("mpi", "zmq", "inproc", "ucx"))],
)
def test_what_was_copied_before_the_end_is_claimed_after_it(
    workplace: Any, read: Any, transport: str
) -> None:
    (workplace.place / "my_roles.py").write_text(ROLES)
    late = {"roles": {"recorder": {"type": "my_roles:Late"}}, "distribution": {"transport": transport}}
    run = workplace.train(RECORDER, ENDLESS, late)
    run.produce_until(1)
    workplace.until(lambda: BEHIND in run.log, "as many fragments are pushed as may be unclaimed")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    headers = read(run)
    assert [int(header["sequence"]) for header in headers] == [0, 1]
    check_recording(headers, summary)


def test_a_killed_recorder_ends_the_run_with_its_cause_and_leaves_what_it_wrote(
    workplace: Any, read: Any
) -> None:
    run = workplace.train(ENDLESS, RECORDER)
    run.train_until(3000)
    run.command.kill("recorder")
    summary = run.finish(1)
    assert "recorder (group 0) was killed by SIGKILL" in summary["reason"]
    headers = read(run)
    for sequence in by_source(headers).values():
        assert sequence == list(range(len(sequence)))
    assert run.saved_env_steps == summary["received"]


@pytest.mark.soak
def test_a_killed_actor_is_replaced_and_the_recorder_goes_on(workplace: Any, read: Any) -> None:
    run = workplace.train(ENDLESS, RECORDER, {"distribution": {"actor": {"num": 2}}})
    run.train_until(2000)
    run.command.kill("actor 1")
    run.train_until(run.env_steps + 4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    headers = read(run)
    sources = by_source(headers)
    assert {source[1:] for source in sources} == {(0, 0), (1, 0), (1, 1)}
    assert all(sequence == list(range(len(sequence))) for sequence in sources.values())
    # One fragment may have been copied when its actor was killed, and not be in the buffer yet.
    recorded = sum(int(header["samples"]) for header in headers)
    assert summary["received"] <= recorded <= summary["received"] + summary["in_flight"] + summary["lost"]


def test_a_resumed_run_records_into_another_file(workplace: Any, read: Any) -> None:
    run = workplace.train(RECORDER)
    first = run.finish()
    goal = f"experiment.stop.env_steps={first['env_steps'] + 2048}"
    second = workplace.resume(run, "--set", goal).finish()
    headers = read(run)
    assert len(list((run.path / "roles/recorder-0").glob("*.fragments"))) == 2
    assert len({int(header["job"]) for header in headers}) == 2
    check_recording(headers, {**second, "received": first["received"] + second["received"]})


def test_each_group_has_a_recorder_of_its_own(workplace: Any, read: Any) -> None:
    groups = {
        "distribution": {"groups": 2, "actor": {"num": 2}, "mode": "sync"}
    }  # All actors in each rollout.
    run = workplace.train(RECORDER, groups)
    summary = run.finish()
    headers = [read(run, group) for group in range(2)]
    assert [{int(header["actor"]) for header in of_group} for of_group in headers] == [{0, 1}, {2, 3}]
    check_recording([*headers[0], *headers[1]], summary)


def test_a_host_that_joins_gets_the_role_s_module_and_sends_copies(workplace: Any, read: Any) -> None:
    shutil.copy(EXAMPLES / "recorder.py", workplace.place)
    address = free_address()
    two = {"distribution": {"transport": "zmq", "hosts": 2, "actor": {"num": 2}, "mode": "sync"}}
    run = workplace.train({"roles": RECORDER["roles"]}, two, options=("--listen", address, "--quiet"))
    workplace.until((run.path / "job.key").exists, "the key is written")
    host = workplace.command("join", address, "--key", str(run.path / "job.key"))
    summary = run.finish()
    host.wait(0)
    headers = read(run)
    check_recording(headers, summary)
    assert {int(header["actor"]) for header in headers} == {0, 1}, "one of them is on the other host"


def test_a_role_that_raises_ends_the_run_with_what_it_raised(workplace: Any) -> None:
    (workplace.place / "my_roles.py").write_text(ROLES)
    run = workplace.train(ENDLESS, RECORDER, {"roles": {"recorder": {"type": "my_roles:Broken"}}})
    summary = run.finish(1)
    assert summary["reason"].startswith("recorder (group 0): RuntimeError: the role's own mistake")


@pytest.mark.parametrize("transport", ["shm", "inproc"])
def test_a_report_that_cannot_be_sent_ends_the_run_with_the_role_s_name(
    workplace: Any, transport: str
) -> None:
    (workplace.place / "my_roles.py").write_text(ROLES)
    numbers = {"roles": {"recorder": {"type": "my_roles:Numbers"}}, "distribution": {"transport": transport}}
    run = workplace.train(ENDLESS, RECORDER, numbers)
    run.command.wait(1)
    assert "recorder.report() says 'mean' as float32, which JSON cannot hold" in run.summary["reason"]
    assert run.summary["extra"] == {f"recorder-{1 if transport == 'inproc' else 2}": {}}


def test_a_role_that_claims_nothing_is_named_as_what_holds_the_run_back(workplace: Any) -> None:
    (workplace.place / "my_roles.py").write_text(ROLES)
    run = workplace.train(RECORDER, ENDLESS, {"roles": {"recorder": {"type": "my_roles:Late"}}})
    run.produce_until(100)
    workplace.until(lambda: BEHIND in run.log, "it is named")
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert run.log.count(BEHIND) == 1
    words = [row["bottleneck"]["words"] for row in run.rows if row["bottleneck"]]
    assert words
    assert all("the role recorder (group 0)" in named for named in words)
    assert "the role recorder (group 0)" in summary["bottleneck"]["words"]
    assert summary["lost"] == 0


def test_a_killed_recorder_of_a_later_group_ends_that_group_alone(workplace: Any, read: Any) -> None:
    groups = {"distribution": {"groups": 2, "actor": {"num": 1}}}
    run = workplace.train(RECORDER, ENDLESS, groups)
    run.train_until(3000)
    run.command.kill("recorder (group 1)")
    workplace.until(lambda: "group 1 is lost" in run.log, "its group is given up")
    run.train_until(run.env_steps + 3000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["averaging"]["lost"] == [1]
    assert "recorder (group 1) was killed by SIGKILL" in run.log
    for group in range(2):
        for sequence in by_source(read(run, group)).values():
            assert sequence == list(range(len(sequence)))


@pytest.mark.parametrize("transport", ["shm", pytest.param("inproc", marks=pytest.mark.soak)])
def test_a_role_may_end_the_run_in_order(workplace: Any, transport: str) -> None:
    (workplace.place / "my_roles.py").write_text(ROLES)
    judge = {"judge": {"type": "my_roles:Judge", "reads": ["policy"]}}
    changes = {"experiment": {"extensions": [str(EXAMPLES), "."]}, "roles": judge}
    run = workplace.train(ENDLESS, changes, {"distribution": {"transport": transport}})
    summary = run.finish()
    assert summary["status"] == "finished"
    assert summary["reason"].endswith("will do")
    assert list(summary["extra"].values()) == [{"done": True}]


@pytest.mark.parametrize("small_disk", ["600k"], indirect=True)
def test_a_full_disk_ends_the_recording_with_its_cause(workplace: Any, small_disk: Path) -> None:
    run = workplace.train(ENDLESS, RECORDER)
    run.command.wait(1)
    assert "No space left on device" in run.command.stderr
