"""The examples in docs/ run as they are written."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from cli.warm import Tianji

from tianji_algos import registry
from tianji_algos.core import Spaces, build_model
from tianji_algos.models.settings import (
    CNNActorCriticSettings,
    CNNActorQSettings,
    MLPActorQSettings,
    RecurrentActorCriticSettings,
)
from tianji_algos.sac.sac import SACEmbryo
from tianji_algos.sac.settings import SACAgentSettings, SACSettings
from tianji_envs.atari.games import AtariOptions, read_options

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = DOCS / "examples"


def trained(tianji: Tianji, example: str, out: Path, env_steps: int) -> dict[str, Any]:
    stop = f"experiment.stop.env_steps={env_steps}"
    options = ("--quiet", "--out", str(out), "--json", str(out / "summary.json"), "--set", stop)
    few = ("--set", "experiment.eval_episodes=0", "--set", "experiment.plots=false")
    tianji("train", str(EXAMPLES / example), *options, *few)
    result: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert result["status"] == "finished"
    return result


def test_the_corridor_example_trains_with_its_own_environment_and_model(
    tianji: Tianji, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    tianji(
        "train", str(EXAMPLES / "corridor.toml"), "--quiet", "--out", str(tmp_path), "--json", str(summary)
    )
    result = json.loads(summary.read_text())
    assert result["status"] == "finished"
    assert result["evaluation"]["mean"] > 0.9


def test_the_team_of_pettingzoo_s_kind_trains_from_a_module_beside_its_config(
    tianji: Tianji, tmp_path: Path
) -> None:
    summary = trained(tianji, "meeting.toml", tmp_path, 100_000)
    assert summary["returns"]["best_mean_100"] > 1.5  # Chance gets about 0.2.


def test_the_vectorised_team_trains_until_it_wins(tianji: Tianji, tmp_path: Path) -> None:
    summary = trained(tianji, "meetings.toml", tmp_path, 100_000)
    assert summary["returns"]["win_rate"] > 0.75


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs offline.py in this process, where it does not come to training; returns why."""

    def run(*arguments: str) -> str:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")  # As the program would, for good.
        monkeypatch.setattr(sys, "argv", ["offline.py", *arguments])
        with pytest.raises(SystemExit) as refused:
            runpy.run_path(str(EXAMPLES / "offline.py"), run_name="__main__")
        why = str(refused.value.code)
        return capsys.readouterr().err if why == "2" else why

    return run


