"""Programs in benchmarks/ say in a line what keeps them from measuring."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import runpy
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from lab.profile.made_up_measurements import PPO, made_up

from tianji_algos.distributions import distribution_for
from tianji_algos.ppo.ppo import PPOLoss, PPOMinibatch
from tianji_algos.ppo.settings import PPOSettings
from tianji_cli.config.loader import load_config
from tianji_cli.errors import RunFailed

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["platforms.py", "--config", "nowhere"], 1, "a training of platform-cpu failed"),
        (["apex.py", "--seconds=-1"], 1, "a training of apex-0 failed"),
        (["policy_lag.py", "--rates", "1e-3", "--env-steps", "512"], 1, "a training of 0-1-0.001-1 failed"),
        (
            ["peers/compare.py", "--tianji", "tianji", "--envpool", "python"],
            2,
            "--envpool takes no part in --algorithm ppo; it does in pong",
        ),
        (
            ["peers/compare.py", "--tianji", "tianji", "--cleanrl", "python"],
            2,
            "--cleanrl goes with --cleanrl-script: cleanrl/ppo.py of its repository, which is run as it is",
        ),
        (
            [
                "peers/compare.py",
                "--recipe",
                "ours",
                "--tianji",
                "tianji",
                "--config",
                "configs/dqn_cartpole.toml",
            ],
            1,
            "configs/dqn_cartpole.toml: --recipe ours takes ppo with mlp_actor_critic and one learner",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_benchmark_that_cannot_measure_says_why(
    words: list[str],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = ROOT / "benchmarks" / words[0]
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    why = ended.value.code
    said = capsys.readouterr().err + str(why)
    assert message in said
    assert why == status or (isinstance(why, str) and status == 1)


def test_a_training_without_100_episodes_has_no_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("policy_lag", ROOT / "benchmarks" / "policy_lag.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "policy_lag", program)
    spec.loader.exec_module(program)
    summary = {"returns": {"mean_100": 20.0, "best_mean_100": None}, "staleness": {"mean": 0.0}}
    monkeypatch.setattr(program, "train_once", lambda *_words, **_names: None)
    monkeypatch.setattr(program, "read_summary", lambda _run: summary)
    with pytest.raises(RunFailed, match="PPO ended before 100 episodes or one update: --env-steps 4096"):
        program.train(program.Trial("PPO", 1, 1e-3, 1), 4096, tmp_path)


def _program(script: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a program; neither it nor its neighbours stay known, by names as common as theirs."""
    programs = ROOT / "benchmarks"
    path = programs / script
    monkeypatch.syspath_prepend(str(path.parent))
    program = importlib.import_module(path.stem)
    for name, module in list(sys.modules.items()):
        if (file := getattr(module, "__file__", None)) and programs in Path(file).parents:
            del sys.modules[name]
    return program


def test_peers_are_handed_the_config_and_told_what_they_cannot_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = _program("peers/recipe.py", monkeypatch)
    shipped = (ROOT / "configs" / "ppo_cartpole.toml").read_text()
    config, handed = tmp_path / "config.toml", tmp_path / "recipe.json"
    config.write_text(shipped.replace("[training]", "[training]\ntarget_kl = 0.02\nentropy_coef = 0.003"))
    recipe = program.recipe_of(str(config))
    recipe.write(handed)
    told = program.Recipe.read(str(handed))
    assert told == recipe
    sections = tomllib.loads(config.read_text())
    for section in (sections["training"], sections["model"]):
        for name, value in section.items():
            if name not in {"target_kl", "type"}:
                assert getattr(told, name) == (tuple(value) if isinstance(value, list) else value)
    assert (told.num_envs, told.steps, told.env_steps) == (64, 64, 500_000)
    assert told.left_out == ("without target_kl = 0.02",)
    assert [told.remaining(steps) for steps in (0, 125_000, 600_000)] == [1.0, 0.75, 0.0]
    cheetah = program.recipe_of(str(ROOT / "configs" / "ppo_halfcheetah.toml"), ["model.initial_log_std=-2"])
    assert (cheetah.normalize_observations, cheetah.normalize_rewards) == (True, True)
    assert (cheetah.initial_log_std, cheetah.num_envs, cheetah.left_out) == (-2.0, 32, ())


def test_a_recipe_of_dqn_has_all_that_its_config_sets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = _program("peers/recipe.py", monkeypatch)
    config, handed = ROOT / "configs" / "dqn_cartpole.toml", tmp_path / "recipe.json"
    program.replay_recipe_of(str(config), ["training.huber_delta=2.0"]).write(handed)
    told = program.ReplayRecipe.read(str(handed))
    sections = tomllib.loads(config.read_text())
    for section in ("agent", "model", "training"):
        for name, value in sections[section].items():
            if name not in {"type", "publish_every"}:
                assert getattr(told, name) == (tuple(value) if isinstance(value, list) else value)
    assert (told.capacity, told.num_envs, told.env_steps) == (100_000, 32, 650_000)
    assert told.left_out == ("without huber_delta = 2.0", "without publish_every = 20")


