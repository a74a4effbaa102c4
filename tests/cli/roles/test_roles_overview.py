"""What a learner reports of its replay reaches the snapshots and the summary."""

from __future__ import annotations

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
from tianji_cli.root.accounting import Account
from tianji_cli.root.job_view import Overview
from tianji_cli.telemetry.snapshot import ReplayFill, Snapshot, Summary
from tianji_cli.wire.messages import Report, decode_to_root, encode
from tianji_cli.wire.reports import Spread

ACCOUNT = Account(produced=2000, received=1900, in_flight=100, lost=0, dropped=0)
BASE = {
    "env_steps": 1900,
    "consumed": 4000,
    "session_consumed": 4000,
    "updates": 125,
    "version": 31,
    "rho": 4.0,
    "episodes": 0,
    "episodes_in_mean": 0,
    "mean_100": None,
    "best_mean_100": None,
    "time_to": [],
    "lag": None,
    "losses": {},
}
OF_A_LEARNER = {"age": {"mean": 520.5, "p50": 500.0, "p95": 900.0, "max": 990.0}}
OF_A_REPLAY = {
    "ratio": 4.004,
    "uses": {"mean": 3.9, "p50": 4.0, "p95": 8.0, "max": 11.0},
    "replay": {"size": 1000, "capacity": 1024, "nbytes": 50_000},
    "stale_priorities": 3,
}
NOTHING_YET = {
    "ratio": None,
    "uses": None,
    "replay": {"size": 0, "capacity": 1024, "nbytes": 50_000},
    "stale_priorities": 0,
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
    return Overview(config, plan, ProductionFile(None, plan.num_actors), 0)


def seen(
    training: BaseModel, learner: dict[str, Any], buffer: dict[str, Any], *, colocate: bool = True
) -> tuple[Snapshot, Summary]:
    """What becomes of the reports of a learner and a buffer."""
    view = overview(training, colocate=colocate)
    reported = {"buffer": {"receptions": []} | buffer, "learner": BASE | learner}
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
    assert snapshot.age == summary.sample_age == Spread(520.5, 500, 900, 990)
    assert snapshot.uses == summary.uses == Spread(3.9, 4, 8, 11)
    assert snapshot.replay == summary.replay == ReplayFill(1000, 1024, 50_000)
    assert snapshot.stale_priorities == summary.stale_priorities == 3
    assert snapshot.steps_given_up is summary.steps_given_up is None


def test_steps_given_up_of_sequences_are_shown_and_summed_up() -> None:
    snapshot, summary = seen(ReplayRule(), OF_A_LEARNER, OF_A_REPLAY | {"steps_given_up": 40})
    assert snapshot.steps_given_up == summary.steps_given_up == 40


def test_the_summary_says_how_many_episodes_are_behind_the_means() -> None:
    _, summary = seen(ReplayRule(), {"episodes": 150, "episodes_in_mean": 100}, OF_A_REPLAY)
    assert (summary.returns.episodes, summary.returns.episodes_in_mean) == (150, 100)


def test_the_share_of_a_batch_in_the_replay_is_that_of_equation_2() -> None:
    snapshot, summary = seen(ReplayRule(), OF_A_LEARNER, OF_A_REPLAY)
    assert snapshot.staleness_p == summary.staleness_p == 32 / 1024


def test_the_ratio_of_a_replay_is_that_since_the_warm_up() -> None:
    snapshot, summary = seen(ReplayRule(), OF_A_LEARNER, OF_A_REPLAY)
    assert snapshot.replay_ratio_actual == summary.replay_ratio.actual == 4.004
    assert snapshot.replay_ratio_target == summary.replay_ratio.target == 4.0


def test_a_replay_that_was_not_drawn_from_yet_has_no_ratio() -> None:
    learner = {"age": None, "consumed": 0, "session_consumed": 0}
    snapshot, summary = seen(ReplayRule(), learner, NOTHING_YET)
    assert snapshot.replay_ratio_actual is None
    assert summary.replay_ratio.actual is None
    assert (snapshot.age, snapshot.uses) == (None, None)
    assert snapshot.replay == ReplayFill(0, 1024, 50_000)


def test_before_the_first_reports_nothing_is_known_of_a_replay() -> None:
    snapshot = overview(ReplayRule(), colocate=False).snapshot()
    assert (snapshot.replay, snapshot.age, snapshot.uses, snapshot.staleness_p) == (None, None, None, None)
    assert snapshot.replay_ratio_actual is None


def test_a_learner_of_rollouts_has_the_ratio_of_all_that_was_produced() -> None:
    snapshot, summary = seen(PPOSettings(), {}, {})
    assert summary.replay_ratio.actual == 2.0
    assert (snapshot.age, snapshot.uses, snapshot.replay, snapshot.staleness_p) == (None, None, None, None)
    assert (summary.sample_age, summary.uses, summary.replay) == (None, None, None)


def test_the_actors_say_how_many_frames_a_step_takes() -> None:
    view = overview(ReplayRule(), colocate=True)
    unknown = view.summary("failed", "nobody lived", ACCOUNT, 0)
    before = view.snapshot()
    assert (before.frames_per_step, before.frames, before.frames_per_s) == (None, None, None)
    assert (unknown.frames, unknown.frames_per_s) == (None, None)
    for process in view._plan.trainers:
        said = {"learner": BASE | {"session_train_s": 10.0}, "actor": {"frames_per_step": 4}}
        roles = [said.get(role, {"receptions": []}) for role in process.roles]
        busy = [0.0] * len(roles)
        view.workers[process.rank].update(
            Report(rank=process.rank, incarnation=0, roles=roles, busy_s=busy, running_s=1.0)
        )
    summary = view.summary("finished", "done", ACCOUNT, 0)
    assert view.snapshot().frames_per_step == 4
    assert (summary.env_steps, summary.frames, summary.frames_per_s) == (1900, 7600, 800.0)


def test_received_and_consumed_are_of_the_same_report() -> None:
    snapshot, _summary = seen(ReplayRule(), OF_A_LEARNER, OF_A_REPLAY)
    assert (snapshot.env_steps, snapshot.consumed) == (BASE["env_steps"], BASE["consumed"])


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
    view = Overview(config, plan, production, 0)
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
