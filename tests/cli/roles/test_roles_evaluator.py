"""Whose turn it is to be evaluated, and which evaluations follow one another at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from tianji_cli.config.schema import PeriodicEvaluation, Stop
from tianji_cli.roles import evaluator
from tianji_cli.roles.episodes import EvaluationLimits
from tianji_cli.roles.evaluator import REPORTED, AtTheEnd, Evaluator, WhileTraining
from tianji_cli.wire.parameters import PublishedPolicy, policy_layout
from tianji_cli.wire.reports import Evaluating, Evaluation, EvaluatorReport, Examined, ExaminerReport
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Slot, Wiring

SLOTS = ("policy-0", "policy-1")
EVALUATION: Any = SimpleNamespace(
    finished="all have ended",
    progress=None,
    turn=lambda: None,
    report=lambda: EvaluatorReport(returns=(1.0,)),
)
"""An evaluation that has ended as it begins."""


def test_a_group_at_half_speed_has_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "LEAST_S", 0.0)
    nbytes = policy_layout(1).nbytes
    wiring = Wiring("turns", (), tuple(Slot(name, 0, (1,), nbytes) for name in SLOTS))
    writer, reader = InprocTransport(wiring, 0), InprocTransport(wiring, 1)
    unused: Any = SimpleNamespace(mean=2.0, adopt=lambda _: None, schedule=lambda _: None, close=lambda: None)
    schedule = WhileTraining(
        reader,
        SLOTS,
        agent=unused,
        player=lambda: EVALUATION,
        environment=unused,
        pace=PeriodicEvaluation(every_env_steps=100, episodes=1),
        stop=Stop(env_steps=1000),
        best=unused,
        parameters=1,
    )
    role = Evaluator(schedule)
    assert role.name == "examiner"
    for version in range(17):
        for slot, speed in zip(SLOTS, (50, 25), strict=True):
            policy = PublishedPolicy(memoryview(bytearray(nbytes)))
            policy.parameters[:] = np.float32(version)
            policy.header["env_steps"] = version * speed
            writer.publish(slot, policy.memory, version)
        role.turn()
        role.turn()
    newest = schedule.report().newest
    assert [one.group for one in newest] == [0, 1, 0, 1, 0, 1, 0, 1]
    role.close()
    for endpoint in (writer, reader):
        endpoint.close()


def test_a_report_of_evaluations_is_as_long_however_many_episodes_they_have() -> None:
    returns = np.random.default_rng(1).random(20_000).tolist()
    evaluation = Evaluation.of(EvaluatorReport(returns=returns), 20_000)
    newest = tuple(Examined(n, 0, n, n, evaluation, False) for n in range(REPORTED))
    report = TypeAdapter(ExaminerReport).dump_json(ExaminerReport(newest=newest))
    assert len(report) < 4096  # Of the mebibyte that a message may have, five times a second.


class Walk:
    """Plays ``left`` episodes, one a turn, each of return ``value``."""

    def __init__(self, left: int, value: float) -> None:
        self.left, self.value = left, value
        self.returns: list[float] = []
        self.cut_off: str | None = None
        self.is_shortened = False
        self.environment = SimpleNamespace(close=lambda: None)

    @property
    def finished(self) -> str | None:
        return None if self.left and self.cut_off is None else f"{len(self.returns)} episodes"

    @property
    def progress(self) -> Evaluating:
        return Evaluating(len(self.returns), 3, 10 * len(self.returns), 2.0)

    def turn(self) -> None:
        self.left -= 1
        self.returns.append(self.value)

    def report(self) -> EvaluatorReport:
        return EvaluatorReport(returns=tuple(self.returns), cut_off=self.cut_off)


def test_sampled_episodes_follow_within_what_the_greedy_ones_have_left() -> None:
    given: list[EvaluationLimits] = []
    greedy: Any = Walk(3, 1.0)

    def follow(limits: EvaluationLimits) -> Any:
        given.append(limits)
        return Walk(2, 5.0)

    role = Evaluator(AtTheEnd(greedy, EvaluationLimits(9.0, 100), follow))
    assert role.name == "evaluator"
    for _ in range(5):
        assert role.finished is None
        assert role.turn()
    assert role.finished == "3 episodes"
    assert not role.turn()
    assert given == [EvaluationLimits(7.0, 70)]
    assert role.report() == EvaluatorReport(returns=(1.0,) * 3, sampled=(5.0,) * 2)


@pytest.mark.parametrize("ends", ["cut off", "shortened"])
def test_no_sampled_episodes_follow_after_a_limit(ends: str) -> None:
    greedy: Any = Walk(3, 1.0)
    role = Evaluator(AtTheEnd(greedy, EvaluationLimits(), lambda _: pytest.fail("it followed")))
    assert role.turn()
    if ends == "cut off":
        greedy.cut_off = "2 s"
    else:
        greedy.is_shortened, greedy.left = True, 0
    assert role.finished == "1 episodes"
    assert not role.turn()
    assert role.report() == EvaluatorReport(returns=(1.0,), cut_off=greedy.cut_off)
