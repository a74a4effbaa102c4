"""A user's role has fragments, policies, a directory and agents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.roles.contexts import JOB, context_of
from pydantic import BaseModel

from tianji_algos.settings import NoSettings, Settings
from tianji_cli.errors import RunFailed, UsageError
from tianji_cli.roles.user_role import RoleContext, UserRole, find_user_role
from tianji_cli.wire.fragment import Fragment

OpenStage = Callable[..., Any]


class NumberSettings(Settings):
    number: int = 3


class Listener(UserRole):
    settings_type = NumberSettings

    def turn(self) -> bool:
        return any(True for _ in self.fragments())


def around(one: Any, directory: Path, *, settings: BaseModel | None = None, **changes: Any) -> RoleContext:
    place = directory / "roles" / "listener-0"
    return context_of(one, "listener", place, settings or NumberSettings(), **changes)


@pytest.fixture
def one(stage: OpenStage, work: Callable[..., bool]) -> Any:
    """An actor that sends copies, with a window of four, and as many fragments on their way."""
    opened = stage(steps=4, num_envs=2, window=4, copies=1)
    opened.publish(0)
    work(opened.actor, 40)
    return opened


def numbers(role: UserRole, at_most: int | None = None) -> list[int]:
    return [int(fragment.header["sequence"]) for fragment in role.fragments(at_most)]


def test_fragments_come_in_their_order_and_end_when_no_more_are_there(one: Any, tmp_path: Path) -> None:
    listener = Listener(around(one, tmp_path))
    assert numbers(listener, at_most=3) == [0, 1, 2]
    assert numbers(listener) == [3]
    assert numbers(listener) == []
    received = [one.receive() for _ in range(4)]
    assert listener.samples == sum(int(fragment.header["samples"]) for fragment in received)


def test_a_fragment_is_seen_as_it_was_written_and_cannot_be_written_into(one: Any, tmp_path: Path) -> None:
    listener = Listener(around(one, tmp_path))
    sent = one.receive()
    for fragment in listener.fragments(at_most=1):
        assert fragment.header == sent.header
        for name, array in sent.fields.items():
            np.testing.assert_array_equal(fragment.fields[name], array)
        assert fragment.memory.nbytes == one.layout.nbytes
        with pytest.raises(ValueError, match="read-only"):
            fragment.fields["reward"][0] = 1.0


def test_a_writable_fragment_is_the_role_s_own_and_may_be_kept(one: Any, tmp_path: Path) -> None:
    listener = Listener(around(one, tmp_path))
    kept = list(listener.fragments(writable=True))
    for number, fragment in enumerate(kept):
        fragment.fields["reward"][...] = number
    assert [fragment.fields["reward"][0, 0] for fragment in kept] == [0, 1, 2, 3]
    assert one.receive().fields["reward"][0, 0] == 1.0, "the buffer's is another"


def test_a_loop_that_is_left_gives_its_fragment_back(one: Any, tmp_path: Path) -> None:
    listener = Listener(around(one, tmp_path))
    for _ in listener.fragments():
        break
    assert one.copyists[0].held("copies-0") == 0
    with pytest.raises(RuntimeError, match="a mistake"):
        fail_at_the_first_of(listener)
    assert one.copyists[0].held("copies-0") == 0
    assert numbers(listener) == [2, 3]


def fail_at_the_first_of(role: UserRole) -> None:
    for _ in role.fragments():
        raise RuntimeError("a mistake of the user's")


def test_what_is_no_fragment_of_the_job_is_left_out_and_reported(one: Any, tmp_path: Path) -> None:
    stranger = Listener(around(one, tmp_path, job=JOB + 1))
    assert numbers(stranger) == []
    count, why = stranger.report()["rejected"]["listener"]
    assert count == 4
    assert "job" in why
    assert stranger.samples == 0
    assert one.copyists[0].held("copies-0") == 0


def test_a_message_of_another_size_is_left_out(stage: OpenStage, tmp_path: Path) -> None:
    one = stage(steps=4, num_envs=2, copies=1)
    loan = one.sender.loan(2, "copies-0", 8)
    one.sender.push(loan)
    listener = Listener(around(one, tmp_path))
    assert numbers(listener) == []
    assert listener.report()["rejected"]["listener"][0] == 1


def test_a_policy_is_a_copy_of_the_newest(one: Any, tmp_path: Path) -> None:
    listener = Listener(around(one, tmp_path))
    parameters = one.publish(3, env_steps=77)
    policy = listener.policy()
    assert policy is not None
    assert (policy.version, policy.env_steps) == (3, 77)
    expected = parameters.copy()
    one.publish(4)
    np.testing.assert_array_equal(policy.parameters, expected)
    assert listener.policy(newer_than=4) is None


def test_what_the_config_does_not_connect_cannot_be_asked_for(one: Any, tmp_path: Path) -> None:
    alone = Listener(around(one, tmp_path, receives=False, reads=False))
    with pytest.raises(RuntimeError, match=r'receives = \["fragments"\] is missing in \[roles.listener\]'):
        numbers(alone)
    with pytest.raises(RuntimeError, match=r'reads = \["policy"\] is missing in \[roles.listener\]'):
        alone.policy()
    with pytest.raises(RuntimeError, match="has no fragment to leave out"):
        Listener(around(one, tmp_path)).drop("a copy is on no path")


def test_its_directory_is_made_when_it_is_asked_for(one: Any, tmp_path: Path) -> None:
    listener = Listener(around(one, tmp_path))
    assert list(tmp_path.glob("roles")) == []
    assert listener.directory == tmp_path / "roles" / "listener-0"
    assert listener.directory.is_dir()


def test_it_plays_with_the_policy_that_it_looked_up(one: Any, tmp_path: Path) -> None:
    listener = Listener(around(one, tmp_path))
    agent, environment = listener.make_agent(2), listener.make_environment(2)
    observation = np.zeros((2, 4), np.float32)
    environment.reset(1, observation)
    one.publish(8)
    policy = listener.policy()
    assert policy is not None
    agent.adopt(policy.parameters)
    executor = one.model.executor(2)
    executor.adopt(policy.parameters)
    np.testing.assert_array_equal(agent.act_greedily(observation), executor(observation)[0].argmax(axis=1))
    environment.close()


def test_settings_and_name_are_the_config_s(one: Any, tmp_path: Path) -> None:
    listener = Listener(around(one, tmp_path, settings=NumberSettings(number=5)))
    assert (listener.name, listener.settings.number) == ("listener", 5)
    assert UserRole.settings_type is NoSettings


def test_a_memory_of_a_fragment_is_all_of_it(one: Any, tmp_path: Path) -> None:
    listener = Listener(around(one, tmp_path))
    copies = [bytes(fragment.memory) for fragment in listener.fragments()]
    again = [Fragment(one.layout, memoryview(copy)) for copy in copies]
    assert [fragment.refusal(JOB, [0]) for fragment in again] == [None] * 4
    assert [int(fragment.header["sequence"]) for fragment in again] == [0, 1, 2, 3]


def test_a_class_that_is_none_of_ours_is_not_found() -> None:
    with pytest.raises(UsageError, match="not a subclass of UserRole"):
        find_user_role("tianji_cli.roles.evaluator:Evaluator")


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (
            {"written": np.float32(1.5)},
            r"listener\.report\(\) says 'written' as float32, which JSON cannot hold",
        ),
        ({"written": np.zeros(2)}, "'written' as ndarray"),
        ({1: 2}, "has the key 1, and keys are texts"),
        ({"rejected": 3}, 'says "rejected", as the base class does'),
        ({"text": "x" * 40_000}, "bytes, and 32768 are the most"),
        (None, "returned None, and a dict is wanted"),
    ],
    ids=["scalar", "array", "key", "taken", "large", "nothing"],
)
def test_a_report_that_cannot_be_sent_is_refused_by_name(
    one: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Any, why: str
) -> None:
    listener = Listener(around(one, tmp_path))
    monkeypatch.setattr(listener, "report", lambda: report)
    with pytest.raises(RunFailed, match=why):
        listener.checked_report()


def test_a_report_may_leave_out_what_the_base_says_and_may_hold_what_is_not_finite(
    one: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener(around(one, tmp_path))
    monkeypatch.setattr(listener, "report", lambda: {"mean": float("nan"), "pair": (1, 2)})
    assert listener.checked_report().rejected == UserRole.report(listener)["rejected"]


def test_a_report_may_have_lists_for_the_tuples_of_the_base(
    one: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener(around(one, tmp_path))
    rejected = {name: list(counted) for name, counted in UserRole.report(listener)["rejected"].items()}
    monkeypatch.setattr(listener, "report", lambda: {"rejected": rejected, "mean": 1.5})
    assert listener.checked_report().values == {"mean": 1.5}
