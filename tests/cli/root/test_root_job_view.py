"""A learner's report of its replay reaches the snapshots and the summary."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_cli.config.schema import Component, JobConfig
from tianji_cli.files.counters import ProductionFile, ProductionPage
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root import job_view as overview_module
from tianji_cli.root.job_view import Overview, StopForecast
from tianji_cli.telemetry.snapshot import Account, Snapshot, Summary
from tianji_cli.wire.messages import Report, decode_to_root, encode
from tianji_cli.wire.reports import ActorReport, BufferReport, LearnerReport, ReplayFill, Spread

ACCOUNT = Account(produced=2000, received=1900, in_flight=100, lost=0, dropped=0)
BASE = LearnerReport(env_steps=1900, consumed=4000, session_consumed=4000, updates=125, version=31, rho=4.0)
OF_A_LEARNER = {"age": Spread(520.5, 500.0, 900.0, 990.0)}
OF_A_REPLAY = {
    "ratio": 4.004,
    "uses": Spread(3.9, 4.0, 8.0, 11.0),
    "replay": ReplayFill(1000, 1024, 50_000),
    "stale_priorities": 3,
}


class ReplayRule(BaseModel):
    """Settings of a learner that draws from a replay."""

    batch_size: int = 32
    replay_ratio: float = 4.0
    warmup_steps: int = 900
    publish_every: int = 4
    n_step: int = 1
    gamma: float = 0.99


def overview(training: BaseModel, *, colocate: bool) -> Overview:
    config = JobConfig(
        experiment={"name": "x", "stop": {"env_steps": 10}, "eval_episodes": 0},
        environment={"type": "gym", "id": "CartPole-v1"},
        agent=Component(type="ppo", settings=PPOAgentSettings()),
        model=Component(type="mlp_actor_critic", settings=MLPActorCriticSettings()),
        training=Component(type="ppo", settings=training),
        distribution={"buffer": {"colocate": colocate}},
    )
    plan = make_plan(config, [Host("here", (0, 1))])
    return Overview(config, plan, ProductionFile(None, plan.num_actors))


def seen(
    training: BaseModel, learner: dict[str, Any], buffer: dict[str, Any], *, colocate: bool = True
) -> tuple[Snapshot, Summary]:
    """The snapshot that the reports of a learner and a buffer make."""
    view = overview(training, colocate=colocate)
    reported = {"buffer": BufferReport(**buffer), "learner": replace(BASE, **learner)}
    for process in view._plan.trainers[: 1 if colocate else 2]:
        roles = [reported[role] for role in process.roles]
        report = Report(
            rank=process.rank, incarnation=0, roles=roles, busy_s=[0.0] * len(roles), running_s=1.0
        )
        received = decode_to_root(encode(report), 4)
        assert isinstance(received, Report)
        view.workers[process.rank].update(received)
    return view.snapshot(), view.summary("finished", "done", ACCOUNT, 0)


@pytest.mark.parametrize("colocate", [True, False])
def test_what_is_reported_of_a_replay_is_shown_and_summed_up(colocate: bool) -> None:
    snapshot, summary = seen(ReplayRule(), OF_A_LEARNER, OF_A_REPLAY, colocate=colocate)
    for row in (snapshot.metrics(), summary.document()):
        assert row["sample_age"] == {"mean": 520.5, "p50": 500, "p95": 900, "max": 990}
        assert row["uses"] == {"mean": 3.9, "p50": 4, "p95": 8, "max": 11}
        assert row["replay"] == {"size": 1000, "capacity": 1024, "nbytes": 50_000}
        assert row["stale_priorities"] == 3
        assert "steps_given_up" not in row


def test_steps_given_up_of_sequences_are_shown_and_summed_up() -> None:
    snapshot, summary = seen(ReplayRule(), OF_A_LEARNER, OF_A_REPLAY | {"steps_given_up": 40})
    assert snapshot.metrics()["steps_given_up"] == summary.document()["steps_given_up"] == 40


def test_the_summary_says_how_many_episodes_are_behind_the_means() -> None:
    _, summary = seen(ReplayRule(), {"episodes": 150, "episodes_in_mean": 100}, OF_A_REPLAY)
    returns = summary.document()["returns"]
    assert (returns["episodes"], returns["episodes_in_mean"]) == (150, 100)


def test_the_share_of_a_batch_in_the_replay_is_that_of_equation_2() -> None:
    snapshot, summary = seen(ReplayRule(), OF_A_LEARNER, OF_A_REPLAY)
    assert snapshot.staleness_p == summary.staleness_p == 32 / 1024


def test_the_ratio_of_a_replay_is_that_since_the_warm_up() -> None:
    snapshot, summary = seen(ReplayRule(), OF_A_LEARNER, OF_A_REPLAY)
    assert summary.document()["replay_ratio"] == {"target": 4.0, "actual": 4.004}
    row = snapshot.metrics()
    assert (row["replay_ratio.target"], row["replay_ratio.actual"]) == (4.0, 4.004)


def test_a_replay_that_was_not_drawn_from_yet_has_no_ratio() -> None:
    learner = {"age": None, "consumed": 0, "session_consumed": 0}
    snapshot, summary = seen(ReplayRule(), learner, {"replay": ReplayFill(0, 1024, 50_000)})
    assert snapshot.replay_ratio is summary.replay_ratio is None
    assert (snapshot.learner.age, snapshot.buffer.uses) == (None, None)
    assert snapshot.buffer.replay == ReplayFill(0, 1024, 50_000)


def test_before_the_first_reports_nothing_is_known_of_a_replay() -> None:
    snapshot = overview(ReplayRule(), colocate=False).snapshot()
    row = snapshot.metrics()
    assert [row[key] for key in ("replay", "sample_age", "uses", "staleness_p", "replay_ratio.actual")] == [
        None
    ] * 5


def test_a_learner_of_rollouts_has_the_ratio_of_all_that_was_produced() -> None:
    snapshot, summary = seen(PPOSettings(), {}, {})
    assert summary.replay_ratio == 2.0
    for state in (snapshot, summary):
        assert (state.learner.age, state.buffer.uses, state.buffer.replay, state.staleness_p) == (None,) * 4


def test_rates_are_over_seconds_and_not_over_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    view = overview(PPOSettings(), colocate=True)
    now_s = 100.0
    monkeypatch.setattr(overview_module.time, "monotonic", lambda: now_s)
    assert view._rates(0, 0, 0) == [0.0, 0.0, 0.0]
    now_s += 60.0  # Building takes as long as it takes.
    assert view._rates(0, 0, 0) == [0.0, 0.0, 0.0]
    for second in range(1, 13):  # 1,000 env steps a second, received and used once in four seconds
        now_s += 1.0
        received = 4000 * (second // 4)
        rates = view._rates(1000 * second, received, 2 * received)
        assert rates[0] == pytest.approx(1000.0)
        if second > 4:
            assert round(rates[1]) in {800, 1600}
            assert rates[2] == pytest.approx(2 * rates[1])
    now_s += 1.0  # The learner was replaced by one that goes on from a checkpoint.
    assert view._rates(13_000, 11_000, 22_000) == [0.0, 0.0, 0.0]
    now_s += 1.0
    assert view._rates(14_000, 13_000, 26_000) == pytest.approx([1000.0, 2000.0, 4000.0])


def test_the_actors_say_how_many_frames_a_step_takes() -> None:
    view = overview(ReplayRule(), colocate=True)
    unknown = view.summary("failed", "nobody lived", ACCOUNT, 0)
    before = view.snapshot()
    assert (before.frames_per_step, before.frames, before.frames_per_s) == (None, None, None)
    assert (unknown.frames, unknown.frames_per_s) == (None, None)
    for process in view._plan.trainers:
        said = {
            "learner": replace(BASE, session_train_s=10.0),
            "actor": ActorReport(frames_per_step=4),
            "buffer": BufferReport(),
        }
        roles = [said[role] for role in process.roles]
        busy = [0.0] * len(roles)
        view.workers[process.rank].update(
            Report(rank=process.rank, incarnation=0, roles=roles, busy_s=busy, running_s=1.0)
        )
    summary = view.summary("finished", "done", ACCOUNT, 0)
    assert view.snapshot().frames_per_step == 4
    assert (summary.learner.env_steps, summary.frames, summary.frames_per_s) == (1900, 7600, 800.0)


def test_received_and_consumed_are_of_the_same_report() -> None:
    snapshot, _summary = seen(ReplayRule(), OF_A_LEARNER, OF_A_REPLAY)
    assert (snapshot.learner.env_steps, snapshot.learner.consumed) == (BASE.env_steps, BASE.consumed)


def test_the_time_left_counts_from_the_first_step_and_not_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    clock = SimpleNamespace(monotonic=lambda: now_s, monotonic_ns=lambda: round(now_s * 1e9))
    monkeypatch.setattr(overview_module, "time", clock)
    config = JobConfig(
        experiment={"name": "x", "stop": {"wall_s": 60.0}, "eval_episodes": 0},
        environment={"type": "gym", "id": "CartPole-v1"},
        agent=Component(type="ppo", settings=PPOAgentSettings()),
        model=Component(type="mlp_actor_critic", settings=MLPActorCriticSettings()),
        training=Component(type="ppo", settings=PPOSettings()),
    )
    plan = make_plan(config, [Host("here", (0, 1))])
    production = ProductionFile(None, 1)
    view = Overview(config, plan, production)
    for _second in range(8):
        (rule,) = view.snapshot().stop
        assert (rule.value, rule.eta_s) == (0.0, None)
        now_s += 1.0
    ProductionPage(production, 0).begin(round(now_s * 1e9))
    for trained_s in (0.5, 1.5, 2.5):
        now_s = 108.0 + trained_s
        (rule,) = view.snapshot().stop
        assert rule.value == pytest.approx(trained_s)
        assert rule.eta_s == pytest.approx(60.0 - trained_s)


def test_the_forecast_extends_the_recent_pace_in_a_straight_line() -> None:
    forecast = StopForecast({"mean_return": 475.0, "env_steps": 1000.0, "wall_s": 60.0})
    forecast.update(1.0, {"mean_return": None, "env_steps": 0, "wall_s": 1.0})
    forecast.update(2.0, {"mean_return": 100.0, "env_steps": 100, "wall_s": 2.0})
    progress = forecast.update(3.0, {"mean_return": 150.0, "env_steps": 200, "wall_s": 3.0})
    assert [rule.rule for rule in progress] == ["mean_return", "env_steps", "wall_s"]
    assert [rule.eta_s for rule in progress] == pytest.approx([6.5, 8.0, 57.0])


def test_the_forecast_is_silent_about_what_does_not_come_nearer() -> None:
    forecast = StopForecast({"mean_return": 475.0})
    assert forecast.update(0.0, {"mean_return": None})[0].eta_s is None
    assert forecast.update(1.0, {"mean_return": 200.0})[0].eta_s is None
    assert forecast.update(2.0, {"mean_return": 190.0})[0].eta_s is None
    assert forecast.update(3.0, {"mean_return": 480.0})[0].eta_s == 0.0


def test_the_forecast_forgets_what_was_long_ago() -> None:
    forecast = StopForecast({"env_steps": 1e6})
    for second in range(200):
        steps = 10.0 * min(second, 100) + 1000.0 * max(0, second - 100)
        (progress,) = forecast.update(float(second), {"env_steps": steps})
    assert progress.eta_s == pytest.approx((1e6 - 100_000.0) / 1000.0)
