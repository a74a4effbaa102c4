"""A new run takes over parameters of another that fit by name and shape, in every algorithm."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tianji_algos.core import Agent, Embryo
from tianji_cli.config.loader import load_config
from tianji_cli.errors import TianjiError, UsageError
from tianji_cli.files.checkpoint import CheckpointWriter, TrainingState
from tianji_cli.files.saved import CheckpointError, Progress
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import make_plan
from tianji_cli.roles.learner.learner import Episodes
from tianji_cli.worker.builder import Builder

CONFIGS = Path(__file__).parents[3] / "configs"
HERE = {
    "ppo": ("ppo_cartpole", ["training.normalize_observations=true", "training.normalize_rewards=true"]),
    "a2c": ("a2c_cartpole", []),
    "impala": ("impala_cartpole", []),
    "ppo that remembers": ("ppo_memory", []),
    "dqn": ("dqn_cartpole", ["training.normalize_observations=true"]),
    "r2d2": (
        "dqn_cartpole",
        [
            "agent={ type = 'r2d2' }",
            "model={ type = 'recurrent_q' }",
            "training={ type = 'r2d2' }",
            "distribution.actor.send_size=32",
            "distribution.buffer={ capacity = 100_000, sampler = 'uniform' }",
        ],
    ),
    "sac": ("sac_pendulum", []),
    "td3": (
        "sac_pendulum",
        ["agent={ type = 'td3' }", "model={ type = 'mlp_deterministic_q' }", "training={ type = 'td3' }"],
    ),
    "mappo": ("mappo_spread", []),
    "qmix": ("qmix_spread", []),
    "maddpg": ("maddpg_spread", []),
}
EVERY = pytest.mark.parametrize("kind", HERE)


def builder(kind: str, *more: str, init: Path | None = None, seed: int = 1) -> Builder:
    name, overrides = HERE[kind]
    few = [f"experiment.seed={seed}", "environment.num_envs=2", "distribution.actor.num=1"]
    begun = ["experiment.init_from=x"] if init is not None else []
    tree = [*overrides, *few, *begun, *more]
    config = load_config(str(CONFIGS / f"{name}.toml"), tree)
    plan = make_plan(config)
    return Builder(Job("", "", plan, Path(), Path(), init=init), config, plan.carrying("learner")[0], 0)


def learnt(kind: str, place: Path, *more: str) -> Builder:
    """Leave a checkpoint whose numbers no other run begins with."""
    built = builder(kind, *more)
    embryo = built.embryo(built.model())
    rng = np.random.default_rng(3)
    flat = np.zeros(embryo.model.parameter_count, np.float32)
    embryo.model.write_parameters(flat)
    flat += rng.uniform(0.0, 0.1, len(flat)).astype(np.float32)
    embryo.model.read_parameters(flat)
    tensors, rest = embryo.state()
    tensors = {name: tensor + 0.5 for name, tensor in tensors.items()}
    rest |= {key: 7 for key in rest if key.endswith("_steps")}
    episodes = Episodes().state()
    state = TrainingState(flat, None, tensors, rest, asdict(Progress(env_steps=7)), episodes)
    CheckpointWriter(place, embryo.model, keep=1).write(state)
    return built


def begun(built: Builder) -> tuple[Embryo, dict[str, Any]]:
    embryo, report = built.begun_embryo(built.model())
    assert report is not None
    return embryo, report


def acts(built: Builder, agent: Agent, steps: int = 3) -> list[Any]:
    """Greedy actions of an agent on random observations."""
    environment = built.environment(2)
    shown = environment.new_observations()
    environment.reset(5, shown)
    environment.close()
    return [agent.act_greedily(shown).copy() for _ in range(steps)]


@EVERY
def test_a_run_begins_as_the_policy_that_it_is_of(kind: str, tmp_path: Path) -> None:
    source = learnt(kind, tmp_path)
    target = builder(kind, init=tmp_path / "best", seed=2)
    embryo, report = begun(target)
    saved = load_file(tmp_path / "best/model.safetensors")
    assert sorted(report["taken"]) == sorted(saved)
    assert report["new"] == {}
    assert report["unused"] == []
    tensors, _ = embryo.state()
    for name, tensor in saved.items():
        assert torch.equal(tensors[f"model.{name}"].float(), tensor), name
    prefix = {"target": "", "target_critics": "critics.", "target_actor": "actor."}
    for name, tensor in tensors.items():
        owner, _, rest = name.partition(".")
        if owner in prefix:
            assert torch.equal(tensor, tensors[f"model.{prefix[owner]}{rest}"]), name
    flat = np.zeros(embryo.model.parameter_count, np.float32)
    embryo.model.write_parameters(flat)
    theirs = source.agent(source.model(), 2, seed=0)
    own = target.agent(target.model(), 2, seed=0)
    own.adopt(flat)
    model = source.model()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(saved[name])
    model.write_parameters(flat)
    theirs.adopt(flat)
    for one, other in zip(acts(source, theirs), acts(target, own), strict=True):
        np.testing.assert_array_equal(one, other)


@EVERY
def test_an_optimizer_goes_on_where_that_is_asked(kind: str, tmp_path: Path) -> None:
    learnt(kind, tmp_path)
    fresh, _ = begun(builder(kind, init=tmp_path / "last", seed=2))
    taken, _ = begun(builder(kind, "experiment.init.optimizer=true", init=tmp_path / "last", seed=2))
    (own, counted), (others, going_on) = fresh.state(), taken.state()
    moments = [name for name in own if not name.startswith(("model.", "target"))]
    assert moments
    for name in own:
        assert torch.equal(own[name], others[name]) == (name not in moments), name
    counts = [key for key in counted if key.endswith("_steps")]
    assert [counted[key] for key in counts] == [0] * len(counts)
    assert [going_on[key] for key in counts] == [7] * len(counts)
    assert counted.get("rng") == going_on.get("rng")


def test_a_head_for_other_actions_is_new(tmp_path: Path) -> None:
    learnt("ppo", tmp_path)
    other = ["environment.id=Acrobot-v1", "training.normalize_observations=false"]
    there = r"there are policy.0.bias \[48\], .* and here policy.0.bias \[9\]"
    with pytest.raises(UsageError, match=rf"nothing of .*best fits the model: {there}"):
        begun(builder("ppo", "model.hidden=[9, 9]", *other, init=tmp_path / "best"))
    embryo, report = begun(builder("ppo", *other, init=tmp_path / "best"))
    heads = ["policy.4.weight", "policy.4.bias"]  # Three actions and a value, in place of two and a value.
    assert list(report["new"]) == ["policy.0.weight", *heads]
    assert report["new"]["policy.4.bias"] == "[4], [3] there"
    taken = dict(embryo.model.named_parameters())["policy.2.weight"]
    assert torch.equal(taken, load_file(tmp_path / "best/model.safetensors")["policy.2.weight"])
    assert any(name.startswith("normalizer.") for name in report["unused"])


def test_statistics_are_taken_or_not_and_those_that_belong_together_alike(tmp_path: Path) -> None:
    learnt("ppo", tmp_path)
    statistics = [name for name in load_file(tmp_path / "best/model.safetensors") if "normalizer" in name]
    _, report = begun(builder("ppo", "experiment.init.statistics=false", init=tmp_path / "best"))
    assert sorted(report["new"]) == sorted(statistics)
    assert all(why.endswith("statistics = false") for why in report["new"].values())

    # Of an observation with more numbers the count alone would fit, and new statistics would never move.
    _, report = begun(builder("ppo", "environment.id=Acrobot-v1", init=tmp_path / "best"))
    assert report["new"]["normalizer.observations.count"] == "as the others of its kind"
    assert "normalizer.returns.count" in report["taken"]


def test_a_file_may_have_any_names(tmp_path: Path) -> None:
    learnt("dqn", tmp_path)
    saved = load_file(tmp_path / "best/model.safetensors")
    first = next(name for name in saved if not name.startswith("normalizer"))
    file = tmp_path / "theirs.safetensors"
    save_file(
        {first: saved[first].double(), "../\x1b[31m": torch.ones(2), "ids": torch.ones(3, dtype=int)}, file
    )
    embryo, report = begun(builder("dqn", init=file))
    assert report["taken"] == [first]
    assert report["unused"] == ["../\x1b[31m", "ids"]
    assert torch.equal(dict(embryo.model.named_parameters())[first], saved[first])
    with pytest.raises(UsageError, match=r"init\.optimizer: it has to fit, and .* begins anew: .* there"):
        begun(builder("dqn", "experiment.init.optimizer=true", init=file))
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"cannot read .*theirs.safetensors"):
        begun(builder("dqn", init=file))
    (tmp_path / "best/model.safetensors").write_bytes(b"\0" * 99)
    with pytest.raises(CheckpointError, match="is damaged"):
        begun(builder("dqn", init=tmp_path / "best"))


def test_an_optimizer_of_another_rule_or_of_none_is_refused(tmp_path: Path) -> None:
    learnt("ppo", tmp_path / "ppo")
    asked = "experiment.init.optimizer=true"
    model = "model.hidden=[48, 48]"  # As ppo_cartpole has it.
    with pytest.raises(UsageError, match=r"belongs to 'ppo', not to 'impala'; RUN:last of a run"):
        begun(builder("impala", asked, model, init=tmp_path / "ppo/last"))
    with pytest.raises(UsageError, match=r"training\.safetensors.*; RUN:last of a run"):
        begun(builder("ppo", asked, init=tmp_path / "ppo/best"))


def test_a_temperature_that_is_set_is_the_settings_business(tmp_path: Path) -> None:
    learnt("sac", tmp_path)
    embryo, _ = begun(builder("sac", "training.temperature=0.25", init=tmp_path / "best"))
    found = dict(embryo.model.named_parameters())["log_temperature"]
    assert float(found.detach().exp()) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("freeze", "what"),
    [
        ('["encodr.*"]', "'encodr.*' matches no parameter; there are "),
        ('["*"]', "nothing is left to be trained"),
    ],
)
def test_patterns_that_freeze_nothing_or_all_are_refused(freeze: str, what: str, tmp_path: Path) -> None:
    learnt("dqn", tmp_path)
    with pytest.raises(UsageError, match=r"experiment\.init\.freeze: ") as refused:
        begun(builder("dqn", f"experiment.init.freeze={freeze}", init=tmp_path / "best"))
    assert what in str(refused.value)


def test_what_is_new_is_not_frozen(tmp_path: Path) -> None:
    learnt("ppo", tmp_path)
    names = [name for name, _ in builder("ppo").model().named_parameters()]
    frozen = f'experiment.init.freeze=["{names[0]}"]'
    with pytest.raises(TianjiError, match=r"what is frozen has to fit, and .* begins anew"):
        begun(builder("ppo", "environment.id=Acrobot-v1", frozen, init=tmp_path / "best"))
    embryo, report = begun(builder("ppo", frozen, init=tmp_path / "best"))
    assert report["frozen"] == [names[0]]
    assert embryo is not None
