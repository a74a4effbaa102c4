"""Teams through the command line: wins, returns of each agent, baselines, interruption and resumption."""

import json
import signal
from pathlib import Path
from typing import Any

import av
import pytest
from cli import signalling, skirmish
from cli.lifecycle.conftest import ENDLESS

BASE: dict[str, Any] = {
    "experiment": {"name": "run", "stop": {"env_steps": 4096}, "eval_episodes": 8},
    "environment": {"type": "mpe", "id": "simple_spread", "num_envs": 4},
    "agent": {"type": "mappo"},
    "model": {"type": "team_actor_critic", "hidden": [16]},
    "training": {"rollout_steps": 512, "minibatch_size": 128, "epochs": 2},
    "distribution": {
        "transport": "shm",
        "pin_cores": False,
        "actor": {"num": 1, "send_size": 16, "window": 2},
    },
}
LIMITS = ("left_out", "cut_off", "length")
SKIRMISH = {"environment": {"type": "my_env:SkirmishFactory", "id": ""}}


@pytest.fixture(autouse=True)
def teams(workplace: Any) -> None:
    workplace.base = BASE
    workplace.module(Path(skirmish.__file__).read_text())


def figures(workplace: Any, run: Any, *options: str) -> dict[str, Any]:
    """The result of `tianji eval` on a run."""
    command = workplace.command("eval", str(run.path), "--seed", "5", "--json", "-", *options)
    command.wait(0)
    document: dict[str, Any] = json.loads(command.stdout)
    return document


@pytest.mark.timeout(300)  # Many commands in a row.
def test_a_team_is_evaluated_by_agent_and_beside_its_baselines(workplace: Any) -> None:
    run = workplace.train(options=())
    summary = run.finish()
    evaluation = summary["evaluation"]
    assert list(evaluation) == ["episodes", "mean", "std", "agents", *LIMITS]
    assert list(evaluation["agents"]) == ["agent_0", "agent_1", "agent_2"]
    assert sum(evaluation["agents"].values()) == pytest.approx(evaluation["mean"], rel=1e-4)
    assert "of each agent   agent_0 " in run.command.stdout
    assert not any("returns.win_rate" in row for row in run.rows), "nothing is won here"
    assert "win" not in json.dumps(summary)
    assert not list((run.path / "plots").glob("win*"))

    played = {
        name: figures(workplace, run, "--policy", name, "--episodes", "8")
        for name in ("trained", "random", "heuristic")
    }
    for name, one in played.items():
        assert one.pop("policy", "trained") == name
        assert list(one) == ["episodes", "mean", "std", "agents", *LIMITS, "min", "max", "returns"]
        assert sum(one["agents"].values()) == pytest.approx(one["mean"], rel=1e-4)
    assert played["heuristic"]["mean"] > played["random"]["mean"] + 20
    assert figures(workplace, run, "--policy", "random", "--episodes", "8") == {
        "policy": "random",
        **played["random"],
    }

    figures(workplace, run, "--policy", "heuristic", "--episodes", "1", "--render", "play.mp4")
    with av.open(str(workplace.place / "play.mp4")) as container:
        assert container.streams.video[0].frames == 1 + 25


@pytest.mark.timeout(300)  # Many commands in a row.
def test_a_run_says_how_much_was_won_and_may_end_by_it(workplace: Any) -> None:
    stop = {"experiment": {"stop": {"win_rate": 0.3, "wall_s": 600.0}}}
    run = workplace.train(SKIRMISH, stop, options=())
    summary = run.finish()
    won = summary["returns"]["win_rate"]
    assert "% of the last 100 episodes were won" in summary["reason"]
    assert 0.3 <= won <= 0.8
    assert list(summary["evaluation"]) == ["episodes", "mean", "std", "win_rate", "agents", *LIMITS]
    rows = run.rows
    assert "returns.win_rate" not in rows[0], "no episode has ended yet"
    assert rows[-1]["returns.win_rate"] == won
    assert rows[-1]["stop"] == {"win_rate": 0.3, "wall_s": 600.0}
    assert f" returns.win_rate={won:g} " in run.command.stderr
    assert "win rate        " in run.command.stdout
    assert {path.name for path in (run.path / "plots").glob("win*")} == {
        "win_rate_over_steps.png",
        "win_rate_over_time.png",
    }
    watched = workplace.command("watch", str(run.path))
    watched.wait(0)
    assert "win rate        " in watched.stdout

    played = figures(workplace, run, "--episodes", "40")
    assert 0 < played["win_rate"] < 1
    told = workplace.command("eval", str(run.path), "--policy", "random", "--episodes", "4")
    told.wait(0)
    assert "mean of 4 episodes, " in told.stdout
    assert " % won (min " in told.stdout
    assert "mean of each agent: scout " in told.stdout
    refused = workplace.command("eval", str(run.path), "--policy", "heuristic")
    refused.wait(2)
    assert "has no heuristic" in refused.last_words
    for policy, word in (("hueristic", "did you mean 'heuristic'?"), ("random", "--checkpoint says which")):
        wrong = workplace.command("eval", str(run.path), "--policy", policy, "--checkpoint", "last")
        wrong.wait(2)
        assert word in wrong.last_words