def test_what_the_recorder_example_writes_trains_a_policy_offline(
    tianji: Tianji, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    summary = trained(tianji, "recorder.toml", tmp_path, 20_000)
    (said,) = summary["extra"].values()
    assert said["written"] > 0
    run = tmp_path / "recorder" / "1"
    offline = [sys.executable, str(EXAMPLES / "offline.py"), str(run), "--updates", "1000"]
    output = subprocess.run(offline, check=True, timeout=200, capture_output=True, text=True).stdout
    assert output.startswith(f"{summary['received'] + summary['in_flight']} env steps of experience")
    tianji("eval", f"{run}-offline", "--episodes", "20", "--json", str(tmp_path / "eval.json"))
    assert json.loads((tmp_path / "eval.json").read_text())["mean"] > 80  # Chance gets about 20.
    directory = run / "roles" / "recorder-0"
    file = directory / "0000.fragments"
    data = bytearray(file.read_bytes())
    data[json.loads((directory / "layout.json").read_text())["offsets"]["action"]] = 7
    file.write_bytes(data)
    again = tmp_path / "again"
    why = refusal(str(run), "--out", str(again))
    assert "0000.fragments, fragment 0: it has an action that there is not" in why
    assert not again.exists()


def test_offline_training_makes_one_update_at_least(tmp_path: Path, refusal: Callable[..., str]) -> None:
    assert "--updates must be at least 1" in refusal(str(tmp_path), "--updates", "0")


def test_offline_training_says_what_is_missing(tmp_path: Path, refusal: Callable[..., str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for config, cause in (("ppo_cartpole", "learns from rollouts"), ("dqn_cartpole", "no files of a role")):
        (run / "config.toml").write_text(f'extends = "configs/{config}.toml"')
        assert cause in refusal(str(run))
    assert not (tmp_path / "run-offline").exists()


def test_the_greedy_example_judges_policies_during_training(tianji: Tianji, tmp_path: Path) -> None:
    trained(tianji, "greedy.toml", tmp_path, 30_000)
    lines = (tmp_path / "greedy" / "1" / "metrics.jsonl").read_text().splitlines()
    said = [json.loads(line).get("extra", {}).get("greedy-2", {}) for line in lines]
    judged = [(one["version"], one["mean"]) for one in said if one.get("mean") is not None]
    assert judged == sorted(judged, key=lambda one: one[0])
    assert all(8 <= mean <= 500 for _, mean in judged), "the shortest episode of CartPole has 8 steps"
    assert judged[-1][0] > 0


def test_the_jury_ends_the_run_at_its_goal_and_no_score_is_lost(tianji: Tianji, tmp_path: Path) -> None:
    summary = trained(tianji, "jury.toml", tmp_path, 2_000_000)
    assert summary["reason"].startswith("the jury's mean is ")
    *players, judge = summary["extra"].values()
    sent = [player["channels"]["scores"]["sent"] for player in players]
    assert len(sent) == 2
    assert judge["channels"]["scores"] == {"received": sum(sent), "lost": 0}
    assert judge["mean"] >= 475.0


def test_a_curious_role_adds_a_bonus_that_falls_and_every_fragment_passes_it(
    tianji: Tianji, tmp_path: Path
) -> None:
    summary = trained(tianji, "curiosity.toml", tmp_path, 60_000)
    (said,) = summary["extra"].values()
    assert said["channels"]["fragments"]["sent"] == said["channels"]["fragments"]["received"] > 20
    assert summary["lost"] == 0
    lines = (tmp_path / "curiosity" / "1" / "metrics.jsonl").read_text().splitlines()
    bonuses = [json.loads(line).get("extra", {}).get("curious-2", {}).get("mean_bonus") for line in lines]
    first = next(bonus for bonus in bonuses if bonus)
    assert 0 < said["mean_bonus"] < first, "what was seen often is no longer new"


def test_a_reward_model_is_learnt_while_its_predictions_are_learnt_from(
    tianji: Tianji, tmp_path: Path
) -> None:
    summary = trained(tianji, "reward_model.toml", tmp_path, 80_000)
    learner, relabel = summary["extra"].values()
    assert learner["error"] < 2.0, "of rewards between -16 and 0, whose variance is about 20"
    assert relabel["channels"]["fragments"]["sent"] == relabel["channels"]["fragments"]["received"] > 20
    assert summary["lost"] == 0


def test_a_teacher_s_policy_shows_a_network_the_way_to_the_top(tianji: Tianji, tmp_path: Path) -> None:
    summary = trained(tianji, "teacher.toml", tmp_path, 60_000)
    teacher, kickstart = summary["extra"].values()
    assert teacher["generation"] > 0
    assert kickstart["agreement"] > 0.5  # Of three actions.
    assert kickstart["channels"]["fragments"]["sent"] == kickstart["channels"]["fragments"]["received"] > 20
    assert summary["lost"] == 0
    assert summary["returns"]["best_mean_100"] > -180  # Without it is -194 (teacher.toml).


def test_demonstrations_show_the_way_to_the_top(tianji: Tianji, tmp_path: Path) -> None:
    summary = trained(tianji, "demonstrations.toml", tmp_path, 60_000)
    (said,) = summary["extra"].values()
    assert said["channels"]["fragments"] == {"sent": 50, "made": pytest.approx(50 * 32 * 8, rel=0.02)}
    assert summary["returns"]["best_mean_100"] > -185  # Without it is below -190 (demonstrations.toml).


def test_a_sampler_of_ones_own_draws_what_is_learnt_from(tianji: Tianji, tmp_path: Path) -> None:
    summary = trained(tianji, "recent.toml", tmp_path, 4000)
    assert summary["session"]["consumed"] > 0
    assert summary["uses"]["mean"] > 0


def test_the_on_policy_example_learns(tianji: Tianji, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    options = ("--quiet", "--out", str(tmp_path), "--json", str(summary), "--set", "experiment.plots=false")
    tianji("train", str(EXAMPLES / "reinforce.toml"), *options)
    result = json.loads(summary.read_text())
    assert "mean return of the last 100 episodes" in result["reason"], "before it runs out of steps"
    assert result["evaluation"]["mean"] > 200  # Chance gets about 20.


def test_what_the_how_to_shows_of_reinforce_is_what_the_example_says() -> None:
    section = (DOCS / "howto/algorithm.md").read_text().partition("\n## On-policy\n")[2].partition("\n## ")[0]
    (shown,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    file = (EXAMPLES / "reinforce.py").read_text().replace("  # noqa: ARG002", "")
    assert shown in file
    code = [line for line in shown.splitlines() if line.strip() and not line.strip().startswith(('"""', "#"))]
    assert len(code) <= 40


def test_what_the_how_to_shows_of_roles_is_what_the_examples_say() -> None:
    text = (DOCS / "howto/role.md").read_text()
    shown = re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL)
    # The formatter of Markdown indents methods as it likes.
    files = [file.read_text().split() for file in EXAMPLES.iterdir() if file.suffix in {".py", ".toml"}]
    assert len(shown) >= 3
    for block in shown:
        assert any(" ".join(block.split()) in " ".join(file) for file in files), block


def test_what_atari_md_shows_of_settings_is_what_there_is() -> None:
    text = (DOCS / "atari.md").read_text()
    game, machado, model = map(tomllib.loads, re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
    assert game["environment"]["options"] == asdict(AtariOptions())
    assert read_options(machado["environment"]["options"]) == AtariOptions(
        sticky=0.25, noop_max=0, life_loss=False, full_action_space=True, fire_reset=False
    )
    del model["model"]["type"]
    assert CNNActorCriticSettings(**model["model"]).precision == "bfloat16"
    rows = re.findall(r"^\| `\"(\w+)\"` \|(?: `(\[.*?\])`)?.*?\| `(\[.*?\])` \|", text, re.MULTILINE)
    assert [name for name, _, _ in rows] == ["nature", "impala_small", "impala_large", "mlp"]
    for name, channels, hidden in rows:
        settings = RecurrentActorCriticSettings(encoder=name)
        assert json.loads(hidden) == list(settings.widths)
        assert not channels or json.loads(channels) == list(settings.section_channels)


def test_what_control_md_shows_is_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "control.md").read_text()
    shown, of_images, own = map(tomllib.loads, re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
    del of_images["model"]["type"]
    settled = CNNActorQSettings().model_dump(mode="json")
    assert of_images["model"] == {name: settled[name] for name in of_images["model"]}
    for section, settings in (
        ("agent", SACAgentSettings()),
        ("model", MLPActorQSettings()),
        ("training", SACSettings()),
    ):
        shown[section].pop("type", None)
        settled = settings.model_dump(mode="json")
        assert shown[section] == {name: settled[name] for name in shown[section]}
    (code,) = re.findall(r"```python\n# my_networks.py\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_networks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    network = registry.load("model", own["model"]["type"])
    spaces = Spaces(gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float64), gymnasium.spaces.Box(-2.0, 2.0, (1,)))
    model = build_model(network, spaces, network.settings_type(), 0)
    SACEmbryo(spaces, model, SACSettings(), 0)
    assert model.executor(2)(np.zeros((2, 3)))[0].shape == (2, 2)
