import json
import math
from collections.abc import Callable
from typing import Any

from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_cli.telemetry.snapshot import Snapshot, StopProgress, Summary

# fmt: off
SUMMARY_KEYS = [
    "schema", "experiment", "status", "reason", "session", "wall_s", "train_s", "env_steps", "updates",
    "transport", "mode", "groups", "produced", "received", "consumed", "in_flight", "lost", "dropped",
    "produced_per_s", "received_per_s", "consumed_per_s", "replay_ratio", "staleness", "returns", "time_to",
    "evaluation",
    "rejected_frames", "roles", "last_report_only", "sample_age", "uses", "replay", "staleness_p",
    "stale_priorities", "bottleneck", "averaging", "by_group", "extra", "overshoot", "frames", "frames_per_s",
    "version", "frames_per_step", "losses",
]
# fmt: on


def test_the_summary_has_exactly_the_documented_keys(summary: Callable[..., Summary]) -> None:
    document = summary().document()
    assert list(document) == SUMMARY_KEYS
    assert list(document["replay_ratio"]) == ["target", "actual"]
    assert list(document["staleness"]) == ["mean", "p50", "p95", "max"]
    assert list(document["returns"]) == ["episodes", "mean_100", "best_mean_100", "episodes_in_mean"]
    assert list(document["evaluation"]) == ["episodes", "mean", "std", "left_out", "cut_off"]
    assert all(
        list(role) == ["rank", "role", "group", "host", "cores", "restarts", "busy"]
        for role in document["roles"]
    )
    assert document["time_to"] == {"300": 4.2, "475": 11.9, "490.5": None}


def test_frames_are_steps_times_the_frames_that_a_step_takes(snapshot: Callable[..., Snapshot]) -> None:
    row = snapshot(env_steps=1000, produced_per_s=50.0, frames_per_step=4).metrics()
    assert (row["frames"], row["frames_per_s"], row["frames_per_step"]) == (4000, 200.0, 4)
    row = snapshot(env_steps=1000, frames_per_step=1).metrics()
    assert (row["frames"], row["frames_per_step"]) == (1000, 1)


def test_frames_are_unknown_until_an_actor_has_said_how_many_a_step_takes(
    snapshot: Callable[..., Snapshot],
) -> None:
    row = snapshot(env_steps=1000, produced_per_s=50.0).metrics()
    assert (row["frames"], row["frames_per_s"], row["frames_per_step"]) == (None, None, None)


def test_a_summary_without_episodes_updates_or_evaluation_keeps_its_keys(
    summary: Callable[..., Summary],
) -> None:
    empty = summary(
        lag=None,
        evaluation=None,
        episodes=0,
        episodes_in_mean=0,
        mean_100=None,
        best_mean_100=None,
        replay_ratio=None,
        time_to={},
    )
    document = json.loads(json.dumps(empty.document(), allow_nan=False))
    assert list(document) == SUMMARY_KEYS
    assert document["staleness"] == {"mean": None, "p50": None, "p95": None, "max": None}
    assert document["sample_age"] == document["uses"] == document["staleness"]
    assert document["replay"] is None
    assert document["evaluation"] is None
    assert document["returns"] == {
        "episodes": 0,
        "mean_100": None,
        "best_mean_100": None,
        "episodes_in_mean": 0,
    }


def test_the_summary_of_a_run_with_a_replay_has_its_ages_and_uses(
    summary: Callable[..., Summary], with_replay: dict[str, Any]
) -> None:
    document = summary(**with_replay).document()
    assert list(document) == SUMMARY_KEYS
    assert document["sample_age"] == {"mean": 13_000, "p50": 12_000, "p95": 40_100, "max": 49_900}
    assert document["uses"]["max"] == 13
    assert document["replay"] == {"size": 34_048, "capacity": 50_048, "nbytes": 2_140_000}


