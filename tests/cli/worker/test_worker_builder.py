"""Builders know the spaces that a policy sees, and the fields of its fragments."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cli.film import FRAME, Film
from cli.skirmish import Skirmish

from tianji_algos import registry
from tianji_algos.core import RolloutEmbryo, Spaces
from tianji_algos.errors import UnsuitableModelError
from tianji_algos.fields import FieldSpec
from tianji_algos.ppo.settings import PPOSettings
from tianji_cli.config.loader import load_config
from tianji_cli.errors import UsageError
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import make_plan
from tianji_cli.wire.batches import BatchLayout
from tianji_cli.worker.builder import Builder
from tianji_cli.worker.parts import spaces_of
from tianji_envs.core import VectorEnvironment
from tianji_envs.errors import UnsupportedSpaceError
from tianji_envs.gym import GymFactory

CONFIGS = Path(__file__).parents[3] / "configs"


class OfFilms(Builder):
    """Builder of a job whose environments are films."""

    stack = 4

    def environment(self, num_envs: int, render: bool = False, *, evaluation: bool = False) -> Film:  # noqa: ARG002
        return Film(num_envs, self.stack)


def builder(config_name: str, kind: type[Builder] = OfFilms, *overrides: str) -> Builder:
    config = load_config(str(CONFIGS / f"{config_name}.toml"), ["environment.num_envs=2", *overrides])
    plan = make_plan(config)
    return kind(Job("", "", plan, Path(), Path()), config, plan.processes[1], 0)


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the configs' models remember something."""
    for name in ("mlp_actor_critic", "mlp_q"):
        model = registry.load("model", name)
        monkeypatch.setattr(model, "recorded", classmethod(_recorded))