def test_cleanrl_is_told_the_recipe_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = _program("peers/recipe.py", monkeypatch).recipe_of(str(ROOT / "configs" / "ppo_cartpole.toml"))
    peer = _program("peers/cleanrl_peer.py", monkeypatch)
    words = peer.command_line(peer.options_of(recipe))
    told = dict(pairwise(words))
    assert (told["--num-envs"], told["--num-steps"], told["--num-minibatches"]) == ("64", "64", "8")
    assert (told["--total-timesteps"], told["--learning-rate"]) == ("500000", "0.002")
    assert told["--vf-coef"] == "0.5", "of half the squared error, in both"
    assert {"--anneal-lr", "--norm-adv", "--no-clip-vloss"} < set(words)
    assert "two networks of 64 and 64 with tanh" in peer.differences(recipe)


@pytest.fixture
def sac_update(monkeypatch: pytest.MonkeyPatch) -> Any:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")  # as it does itself; what comes after has them as before
    return _program("sac_update.py", monkeypatch)


def _multiplications(*widths: int, batch: int = 256) -> tuple[int, int]:
    """Multiply-adds of a pass from the input to the outputs, and those of its first layer."""
    layers = [batch * below * above for below, above in pairwise(widths)]
    return sum(layers), layers[0]


def test_bare_products_are_those_of_one_update(sac_update: Any) -> None:
    critic, first_of_critic = _multiplications(14, 256, 256, 1)
    # Q functions of the next observation; of the batch, there and back twice but for the input.
    fit = 2 * critic + 2 * (3 * critic - first_of_critic)
    for algorithm, outputs, judges, updates in (("sac", 6, 2, 1), ("td3", 3, 1, 2)):
        actor, first = _multiplications(11, 256, 256, outputs)
        improve = 3 * actor - first + judges * 2 * critic
        assert sac_update.multiplications(algorithm) == actor + fit + improve / updates


def test_sac_update_holds_ratios_of_rounds_against_the_target(sac_update: Any) -> None:
    rates = {"numpy": [79.0, 90.0, 60.0], "bare": [100.0, 100.0, 80.0], "torch": [10.0, 10.0, 10.0]}
    to_bare, to_torch = sac_update.ratios("sac", rates)
    assert (to_bare["median"], to_bare["q1"], to_bare["target"]) == (0.79, 0.77, 0.8)
    assert sac_update.verdict(to_bare).endswith("NO")
    assert sac_update.verdict(to_bare | {"median": 0.8}).endswith("yes")
    assert sac_update.verdict(to_torch) == ""


def test_locomotion_goes_on_with_what_it_has_and_refuses_what_is_of_other_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    locomotion = _program("locomotion.py", monkeypatch)
    trained = []

    def train(_options: argparse.Namespace, seed: int) -> dict[str, Any]:
        trained.append(seed)
        return {"mean": 10.0 * seed, "train_s": 2.0 * seed, "env_steps": 64}

    monkeypatch.setattr(locomotion, "train_tianji", train)
    asked: dict[str, Any] = {"config": "c/hopper.toml", "set": [], "env_steps": 64, "episodes": 2}
    options = argparse.Namespace(out=tmp_path, **asked)
    runs = [locomotion.once(options, "tianji", seed) for seed in (1, 2, 1)]
    assert trained == [1, 2]
    assert runs[0] == runs[2]
    with pytest.raises(SystemExit, match="is of other options"):
        locomotion.once(argparse.Namespace(out=tmp_path, **asked | {"episodes": 3}), "tianji", 1)


def test_locomotion_compares_times_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    locomotion = _program("locomotion.py", monkeypatch)

    def run(contender: str, seed: int, seconds: float) -> dict[str, Any]:
        times = {"train_s": seconds, "wall_s": 2 * seconds}
        return {"contender": contender, "seed": seed, "mean": 7.0, "env_steps": 64, **times}

    runs = [
        run(*words) for words in (("tianji", 1, 1.0), ("sb3", 1, 6.0), ("tianji", 2, 4.0), ("sb3", 2, 8.0))
    ]
    rows = locomotion.summarise(runs)
    assert rows["sb3 over tianji"]["train s"] == {"iqm": 4.0, "low": 2.0, "high": 6.0}
    assert rows["tianji"]["train s"]["iqm"] == 2.5
    assert set(locomotion.summarise(runs[::2])) == {"tianji"}