def of_masks(shows: str, **options: Any) -> dict[str, Any]:
    environment = {"type": "pettingzoo", "id": "my_env", "options": {"shows": shows, **options}}
    return {
        "experiment": {"extensions": ["."], "stop": {"env_steps": 8192}},
        "environment": environment,
        "training": {"learning_rate": 1e-2, "epochs": 4},
        "distribution": {"mode": "sync"},
    }


@pytest.mark.timeout(300)  # Many commands in a row.
def test_masks_in_infos_are_learnt_with_as_those_in_observations_bit_for_bit(workplace: Any) -> None:
    """The environment raises an error at an action that its mask does not allow."""
    workplace.module(Path(signalling.__file__).read_text())
    found = {}
    for shows in ("info", "observation"):
        run = workplace.train(of_masks(shows))
        summary = run.finish()
        found[shows] = summary["returns"], summary["evaluation"], summary["updates"]
    assert found["info"] == found["observation"]
    assert found["info"][1]["mean"] > 15.0, "of 16; at random it is 8"
    assert figures(workplace, run, "--policy", "random", "--episodes", "4")["min"] >= 0


def test_a_mask_of_the_wrong_shape_is_refused_before_there_is_a_run(workplace: Any) -> None:
    workplace.module(Path(signalling.__file__).read_text())
    run = workplace.train(of_masks("info", numbers=3))
    run.command.wait(2)
    assert "my_env: left has an action_mask of shape (3,) in its info for 4 actions" in run.command.last_words
    assert not run.path.exists()


def test_a_team_that_was_interrupted_goes_on_where_it_was(workplace: Any) -> None:
    run = workplace.train(SKIRMISH, ENDLESS)
    run.train_until(3000)
    run.command.signal_all(signal.SIGINT)
    first = run.finish(130)
    assert first["evaluation"] is None
    again = workplace.resume(run, "--set", f"experiment.stop.env_steps={first['env_steps'] + 2048}").finish()
    assert again["env_steps"] == first["env_steps"] + again["received"]
    assert 0 < again["returns"]["win_rate"] < 1
    assert set(again["evaluation"]["agents"]) == {"scout", "medic", "tank"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            {"agent": {"type": "ppo"}, "model": {"type": "mlp_actor_critic"}},
            "agent.type: 'ppo' acts for a single agent, and simple_spread shows a team; maddpg, mappo or",
            id="one for a team",
        ),
        pytest.param(
            {"environment": {"type": "gym", "id": "CartPole-v1"}},
            "agent.type: 'mappo' acts for a team, and CartPole-v1 shows a single agent; dqn, impala",
            id="a team for one",
        ),
        pytest.param(
            {"environment": {"options": {"local_ration": 0.5}}},
            "environment.options.local_ration: simple_spread has no option 'local_ration'",
            id="an option that is misspelt",
        ),
        pytest.param(
            {"experiment": {"stop": {"win_rate": 0.5}}},
            "experiment.stop.win_rate: simple_spread does not say whether an episode was won",
            id="a goal that nothing comes near to",
        ),
        pytest.param(
            {**SKIRMISH, "agent": {"type": "ppo"}, "model": {"type": "mlp_actor_critic"}},
            "agent.type: 'ppo' acts for a single agent, and my_env:SkirmishFactory shows a team; maddpg,",
            id="one for a team of one's own",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_there_is_a_run(
    workplace: Any, change: dict[str, Any], words: str
) -> None:
    run = workplace.train(change)
    run.command.wait(2)
    assert words in run.command.last_words
    assert len(run.command.stderr.splitlines()) == 1
    assert not run.path.exists()
