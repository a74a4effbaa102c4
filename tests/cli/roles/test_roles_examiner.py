"""Whose turn it is to be evaluated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from tianji_cli.config.schema import PeriodicEvaluation, Stop
from tianji_cli.roles import examiner
from tianji_cli.roles.examiner import REPORTED, Examiner
from tianji_cli.wire.parameters import PublishedPolicy, policy_layout
from tianji_cli.wire.reports import Evaluation, EvaluatorReport, Examined, ExaminerReport
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
    monkeypatch.setattr(examiner, "LEAST_S", 0.0)
    nbytes = policy_layout(1).nbytes
    wiring = Wiring("turns", (), tuple(Slot(name, 0, (1,), nbytes) for name in SLOTS))
    writer, reader = InprocTransport(wiring, 0), InprocTransport(wiring, 1)
    unused: Any = SimpleNamespace(mean=2.0, adopt=lambda _: None, schedule=lambda _: None, close=lambda: None)
    role = Examiner(
        reader,
        SLOTS,
        agent=unused,
        evaluator=lambda: EVALUATION,
        environment=unused,
        pace=PeriodicEvaluation(every_env_steps=100, episodes=1),
        stop=Stop(env_steps=1000),
        best=unused,
        parameters=1,
    )
    for version in range(17):
        for slot, speed in zip(SLOTS, (50, 25), strict=True):
            policy = PublishedPolicy(memoryview(bytearray(nbytes)))
            policy.parameters[:] = np.float32(version)
            policy.header["env_steps"] = version * speed
            writer.publish(slot, policy.memory, version)
        role.turn()
        role.turn()
    newest = role.report().newest
    assert [one.group for one in newest] == [0, 1, 0, 1, 0, 1, 0, 1]
    role.close()
    for endpoint in (writer, reader):
        endpoint.close()


def test_a_report_of_evaluations_is_as_long_however_many_episodes_they_have() -> None:
    returns = np.random.default_rng(1).random(20_000).tolist()
    evaluation = Evaluation.of(EvaluatorReport(returns=returns), 20_000)
    newest = tuple(Examined(n, 0, n, n, evaluation, False) for n in range(REPORTED))
    document = TypeAdapter(ExaminerReport).dump_json(ExaminerReport(newest=newest))
    assert len(document) < 4096  # Of the mebibyte that a message may have, five times a second.