def test_parts_for_a_gpu_are_run_by_themselves_and_stand_in_a_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu = _program("gpu.py", monkeypatch)
    monkeypatch.setattr(gpu, "LIMIT_S", 1.0)
    endless = "import signal; print('begun', flush=True); signal.pause()"
    codes = {"good": "print('a | b')", "slow": endless, "bad": "raise SystemExit(3)"}
    parts = {name: gpu.Part(("-c", code), f"is {name}") for name, code in codes.items()}
    report = tmp_path / "report.json"
    report.write_text("[1]")
    parts["silent"] = gpu.Part(("-c", "print('nothing was written')"), "is silent", report, str)
    parts["measures"] = gpu.Part(("-c", f"open({str(report)!r}, 'w').write('[2]')"), "measures", report, str)
    outcomes = [gpu.run(name, part, tmp_path) for name, part in parts.items()]
    assert [outcome.status for outcome in outcomes] == [0, None, 3, 0, 0]
    gpu.write(outcomes, tmp_path)
    assert gpu.earlier(tmp_path) == {outcome.part: outcome for outcome in outcomes}
    rows = (tmp_path / "gpu.md").read_text().splitlines()[2:]
    assert rows[0].startswith("| good | is good |")
    assert rows[0].endswith("| 0 | a / b |")
    assert rows[1].endswith("| too long | begun |")
    assert rows[3].endswith("| 0 | nothing was written |"), "what an earlier run has left is not taken"
    assert rows[4].endswith("| 0 | [2] |")


def test_parts_for_a_gpu_say_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _program("gpu.py", monkeypatch)
    returns = {"best_mean_100": 3.5}
    assert gpu.of_pong({"time_to": {"18": 93.21}, "returns": returns, "train_s": 99.0}) == "18 after 93.2 s"
    late = {"time_to": {"18": None}, "returns": returns, "train_s": 420.4}
    assert gpu.of_pong(late) == "best mean return 3.5 after 420 s: missed"
    rows = [{"flowing": 90.0, "bare_idle": 100.0, "of_idle": 0.9}]
    assert gpu.of_updates({"rows": rows}) == "90.0 a second, bare 100.0: 90%"
    assert (
        gpu.of_ppo({"rows": {"tianji": {"median": 2.0}, "plain": {"median": 1.0}}}) == "tianji 2.0, plain 1.0"
    )
    scaling = json.loads((ROOT / "docs" / "figures" / "figure-6a.json").read_text())
    assert gpu.of_scaling(scaling).startswith("L1A1 466,045, L1A2 ")


def test_commands_for_a_gpu_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = _program("gpu.py", monkeypatch)
    for part in gpu.parts(tmp_path).values():
        files = [word for word in part.words if word.endswith((".toml", ".py"))]
        assert all(Path(file).is_file() for file in files)
        assert files or part.words[:2] == ("-m", "pytest")
        assert files == [] or part.report is not None


def test_a_plain_loop_makes_the_update_that_ppo_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo_update = _program("ppo_update.py", monkeypatch)
    asked = ["environment.num_envs=2", "training.rollout_steps=512", "training.minibatch_size=128"]
    config = load_config("configs/ppo_cartpole.toml", [*asked, "training.max_grad_norm=1e6"])
    plain = ppo_update.PlainLoop(ppo_update.builder_of(config), "cpu")
    rows = torch.arange(128)
    observation, action, log_prob, advantage, target = (each[rows] for each in plain._rollout)
    policy, value = plain._model(observation)
    normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    minibatch = PPOMinibatch(
        observation=observation, action=action, log_prob=log_prob, total=128, uses=128,
        value=value.detach(), advantage=normal, target=target,
    )  # fmt: skip
    distribution = distribution_for(gymnasium.spaces.Discrete(2))
    settings = config.training.settings
    assert isinstance(settings, PPOSettings)
    loss, _ = PPOLoss(distribution, settings)(policy, value, minibatch)
    torch.testing.assert_close(plain._loss(rows), loss)
    before = next(plain._model.parameters()).clone()
    assert len(list(itertools.islice(plain.updates(), 9))) == 9, "it goes on after a rollout"
    assert not torch.equal(next(plain._model.parameters()), before)
    ours = ppo_update.tianji(ppo_update.builder_of(config), "cpu")
    assert len(list(itertools.islice(ours, 9))) == 9


def test_the_bound_of_production_is_what_the_parts_cost_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    locomotion = _program("locomotion.py", monkeypatch)
    measured = made_up(PPO, 2)
    document = {"measurements": measured.model_dump(mode="json")}
    (tmp_path / "ppo_cartpole-profile.json").write_text(json.dumps(document))
    found = locomotion.measure_bound(argparse.Namespace(out=tmp_path, config=PPO, set=[]))
    part = measured.parts[0]
    assert found["t_learn"] == pytest.approx(4.0 * part.update_s / 512)
    assert found["t_step"] == pytest.approx(part.step_s / 4096)
    assert found["t_act"] == pytest.approx(part.act_s / 4096)
    assert found["bound"] == pytest.approx(2 / (found["t_step"] + found["t_act"] + found["t_learn"]))