def _recorded(model: Any, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:
    assert spaces.stack == 4
    assert isinstance(settings, model.settings_type)
    return (FieldSpec("state", np.dtype(np.float32), (7,), once=True),)


def test_a_policy_sees_stacks_and_fragments_hold_single_frames() -> None:
    built = builder("ppo_cartpole")
    assert built.spaces.observation == gym.spaces.Box(0, 255, (4, *FRAME.shape), np.uint8)
    assert built.spaces.stack == 4
    layout = built.layout
    observation = layout.fields[0]
    assert (observation.shape, observation.history, observation.bootstrap) == (FRAME.shape, 3, True)
    assert layout.shape(observation) == (3 + layout.steps + 1, 2, *FRAME.shape)


def test_batches_of_a_replay_hold_stacks() -> None:
    built = builder("dqn_cartpole")
    batches = BatchLayout.of(built.layout, 32, ("action",))
    assert batches.observation.shape == built.spaces.observation.shape


@pytest.mark.usefixtures("remembering")
def test_what_a_network_remembers_is_a_field_of_its_fragments() -> None:
    layout = builder("ppo_cartpole").layout
    (state,) = (spec for spec in layout.fields if spec.name == "state")
    assert layout.shape(state) == (1, 2, 7)


@pytest.mark.usefixtures("remembering")
def test_a_network_that_remembers_is_refused_where_samples_come_from_a_replay() -> None:
    with pytest.raises(UnsuitableModelError, match="'mlp_q' remembers earlier steps, but 'dqn' learns"):
        _ = builder("dqn_cartpole").layout


class OfSkirmishes(Builder):
    """Builder of a job whose environments have a team."""

    winnable = True

    def environment(self, num_envs: int, render: bool = False, *, evaluation: bool = False) -> Skirmish:  # noqa: ARG002
        return Skirmish(num_envs, winnable=self.winnable)


class OfVainSkirmishes(OfSkirmishes):
    winnable = False


TEAM = 'agent.type="cli.skirmish:Recruit"'


def test_fragments_say_what_was_won_where_something_is() -> None:
    for kind, names in ((OfSkirmishes, {"won"}), (OfVainSkirmishes, set())):
        layout = builder("ppo_cartpole", kind, TEAM).layout
        assert {"won"} & {spec.name for spec in layout.fields} == names


def test_an_agent_for_one_is_refused_where_there_is_a_team() -> None:
    with pytest.raises(UsageError) as refused:
        _ = builder("ppo_cartpole", OfSkirmishes).layout
    assert str(refused.value) == (
        "agent.type: 'ppo' acts for a single agent, and CartPole-v1 shows a team; "
        "maddpg, mappo or qmix would be right"
    )


def test_an_agent_for_a_team_is_refused_where_there_is_none() -> None:
    with pytest.raises(UsageError) as refused:
        _ = builder("ppo_cartpole", OfFilms, TEAM).spaces
    assert str(refused.value) == (
        "agent.type: 'cli.skirmish:Recruit' acts for a team, and CartPole-v1 shows a single agent; "
        "dqn, impala, ppo, r2d2, sac or td3 would be right"
    )


def test_a_win_rate_is_no_goal_where_nothing_is_won() -> None:
    goal = "experiment.stop={ win_rate = 0.8, wall_s = 9 }"
    _ = builder("ppo_cartpole", OfSkirmishes, TEAM, goal).layout
    with pytest.raises(UsageError, match=r"experiment\.stop\.win_rate: CartPole-v1 does not say"):
        _ = builder("ppo_cartpole", OfVainSkirmishes, TEAM, goal).layout


class Forgetful(GymFactory):
    """Says that it takes metrics, and has none."""

    def make(self, *arguments: Any, metrics: Any, **keywords: Any) -> VectorEnvironment:  # noqa: ARG002
        return super().make(*arguments, **keywords)


def test_a_factory_that_has_not_the_metrics_it_was_asked_for_is_refused() -> None:
    forgetful = 'environment.type="cli.worker.test_worker_builder:Forgetful"'
    with pytest.raises(UsageError) as refused:
        _ = builder("ppo_cartpole", Builder, forgetful, 'environment.metrics=["success"]').layout
    assert str(refused.value).endswith(
        "Forgetful made environments with metrics of shape None, "
        "and for 1 in each of 1 environments (1, 1) is right"
    )
    layout = builder("ppo_cartpole", Builder, 'environment.metrics=["success", "n"]').layout
    assert [spec.shape for spec in layout.fields if spec.name == "metrics"] == [(2,)]


class Rule(RolloutEmbryo):
    """An update rule of a user's own, with settings that say more than it does."""

    settings_type = PPOSettings
    uses_per_sample = 1.0

    def minibatches(self, fragments: Any) -> Any: ...
    def update(self, batch: Any) -> Any: ...
    def metrics(self) -> Any: ...
    def schedule(self, env_steps: int) -> None: ...
    def state(self) -> Any: ...
    def load_state(self, tensors: Any, rest: Any) -> None: ...


class NormalizingRule(Rule):
    """Does that, too."""

    normalizes = True


@pytest.mark.parametrize("key", ["normalize_observations", "normalize_rewards"])
@pytest.mark.parametrize("part", ["layout", "model"])
def test_a_rule_that_keeps_no_statistics_does_not_normalise(key: str, part: str) -> None:
    rule = 'training.type="cli.worker.test_worker_builder:Rule"'
    asked = f"training.{key}=true"
    with pytest.raises(
        UsageError, match=rf"^training\.{key}: '.*Rule' keeps no statistics .*; false would be"
    ):
        getattr(builder("ppo_cartpole", Builder, rule, asked), part)()
    assert builder("ppo_cartpole", Builder, rule).layout
    assert builder("ppo_cartpole", Builder, rule.replace("Rule", "NormalizingRule"), asked).layout


def test_what_a_team_sees_is_not_stacked() -> None:
    skirmish = Skirmish(1)
    skirmish.stack = 4
    with pytest.raises(UnsupportedSpaceError, match=r"TeamSpace.* cannot be stacked"):
        spaces_of(skirmish)


def test_only_arrays_of_numbers_are_stacked() -> None:
    film = Film(1, 4)
    film.observation_space = gym.spaces.Discrete(3)
    with pytest.raises(UnsupportedSpaceError, match=r"Discrete\(3\) cannot be stacked"):
        spaces_of(film)


def test_zeros_from_before_an_episode_are_in_the_space() -> None:
    film = Film(1, 2)
    film.observation_space = gym.spaces.Box(1.0, 2.0, (3,), np.float32)
    observation = spaces_of(film).observation
    assert observation.contains(np.zeros((2, 3), np.float32))
    assert observation.contains(np.full((2, 3), 2.0, np.float32))
