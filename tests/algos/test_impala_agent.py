from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tianji_algos.core import Spaces, build_model
from tianji_algos.impala.impala import IMPALAAgent, IMPALAEmbryo
from tianji_algos.impala.settings import IMPALAAgentSettings, IMPALASettings
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings

STEPS, ENVS = 8, 16
Fragment = dict[str, npt.NDArray[Any]]


def build(spaces: Spaces) -> tuple[MLPActorCritic, IMPALAAgent]:
    model = build_model(MLPActorCritic, spaces, MLPActorCriticSettings(hidden=(32, 32), shared=True), 0)
    assert isinstance(model, MLPActorCritic)
    return model, IMPALAAgent(spaces, model, IMPALAAgentSettings(), ENVS, 0)


class Walk:
    """Sixteen corridors of five cells: a step to the right from the last one ends the episode with a reward.

    A terminated episode is followed by a step that only resets, as environments do here.
    """

    def __init__(self) -> None:
        self._place = np.zeros(ENVS, np.int64)
        self._is_over = np.zeros(ENVS, bool)

    def observe(self) -> npt.NDArray[np.float32]:
        return np.eye(6, 4, dtype=np.float32)[self._place]

    def step(self, action: npt.NDArray[Any], into: Fragment) -> None:
        into["mask"][...] = ~self._is_over
        place = np.maximum(self._place + np.where(action == 1, 1, -1), 0)
        self._place = np.where(self._is_over, 0, place)
        self._is_over = ~self._is_over & (self._place == 5)
        into["reward"][...] = into["terminated"][...] = self._is_over


def play(agent: IMPALAAgent, world: Walk, spaces: Spaces) -> Fragment:
    fields: Fragment = {
        spec.name: np.zeros((spec.rows(STEPS), ENVS, *spec.shape), spec.dtype)
        for spec in IMPALAAgent.fields(spaces, IMPALAAgentSettings())
    }
    fields["observation"] = np.zeros((STEPS + 1, ENVS, 4), np.float32)
    fields["reward"] = np.zeros((STEPS, ENVS), np.float32)
    for name in ("terminated", "truncated", "mask"):
        fields[name] = np.zeros((STEPS, ENVS), np.uint8)
    agent.begin(fields)
    for t in range(STEPS):
        fields["observation"][t] = world.observe()
        row = {name: field[t] for name, field in fields.items()}
        world.step(agent.act(fields["observation"][t], row), row)
        if not row["mask"].all():
            agent.begin_episodes(row["mask"] == 0)
    fields["observation"][STEPS] = world.observe()
    agent.finish(fields, fields["observation"][STEPS])
    return fields


def test_a_step_leaves_the_action_and_how_likely_it_was(cartpole_spaces: Spaces) -> None:
    specs = {spec.name: spec for spec in IMPALAAgent.fields(cartpole_spaces, IMPALAAgentSettings())}
    assert specs.keys() == {"action", "log_prob"}
    assert [spec.rows(STEPS) for spec in specs.values()] == [STEPS, STEPS]


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "adam", "reduction": "mean", "max_grad_norm": 1.0}],
    ids=["rmsprop", "adam"],
)
def test_agent_and_embryo_learn_together_from_a_policy_of_four_rollouts_ago(
    cartpole_spaces: Spaces, settings: dict[str, Any]
) -> None:
    model, agent = build(cartpole_spaces)
    small = {"rollout_steps": STEPS * ENVS, "minibatch_size": STEPS * ENVS, "learning_rate": 1e-2}
    embryo = IMPALAEmbryo(cartpole_spaces, model, IMPALASettings(**(small | settings)), seed=0)
    world, published = Walk(), []
    rewards = []
    for _ in range(120):
        flat = np.empty(model.parameter_count, np.float32)
        model.write_parameters(flat)
        published.append(flat)
        agent.adopt(published[-5:][0])
        fragment = play(agent, world, cartpole_spaces)
        rewards.append(float(fragment["reward"].mean()))
        for minibatch in embryo.minibatches([fragment]):
            embryo.update(minibatch)
    assert np.mean(rewards[:10]) < 0.06
    assert np.mean(rewards[-10:]) > 0.12, "one in six, of which one resets, would be the best"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"minibatch_size": 2000}, r"minibatch_size \(2000\) can never be filled: a rollout has .* = 1024"),
        ({"c_bar": 2.0}, r"c_bar \(2\) is above rho_bar \(1\)"),
        ({"learning_rate_schedule": "linear"}, "needs schedule_steps"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        IMPALASettings(**settings)
