"""A run that goes on with other rewards, another environment or other evaluations has another best policy."""

import json
import signal
from pathlib import Path
from typing import Any

import tianji

OTHER_REWARD = ("--set", "environment.options.sutton_barto_reward=true")
"""A step of CartPole then pays 0, and its end -1: the mean return of all policies is -1, or about that."""
THRESHOLDS = {"experiment": {"thresholds": [15.0], "stop": {"env_steps": 8192}}}


def best_weights(run: Any, name: str = "best") -> bytes:
    return bytes((run.path / "checkpoints" / name / "model.safetensors").read_bytes())


def until(env_steps: int) -> tuple[str, str]:
    return "--set", f"experiment.stop.env_steps={env_steps}"


def test_a_session_with_another_reward_begins_its_own_best_policy(workplace: Any) -> None:
    run = workplace.train(THRESHOLDS)
    first = run.finish()
    assert first["returns"]["best_mean_100"] > 15
    weights, config = best_weights(run), (run.path / "config.toml").read_bytes()

    again = workplace.resume(run, *until(32768), *OTHER_REWARD)
    second = again.finish()
    said = (
        "environment.options.sutton_barto_reward was not set and is true: this session begins its own best "
        f"policy; the best until now stays as checkpoint session-1 (tianji eval {run.path} --checkpoint "
        "session-1)"
    )
    assert said in run.log
    assert -1.5 < second["returns"]["best_mean_100"] <= 0
    assert second["time_to"] == {"15": None}
    assert best_weights(run) != weights
    assert best_weights(run, "session-1") == weights
    assert (run.path / "config.toml").read_bytes() == config
    assert tianji.Run(run.path).config["environment"]["options"] == {"sutton_barto_reward": True}
    played = workplace.command("eval", str(run.path), "--episodes", "5", "--json", "-")
    played.wait(0)
    assert -1 <= json.loads(played.stdout)["mean"] <= 0
    former = workplace.command("eval", str(run.path), "--episodes", "5", "--checkpoint", "session-1")
    former.wait(0)

    # A third session judges as the second did, and goes on from its best.
    third = workplace.resume(run, *until(65536)).finish()
    assert third["returns"]["best_mean_100"] >= second["returns"]["best_mean_100"]
    assert run.log.count("begins its own best policy") == 1
    assert sorted(path.name for path in run.path.glob("config*")) == [
        "config-2.toml",
        "config-3.toml",
        "config.toml",
    ]


def test_goals_of_returns_count_anew_where_rewards_are_others(workplace: Any) -> None:
    run = workplace.train({"experiment": {"stop": {"mean_return": 15.0, "env_steps": 8192}}})
    assert run.finish()["reason"].startswith("mean return")
    again = workplace.resume(run, "--set", "environment.options.sutton_barto_reward=true").finish()
    assert again["reason"] == "8192 environment steps"
    assert again["received"] > 0


def test_each_group_begins_its_own_best_policy(workplace: Any) -> None:
    groups = {"distribution": {"groups": 2}}
    run = workplace.train(THRESHOLDS, groups)
    assert run.finish()["returns"]["best_mean_100"] > 15
    weights = best_weights(run)
    second = workplace.resume(run, *until(65536), *OTHER_REWARD).finish()
    assert -1.5 < second["returns"]["best_mean_100"] <= 0
    for group in ("", "group-1/"):
        state = json.loads((run.path / f"checkpoints/{group}last/state.json").read_text())
        assert -1.5 < state["episodes"]["best_mean"] <= 0
    assert best_weights(run, "session-1") == weights


def test_the_best_evaluation_is_the_sessions_own_where_evaluations_are_others(workplace: Any) -> None:
    every = {"every_env_steps": 1000, "episodes": 8}
    run = workplace.train({"experiment": {"stop": {"env_steps": 10**9}, "evaluation": every}})

    def means() -> list[float]:
        return [row["mean"] for row in run.rows if row.get("kind") == "evaluation"]

    def evaluated(run: Any) -> Any:
        before = len(means())
        workplace.until(lambda: len(means()) >= before + 2, "two evaluations")
        run.command.signal_all(signal.SIGINT)
        return run.finish(130)["evaluated"]

    first, number = evaluated(run), len(means())
    weights = best_weights(run)
    second = evaluated(workplace.resume(run, "--set", "experiment.evaluation.episodes=1"))
    assert "experiment.evaluation.episodes was 8 and is 1: this session begins" in run.log
    since = means()[number:]
    assert second["best_mean"] == max(since)
    assert first["best_mean"] is not None
    assert best_weights(run, "session-1") == weights
    saved = json.loads((run.path / "checkpoints/best/state.json").read_text())
    assert saved["evaluation"]["mean"] == max(since)

    third = evaluated(workplace.resume(run, *OTHER_REWARD))
    assert -1 <= third["best_mean"] <= 0, "0 for an episode that lasts to its limit"


def contents(place: Path) -> dict[str, bytes | str]:
    """Every file of a run's checkpoints and configs, and where links lead."""
    found = [*place.glob("config*"), *(place / "checkpoints").rglob("*")]
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in found
        if path.is_symlink() or path.is_file()
    }


def test_a_session_that_cannot_begin_leaves_config_and_best_as_they_were(workplace: Any) -> None:
    run = workplace.train()
    run.finish()
    before = contents(run.path)
    other = ("--set", "environment.id=Acrobot-v1")
    refused = workplace.resume(run, *until(8192), *other)
    refused.command.wait(2)
    assert "is of another model" in refused.command.last_words
    assert contents(run.path) == before


def test_a_goal_that_is_moved_keeps_the_best_policy(workplace: Any) -> None:
    run = workplace.train(THRESHOLDS)
    first = run.finish()
    more = ("--set", "environment.num_envs=4", "--set", "experiment.eval_episodes=5")
    second = workplace.resume(run, *until(8704), *more).finish()
    assert second["returns"]["best_mean_100"] >= first["returns"]["best_mean_100"]
    assert second["time_to"] == first["time_to"]
    assert "begins its own best" not in run.log
    assert not (run.path / "checkpoints/session-1").exists()


def test_a_session_trains_with_what_it_was_told_after_one_that_saved_nothing(workplace: Any) -> None:
    run = workplace.train({"experiment": {"stop": {"env_steps": 10**9}}})

    def interrupted(run: Any) -> float:
        run.train_until(run.env_steps + 500)
        run.command.signal_all(signal.SIGINT)
        run.finish(130)
        return float(tianji.Run(run.path).config["training"]["learning_rate"])

    rate = interrupted(run)
    broken = workplace.resume(run, "--set", "training.learning_rate=1e30").command
    broken.wait(1)
    assert "not finite" in broken.last_words
    assert interrupted(workplace.resume(run, "--set", f"training.learning_rate={rate}")) == rate


def test_a_session_whose_actions_mean_others_begins_its_own_best_policy(workplace: Any) -> None:
    environment = {"environment": {"id": "Pendulum-v1"}}
    run = workplace.train(environment, {"agent": {"scale_actions": False}})
    run.finish()
    workplace.resume(run, *until(8192), "--set", "agent.scale_actions=true").finish()
    assert "agent.scale_actions was false and is true: this session begins its own best" in run.log
