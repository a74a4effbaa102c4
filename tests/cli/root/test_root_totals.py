"""Reports of learners and buffers of several groups add up to the totals of the job."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.files.counters import ProductionFile
from tianji_cli.files.saved import Progress
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root.accounting import of_buffers, of_learners
from tianji_cli.root.job_view import Overview
from tianji_cli.telemetry.snapshot import Account, Averaging
from tianji_cli.wire.messages import Report
from tianji_cli.wire.reports import BufferReport, LearnerReport, ReplayFill, Spread, UserReport

ACCOUNT = Account(produced=5000, received=4000, in_flight=1000, lost=0, dropped=0)


def learner(**changes: Any) -> LearnerReport:
    said = {
        "env_steps": 1000,
        "consumed": 4000,
        "session_consumed": 4000,
        "updates": 100,
        "version": 10,
        "train_s": 5.0,
        "session_train_s": 5.0,
        "rho": 4.0,
        "episodes": 20,
        "episodes_in_mean": 20,
        "mean_100": 50.0,
        "time_to": {30.0: 4.0, 60.0: None},
        "lag": Spread(1.0, 1.0, 2.0, 9.0),
        "losses": {"value": 0.5},
    }
    return LearnerReport(**(said | changes))


AHEAD: dict[str, Any] = {
    "env_steps": 3000,
    "session_consumed": 12_000,
    "consumed": 12_000,
    "updates": 300,
    "version": 30,
    "train_s": 5.5,
    "mean_100": 100.0,
    "best_mean_100": 90.0,
    "time_to": {30.0: 2.0, 60.0: 5.0},
    "lag": Spread(2.0, 2.0, 4.0, 5.0),
    "losses": {"value": 1.5},
}


def buffer(samples: int, **changes: Any) -> BufferReport:
    said = {
        "receptions": ((0, 0, samples, 0, 0, 1, 0),),
        "ratio": 4.0,
        "drawn": 4 * samples,
        "uses": Spread(2.0, 2.0, 5.0, 7.0),
        "replay": ReplayFill(500, 1000, 10_000),
        "stale_priorities": 1,
    }
    return BufferReport(**(said | changes))


def test_the_report_of_one_group_is_left_as_it_is() -> None:
    of_one, of_its_buffer = learner(), buffer(1000)
    assert of_learners([of_one]) is of_one
    assert of_buffers([of_its_buffer]) is of_its_buffer
    assert (of_learners([]), of_buffers([])) == (LearnerReport(), BufferReport())


def test_learners_of_several_groups_are_put_together() -> None:
    assert of_learners([learner(), learner(**AHEAD)]) == LearnerReport(
        env_steps=4000,
        consumed=16_000,
        session_consumed=16_000,
        updates=400,
        version=30,
        train_s=5.5,
        session_train_s=5.0,
        rho=4.0,
        episodes=40,
        episodes_in_mean=40,
        mean_100=75.0,
        best_mean_100=90.0,
        time_to={30.0: 2.0, 60.0: 5.0},
        lag=Spread(1.75, 2.0, 4.0, 9.0),
        losses={"value": 1.0},
    )


def test_metrics_are_means_over_the_groups_that_have_them() -> None:
    half, whole = learner(metrics={"won": 0.5}), learner(metrics={"won": 1.0})
    assert of_learners([half, whole]).metrics == {"won": 0.75}
    assert of_learners([learner(), whole]).metrics == {"won": 1.0}
    assert of_learners([learner(), learner()]).metrics is None


def test_a_win_rate_is_the_mean_over_groups_and_the_nearest_is_the_goals() -> None:
    assert of_learners([learner(win_rate=0.5), learner(win_rate=0.75, **AHEAD)]).win_rate == 0.625
    assert of_learners([learner(), learner(win_rate=0.75, **AHEAD)]).win_rate == 0.75
    view = heard(overview(stop="{ win_rate = 0.8 }"), win_rate=0.5)
    snapshot, summary = view.snapshot(), view.summary("finished", "done", ACCOUNT, 0)
    assert (snapshot.learner.win_rate, summary.learner.win_rate) == (0.5, 0.5)
    (goal,) = snapshot.stop
    assert (goal.rule, goal.value, goal.target) == ("win_rate", 0.5, 0.8)


def test_a_group_that_knows_nothing_yet_does_not_hide_what_another_knows() -> None:
    began = learner(mean_100=None, lag=None, losses={"value": math.nan}, session_consumed=0)
    both = of_learners([began, learner(**AHEAD)])
    assert both.mean_100 == 100.0
    assert both.lag == AHEAD["lag"]
    assert math.isnan(both.losses["value"])


def test_several_buffers_are_put_together() -> None:
    much = buffer(3000, ratio=2.0, drawn=6000, uses=Spread(4.0, 1.0, 6.0, 6.0))
    assert of_buffers([buffer(1000), much]) == BufferReport(
        ratio=10_000 / (1000 + 3000),
        drawn=10_000,
        uses=Spread(3.5, 2.0, 6.0, 7.0),
        replay=ReplayFill(1000, 2000, 20_000),
        stale_priorities=2,
    )


def test_refused_samples_are_added_where_there_are_any() -> None:
    assert of_learners([learner(), learner()]).refused is None
    assert of_learners([learner(), learner(refused=3), learner(refused=4)]).refused == 7


def test_steps_given_up_are_added_where_sequences_are_learnt_from() -> None:
    assert of_buffers([buffer(10), buffer(10)]).steps_given_up is None
    both = [buffer(10, steps_given_up=3), buffer(10, steps_given_up=4)]
    assert of_buffers(both).steps_given_up == 7


def test_buffers_without_a_replay_have_none_together() -> None:
    nothing = BufferReport(receptions=((0, 0, 10, 0, 0, 1, 0),))
    assert of_buffers([nothing, nothing]) == BufferReport()


def test_a_ratio_is_known_from_the_first_batch_of_any_buffer() -> None:
    assert of_buffers([buffer(10, ratio=None, drawn=0), buffer(10)]).ratio == 4.0


def overview(earlier: Sequence[Progress] = (), stop: str = "{ mean_return = 475 }") -> Overview:
    overrides = ["distribution.groups=2", f"experiment.stop={stop}"]
    config = load_config("configs/ppo_cartpole.toml", overrides)
    plan = make_plan(config, [Host("here", (0, 1))])
    return Overview(config, plan, ProductionFile(None, plan.num_actors), earlier)


def heard(view: Overview, groups: int = 2, **known: Any) -> Overview:
    said = [learner(best_mean_100=60.0, **known), learner(**AHEAD, **known)]
    for process in view._plan.carrying("learner")[:groups]:
        assert process.group is not None
        roles = [BufferReport(), said[process.group]]
        report = Report(rank=process.rank, incarnation=0, roles=roles, busy_s=[0.0, 0.0], running_s=1.0)
        view.workers[process.rank].update(report)
    return view


def test_a_job_of_two_groups_is_shown_as_one_and_by_group() -> None:
    view = heard(overview())
    view.note_averaging(7, [0, 2])
    view.note_lost({1})
    snapshot, summary = view.snapshot(), view.summary("finished", "done", ACCOUNT, 0)
    assert snapshot.learner.env_steps == view.received == summary.learner.env_steps == 4000
    assert (snapshot.learner.updates, snapshot.learner.version, snapshot.learner.mean_100) == (400, 30, 75.0)
    assert snapshot.learner.lag == summary.learner.lag == Spread(1.75, 2.0, 4.0, 9.0)
    assert summary.learner.best_mean_100 == 90.0
    assert summary.learner.time_to == {30.0: 2.0, 60.0: 5.0}
    assert [group.env_steps for group in snapshot.by_group] == [1000, 3000]
    assert [group.best_mean_100 for group in summary.by_group] == [60.0, 90.0]
    assert snapshot.averaging == summary.averaging == Averaging(7, (0, 2), (1,))


def test_the_group_that_is_furthest_decides_how_near_the_goal_is() -> None:
    (goal,) = heard(overview()).snapshot().stop
    assert (goal.rule, goal.value) == ("mean_return", 100.0)


def test_the_learners_last_words_are_found_by_group() -> None:
    best = {group: said.best_mean_100 for group, said in heard(overview()).learners().items()}
    assert best == {0: 60.0, 1: 90.0}


@pytest.mark.parametrize(("groups", "received", "train_s"), [(0, 0, 22.5), (1, 300, 22.5), (2, 1500, 5.5)])
def test_a_group_of_a_resumed_job_that_has_not_reported_is_where_it_goes_on_from(
    groups: int, received: int, train_s: float
) -> None:
    earlier = [Progress(700, updates=50, train_s=20.0), Progress(1800, updates=60, train_s=22.5)]
    view = heard(overview(earlier), groups)
    assert view.received == received
    for state in (view.snapshot(), view.summary("failed", "x", ACCOUNT, 0)):
        assert (state.learner.env_steps, state.learner.train_s) == (2500 + received, train_s)
        assert state.learner.updates >= 110


def test_one_group_has_no_table_of_groups_and_no_averaging() -> None:
    config = load_config("configs/ppo_cartpole.toml")
    plan = make_plan(config, [Host("here", (0, 1))])
    view = Overview(config, plan, ProductionFile(None, plan.num_actors))
    for document in (view.snapshot().metrics(), view.summary("failed", "x", ACCOUNT, 0).document()):
        assert (document["averaging"], document["by_group"], document["extra"]) == (None, [], {})


def test_a_batch_is_a_share_of_its_own_groups_replay() -> None:
    config = load_config("configs/dqn_cartpole.toml", ["distribution.groups=2"])
    plan = make_plan(config, [Host("here", (0, 1))])
    view = Overview(config, plan, ProductionFile(None, plan.num_actors))
    for process in plan.carrying("learner"):
        roles = [buffer(1000), learner()]
        report = Report(rank=process.rank, incarnation=0, roles=roles, busy_s=[0.0, 0.0], running_s=1.0)
        view.workers[process.rank].update(report)
    snapshot = view.snapshot()
    assert snapshot.buffer.replay == ReplayFill(1000, 2000, 20_000)
    assert snapshot.staleness_p == config.replay_settings.batch_size / 1000


def test_what_a_role_of_the_users_own_reports_is_shown_by_name_and_rank() -> None:
    config = load_config("docs/examples/recorder.toml", ["distribution.groups=2"])
    plan = make_plan(config, [Host("here", (0, 1))])
    view = Overview(config, plan, ProductionFile(None, plan.num_actors))
    of_both = plan.carrying("recorder")
    for process in of_both:
        fragments = {"fragments": 3 + (process.group or 0)}
        said = UserReport(values=fragments, rejected={"recorder": (1, "no frame")})
        report = Report(rank=process.rank, incarnation=0, roles=[said], busy_s=[0.5], running_s=1.0)
        view.workers[process.rank].update(report)
    first, second = (f"recorder-{process.rank}" for process in of_both)
    assert view.snapshot().extra == {first: {"fragments": 3}, second: {"fragments": 4}}
    assert view.summary("failed", "x", ACCOUNT, 0).extra == view.snapshot().extra