def test_the_bottleneck_is_its_kind_and_words_or_null(
    summary: Callable[..., Summary], snapshot: Callable[..., Snapshot], bottleneck: Bottleneck
) -> None:
    named = {"kind": "sample-bound", "words": "the learner waits for samples; more actors would help"}
    assert summary(bottleneck=bottleneck).document()["bottleneck"] == named
    assert snapshot(bottleneck=bottleneck).metrics()["bottleneck"] == named
    assert summary().document()["bottleneck"] is None
    assert snapshot().metrics()["bottleneck"] is None


def test_groups_and_roles_of_the_user_are_in_rows_and_in_the_summary(
    summary: Callable[..., Summary], snapshot: Callable[..., Snapshot], of_groups: dict[str, Any]
) -> None:
    for document in (snapshot(**of_groups).metrics(), summary(**of_groups).document()):
        assert document["averaging"] == {"rounds": 12, "missed": [0, 3], "lost": [1]}
        first, second = document["by_group"]
        assert list(first) == [
            "group", "env_steps", "updates", "version", "mean_100", "best_mean_100", "consumed"
        ]  # fmt: skip
        assert (first["mean_100"], second["mean_100"]) == (410.5, None)
        assert document["extra"] == {"recorder-5": {"fragments": 30, "files": ["a.npz"]}}


def test_a_row_of_metrics_has_the_replay_or_null(
    snapshot: Callable[..., Snapshot], with_replay: dict[str, Any]
) -> None:
    row = snapshot(**with_replay).metrics()
    assert row["sample_age"]["p50"] == 12_000
    assert row["uses"]["mean"] == 3.96
    assert row["replay"]["size"] == 34_048
    assert (row["staleness_p"], row["stale_priorities"]) == (64 / 50_048, 12)
    without = snapshot().metrics()
    assert list(without) == list(row)
    assert [without[key] for key in ("sample_age", "uses", "replay", "staleness_p")] == [None] * 4


def test_what_json_cannot_hold_becomes_null(
    summary: Callable[..., Summary], snapshot: Callable[..., Snapshot]
) -> None:
    document = summary(produced_per_s=math.nan, time_to={475.0: math.inf}).document()
    assert document["produced_per_s"] is None
    assert document["time_to"] == {"475": None}
    row = snapshot(losses={"value": math.nan, "policy": 0.5}).metrics()
    assert row["losses"] == {"value": None, "policy": 0.5}
    json.dumps([document, row], allow_nan=False)


def test_samples_in_no_account_are_found(summary: Callable[..., Summary]) -> None:
    assert summary().unaccounted == 0
    assert summary(lost=3).unaccounted == 1
    assert summary(received=2901).unaccounted == -1


def test_a_row_of_metrics_names_every_role_and_stop_rule(snapshot: Callable[..., Snapshot]) -> None:
    row = snapshot(second=5, actors=2).metrics()
    assert row["busy"] == {
        "root-0": 0.01,
        "learner-1": 0.97,
        "buffer-1": None,
        "actor-2": 0.8,
        "actor-3": 0.805,
    }
    assert row["stop"] == {"mean_return": 475.0, "env_steps": 1_000_000.0, "wall_s": 600.0}
    assert row["reached"] == {"mean_return": 150.0, "env_steps": 226_000.0, "wall_s": 7.0}
    assert row["reached_in_s"] == {"mean_return": 12.0, "env_steps": 18.0, "wall_s": 593.0}
    assert (
        row["returns.mean_100"],
        row["returns.episodes"],
        row["returns.episodes_in_mean"],
        row["eta_s"],
    ) == (
        150.0,
        185,
        100,
        12.0,
    )


def test_the_rule_that_will_be_met_first_is_the_next_stop(snapshot: Callable[..., Snapshot]) -> None:
    assert snapshot().next_stop.rule == "mean_return"
    assert snapshot(second=0).next_stop.rule == "env_steps"
    out_of_sight = snapshot(stop=(StopProgress("mean_return", None, 475.0),))
    assert out_of_sight.next_stop is None
    assert out_of_sight.eta_s is None
    reached = snapshot(stop=(StopProgress("env_steps", 9.0, 9.0, 0.0), StopProgress("wall_s", 1.0, 2.0, 1.0)))
    assert reached.eta_s == 0.0
