"""Exported files: what goes in is what their metadata say, and numbers keep their types."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tianji_algos import registry
from tianji_algos.core import Spaces, build_model
from tianji_algos.device import part_of_records
from tianji_algos.dqn.dqn import DQNAgent
from tianji_algos.dqn.settings import DQNAgentSettings
from tianji_algos.errors import NotExportableError
from tianji_algos.export import ExportedPolicy, trace
from tianji_algos.models.q_network import QNetwork
from tianji_cli.files.exported import load, port_document, require, written
from tianji_envs.records import RecordSpace

MOST = float(np.finfo(np.float32).max)
SPACES = Spaces(
    RecordSpace(
        "it", gym.spaces.Dict({"far": gym.spaces.Box(-MOST, MOST, (3,)), "hint": gym.spaces.Discrete(4)})
    ),
    gym.spaces.Discrete(2, start=3),
)


class LooksAtTheHint(QNetwork):
    """Values one of two actions by the hint, and the other at a half."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        assert SPACES.observation.dtype is not None
        hint = part_of_records(observation, SPACES.observation.dtype, "hint").float()
        return torch.stack((self.constant.expand_as(hint), hint), dim=1)


def test_a_part_that_a_network_does_not_look_at_goes_in_all_the_same() -> None:
    policy = ExportedPolicy(SPACES, LooksAtTheHint(), DQNAgent.rule(SPACES, DQNAgentSettings()))
    described: dict[str, Any] = {
        side: [port_document(port.name, port.dtype, port.shape, port.meaning) for port in ports]
        for side, ports in (("inputs", policy.inputs), ("outputs", policy.outputs))
    }
    require("onnxruntime", "this test")
    act = load(written(trace(policy), policy.made_up(2, seed=1), described))
    action, values = act([np.zeros((3, 3), np.float32), np.array([0, 1, 3])])
    assert action.tolist() == [3, 4, 4], "which are numbered from 3 on"
    assert values.tolist() == [[0.5, 0.0], [0.5, 1.0], [0.5, 3.0]]
    assert (action.dtype, values.dtype) == (np.int64, np.float32)


@pytest.mark.parametrize(
    ("agent", "model"),
    [("ppo", "mlp_actor_critic"), ("sac", "mlp_gaussian_q"), ("td3", "mlp_deterministic_q")],
)
def test_an_action_that_is_one_number_is_made_and_drawn(agent: str, model: str) -> None:
    spaces = Spaces(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-2, 2, ()))
    network = build_model(registry.load("model", model), spaces, registry.settings_type("model", model)(), 1)
    rule = registry.load("agent", agent).rule(spaces, registry.settings_type("agent", agent)())
    greedy = ExportedPolicy(spaces, network, rule)
    assert [port.name for port in greedy.inputs] == ["observation"]
    action, *_ = trace(greedy)(torch.ones(4, 3))
    assert action.shape == (4,)
    if agent == "td3":
        with pytest.raises(NotExportableError, match="draws none"):
            ExportedPolicy(spaces, network, rule, sampled=True)
        return
    drawing = ExportedPolicy(spaces, network, rule, sampled=True)
    same, sampled, *_ = trace(drawing)(torch.ones(4, 3), torch.tensor([0.0, -1.0, 1.0, 2.0]))
    torch.testing.assert_close(same, action)
    assert sampled[0] == action[0]
    assert len(sampled.unique()) == 4
