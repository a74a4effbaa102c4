"""`tianji export`: files act in onnxruntime as the policy itself does, and say what they take."""

import copy
import json
import os
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tomli_w
from cli.lifecycle.conftest import BASE
from cli.lifecycle.test_lifecycle_python import MODEL, trained

import tianji

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # For this process: commands have to think of it themselves.
import onnxruntime

del os.environ["ORT_DISABLE_TELEMETRY"]

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(autouse=True)
def modules_of_a_test_are_not_the_next_one_s(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_env", None)


class Exported:
    """The file that `tianji export --check` wrote, and its report."""

    def __init__(self, workplace: Any, run: Path, *options: str) -> None:
        self.path = workplace.place / "policy.onnx"
        options = ("--format", "onnx", "--out", str(self.path), "--check", "--json", "-", *options)
        command = workplace.command("export", str(run), *options)
        command.wait(0)
        self.document: dict[str, Any] = json.loads(command.stdout)
        differences = self.document["checked"]["differences"]
        assert self.document["checked"]["observations"] == 1000
        assert max(differences.values()) <= 1e-4
        assert set(differences) == {port["name"] for port in self.document["outputs"]} - {"next_state"}
        self.outputs = [port["name"] for port in self.document["outputs"]]
        self._session = onnxruntime.InferenceSession(self.path)

    def shapes(self, side: str) -> dict[str, tuple[Any, ...]]:
        return {port["name"]: (port["dtype"], *port["shape"]) for port in self.document[side]}

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        return dict(zip(self.outputs, self._session.run(None, inputs), strict=True))


def noise_of(policy: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """The first draws of an agent with this seed."""
    rng = np.random.default_rng(seed)
    return rng.random(shape, np.float32) if policy == "uniform" else rng.standard_normal(shape, np.float32)


def test_a_file_normalises_samples_and_says_what_it_takes(workplace: Any) -> None:
    run = trained(workplace, {"training": {"normalize_observations": True}})
    file = Exported(workplace, run, "--checkpoint", "last", "--sampled")
    assert file.shapes("inputs") == {"observation": ("float32", "batch", 4), "noise": ("float32", "batch")}
    assert file.shapes("outputs") == {
        "action": ("int64", "batch"),
        "sampled_action": ("int64", "batch"),
        "logits": ("float32", "batch", 2),
    }
    policy = tianji.load(run, "last")
    seen = np.random.default_rng(1).normal(size=(300, 4)).astype(np.float32)
    found = file(observation=seen, noise=noise_of("uniform", (300,)))
    np.testing.assert_array_equal(found["action"], policy.act(seen))
    np.testing.assert_array_equal(found["sampled_action"], policy.act(seen, deterministic=False))
    assert set(found["sampled_action"]) == set(found["action"]) == {0, 1}
    assert file(observation=seen[:1], noise=np.zeros(1, np.float32))["action"] == found["action"][:1]

    model = onnx.load(file.path)
    document = json.loads({entry.key: entry.value for entry in model.metadata_props}["tianji"])
    assert document == {name: file.document[name] for name in document}
    steps = json.loads((run / "checkpoints/last/state.json").read_text())["progress"]["env_steps"]
    assert (document["run"], document["checkpoint"], document["env_steps"]) == ("run/1", "last", steps)
    assert (document["agent"], document["environment"]["id"]) == ("ppo", "CartPole-v1")
    assert "normalised" in document["inputs"][0]["meaning"]
    meanings = [port["meaning"] for side in ("inputs", "outputs") for port in document[side]]
    assert [value.doc_string for value in (*model.graph.input, *model.graph.output)] == meanings


def test_without_noise_nothing_is_drawn_and_the_page_s_example_plays(
    workplace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(workplace)
    file = Exported(workplace, run)
    assert file.outputs == ["action", "logits"], "without --sampled nothing is drawn"
    seen = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(file(observation=seen)["action"], tianji.load(run).act(seen))

    (example, *_) = re.findall(r"```python\n(.*?)```", (DOCS / "export.md").read_text(), re.DOTALL)
    (workplace.place / "example.py").write_text(example)
    monkeypatch.chdir(workplace.place)
    assert runpy.run_path("example.py")["over"]


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_continuous_actions_are_scaled_and_clipped(workplace: Any, agent: str) -> None:
    workplace.base = copy.deepcopy(workplace.base)
    workplace.base["environment"]["id"] = "Pendulum-v1"
    if agent == "ppo":
        workplace.base["model"]["initial_log_std"] = 1.0
    else:
        workplace.base["agent"] = {"type": "sac"}
        workplace.base["model"] = {"type": "mlp_gaussian_q", "hidden": [16], "critic_hidden": [16]}
        workplace.base["training"] = {"warmup_steps": 512, "batch_size": 64}
        workplace.base["distribution"]["actor"]["send_size"] = 4
    run = trained(workplace)
    file, policy = Exported(workplace, run, "--sampled"), tianji.load(run)
    seen = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    found = file(observation=seen, noise=noise_of("normal", (200, 1)))
    np.testing.assert_allclose(found["action"], policy.act(seen), atol=1e-4)
    sampled = policy.act(seen, deterministic=False)
    np.testing.assert_allclose(found["sampled_action"], sampled, atol=1e-4)
    assert np.ptp(sampled) > 2.0, "from bound to bound, which are -2 and 2"
    assert np.abs(sampled).max() <= 2.0
    assert (np.count_nonzero(np.abs(sampled) == 2.0) > 5) == (agent == "ppo"), "it clips"
    drawn = found["mean"] + found["std"] * noise_of("normal", (200, 1))
    wanted = 2.0 * (np.clip(drawn, -1.0, 1.0) if agent == "ppo" else np.tanh(drawn))
    np.testing.assert_allclose(found["sampled_action"], wanted, atol=1e-4)


def test_action_values_choose_without_the_random_actions_of_evaluations(workplace: Any) -> None:
    workplace.base = copy.deepcopy(workplace.base) | {
        "agent": {"type": "dqn", "eval_epsilon": 0.5},
        "model": {"type": "mlp_q", "hidden": [16], "dueling": True},
        "training": {"warmup_steps": 512, "batch_size": 64, "normalize_observations": True},
    }
    file = Exported(workplace, trained(workplace))
    assert file.outputs == ["action", "action_values"]
    found = file(observation=np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32))
    np.testing.assert_array_equal(found["action"], found["action_values"].argmax(axis=1))


@pytest.mark.parametrize("agent", ["ppo", "r2d2"])
def test_what_a_network_remembers_goes_in_and_comes_out(workplace: Any, agent: str) -> None:
    workplace.base = copy.deepcopy(workplace.base)
    core = {"encoder": "mlp", "hidden": [16], "core": "lstm" if agent == "ppo" else "gru", "width": 8}
    if agent == "ppo":
        workplace.base["model"] = {"type": "recurrent_actor_critic", **core}
    else:
        workplace.base["agent"] = {"type": "r2d2"}
        workplace.base["model"] = {"type": "recurrent_q", **core}
        workplace.base["training"] = {"warmup_steps": 512, "batch_size": 8, "burn_in": 16, "unroll_steps": 16}
    run = trained(workplace)
    file, policy = Exported(workplace, run), tianji.load(run)
    (state,) = [port for port in file.document["inputs"] if port["name"] == "state"]
    assert (state["shape"], state["initial"]) == (["batch", 16 if agent == "ppo" else 8], 0)
    remembered = {"state": np.zeros((3, state["shape"][1]), np.float32)}
    scores = "logits" if agent == "ppo" else "action_values"
    given = []
    for seen in np.random.default_rng(1).normal(size=(60, 1, 4)).astype(np.float32).repeat(3, axis=1):
        found = file(observation=seen, **remembered)
        np.testing.assert_array_equal(found["action"], policy.act(seen))
        remembered = {"state": found["next_state"]}
        given.append(found[scores][0])
    anew = file(observation=seen, state=np.zeros_like(remembered["state"]))[scores][0]
    assert not np.allclose(anew, given[-1], rtol=1e-2, atol=0.0), "what was seen before counts"


ROOMS = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Rooms(gymnasium.Env):
    """Noise of all kinds; two choices, of which some are forbidden."""

    def __init__(self):
        parts = {
            "camera": spaces.Box(0, 255, (20, 20, 3), np.uint8),
            "arm": spaces.Dict(
                {"angles": spaces.Box(-1.0, 1.0, (2,), np.float64), "mode": spaces.Discrete(3, start=1)}
            ),
            "action_mask": spaces.MultiBinary(5),
        }
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.MultiDiscrete([3, 2], start=[2, 0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._left = 20
        return self._show(), {}

    def step(self, action):
        assert self._mask[action[0] - 2] and self._mask[3 + action[1]]
        self._left -= 1
        return self._show(), 1.0, self._left == 0, False, {}

    def _show(self):
        shown = self.observation_space.sample()
        shown["action_mask"][[0, 3]] = 1
        self._mask = shown["action_mask"]
        return shown
'''


def test_parts_of_observations_are_inputs_and_the_mask_is_one(workplace: Any) -> None:
    workplace.module(ROOMS)
    workplace.base = copy.deepcopy(workplace.base) | {
        "environment": {"type": "my_env:Rooms", "id": "", "num_envs": 8},
        "model": {
            "type": "cnn_actor_critic",
            "channels": [4],
            "kernels": [8],
            "strides": [4],
            "hidden": 32,
            "precision": "bfloat16",
            "policy_gain": 1.0,
        },
    }
    run = trained(workplace)
    file = Exported(workplace, run)
    assert file.shapes("inputs") == {
        "observation.action_mask": ("int8", "batch", 5),
        "observation.arm.angles": ("float64", "batch", 2),
        "observation.arm.mode": ("int64", "batch"),
        "observation.camera": ("uint8", "batch", 20, 20, 3),
    }
    policy = tianji.load(run)
    records = np.stack([policy.observation_space.sample() for _ in range(50)])
    records["action_mask"][:, [0, 3]] = 1
    inputs = {f"observation.{name}": records[name] for name in records.dtype.names}
    found = file(**inputs)
    forbidden = records["action_mask"] == 0
    assert (found["logits"][forbidden] == -1e9).all()
    assert (np.abs(found["logits"][~forbidden]) < 100).all()
    assert len(np.unique(found["action"], axis=0)) > 1, "it depends on what is seen"
    same = (found["action"] == policy.act(records)).mean()
    assert same > 0.9, "the policy itself computes with fewer digits"


@pytest.mark.parametrize("agent", ["qmix", "mappo"])
def test_teams_act_by_what_each_agent_sees_and_may_do(workplace: Any, agent: str) -> None:
    workplace.base = copy.deepcopy(workplace.base)
    workplace.base["agent"] = {"type": agent}
    if agent == "qmix":
        workplace.base["environment"] = {"type": "matrix_game", "id": "two_step", "num_envs": 8}
        workplace.base["model"] = {"type": "team_q", "width": 16}
        workplace.base["training"] = {"warmup_steps": 128, "batch_size": 8, "sequence_steps": 2}
    else:
        workplace.base["environment"] = {"type": "mpe", "id": "simple_spread", "num_envs": 4}
        workplace.base["model"] = {"type": "team_actor_critic", "hidden": [16]}
    run = trained(workplace)
    file, policy = Exported(workplace, run), tianji.load(run)
    agents, actions = file.shapes("inputs")["available"][2:]
    rng = np.random.default_rng(1)
    records = np.ones(40, policy.observation_space.dtype)
    records["observation"] = rng.normal(size=records["observation"].shape)
    records["available"] = rng.random((40, agents, actions)) < 0.7
    records["available"][..., 0] = True
    more: dict[str, Any] = {}
    if agent == "qmix":
        state = np.zeros((40, agents, 16), np.float32)
        more = {"state": state, "last_action": np.full((40, agents), -1)}
    for _ in range(2 if agent == "qmix" else 1):
        found = file(observation=records["observation"], available=records["available"], **more)
        np.testing.assert_array_equal(found["action"], policy.act(records))
        more |= {"state": found["next_state"], "last_action": found["action"]} if agent == "qmix" else {}


def refused(workplace: Any, status: int, *words: str) -> str:
    command = workplace.command("export", *words)
    command.wait(status)
    said: str = command.stderr
    assert said.startswith("tianji: error: ")
    return said


WRONG = """
    def executor(self, size):
        return Wrong(self)


from tianji_algos.models.torch_backend import TorchExecutor

class Wrong(TorchExecutor):
    def __call__(self, seen):
        return super().__call__(-seen)
"""
SILENT = """
from tianji_algos.core import Agent
from tianji_algos.ppo.ppo import PPOAgent

class Silent(PPOAgent):
    rule = classmethod(Agent.rule.__func__)
"""


def test_a_network_of_a_users_own_needs_no_more_than_forward_and_what_it_cannot_do_is_said(
    workplace: Any,
) -> None:
    workplace.module(MODEL)
    workplace.base = copy.deepcopy(workplace.base) | {"model": {"type": "my_env:Mine"}}
    run = trained(workplace)
    file = Exported(workplace, run)
    kept = file.path.read_bytes()
    arguments = (str(run), "--format", "onnx", "--out", str(file.path))

    workplace.module(MODEL + WRONG)
    said = refused(workplace, 1, *arguments, "--check")
    assert re.search(
        r"policy.onnx was not written: over 1,000 observations it is off .*logits by [0-9.]+;", said
    )

    computes = "self.layer(observation)"
    workplace.module(MODEL.replace(computes, "self.layer(observation.reshape(len(observation), -1))"))
    said = refused(workplace, 2, *arguments)
    assert "Mine cannot be exported: traced with 2 observations" in said
    assert "observation.shape[0] in place of len(observation) would be right" in said

    # Of another length than before: Python knows its bytecode by the second and the size of the source.
    workplace.module(MODEL.replace(computes, "self.layer(observation * float(len(observation) > 2))") + "#\n")
    assert "what it gives is not what it gave" in refused(workplace, 2, *arguments)

    workplace.module(MODEL.replace(computes, f"{computes}.whole()"))
    said = refused(workplace, 2, *arguments)
    assert "has no attribute 'whole'; a network that computes in torch alone would be right" in said

    workplace.module(MODEL + SILENT)
    config = run / "config.toml"
    config.write_text(config.read_text().replace('type = "ppo"', 'type = "my_env:Silent"', 1))
    assert "Silent does not say how it acts: it has no rule()" in refused(workplace, 2, *arguments)
    assert file.path.read_bytes() == kept


@pytest.fixture
def untrained(workplace: Any) -> str:
    """The path of a run that has got nowhere."""
    run: Path = workplace.place / "out/run/1"
    for name in ("logs", "checkpoints", "plots"):
        (run / name).mkdir(parents=True)
    (run / "config.toml").write_text(tomli_w.dumps(BASE))
    return str(run)


@pytest.mark.parametrize(
    ("kind", "out", "said"),
    [
        ("onxx", "x.onnx", "--format: no format 'onxx'; onnx would be right"),
        ("torchscript", "x.pt", "torchscript is no format any more, since torch deprecates it; onnx is"),
        ("onnx", "x.pt", "--out: x.pt is no name for onnx; x.onnx would be right"),
        ("onnx", "x", "--out: x is no name for onnx; x.onnx would be right"),
        ("onnx", "out", "--out: cannot write out: it is a directory; a file such as policy.onnx"),
        ("onnx", "nowhere/x.onnx", "there is no directory nowhere; a file such as policy.onnx"),
        ("onnx", "x.onnx", "has no checkpoints yet"),
    ],
)
def test_what_the_command_line_got_wrong_is_said(
    workplace: Any, untrained: str, kind: str, out: str, said: str
) -> None:
    assert said in refused(workplace, 2, untrained, "--format", kind, "--out", out)


@pytest.mark.parametrize(("library", "what"), [("onnx", "--format onnx"), ("onnxruntime", "--check")])
def test_a_missing_library_is_the_pip_command(
    workplace: Any, untrained: str, library: str, what: str
) -> None:
    (workplace.place / f"{library}.py").write_text(f"raise ModuleNotFoundError('no', name={library!r})")
    workplace.environment["PYTHONPATH"] = os.pathsep.join([str(workplace.place), *sys.path])
    said = refused(workplace, 2, untrained, "--format", "onnx", "--out", "x.onnx", "--check")
    assert f"{what} needs {library}, which is not installed: pip install 'tianji[export]'" in said
