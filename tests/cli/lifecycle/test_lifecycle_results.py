"""Trainings in environments whose steps are not what their spaces say."""

import copy
from typing import Any

import pytest

STRANGE = """
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode


class Strange(gymnasium.Env):
    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return self.steps % 5, 1.0, self.steps == 20, False, {}


class Liar(CartPoleVectorEnv):
    metadata = CartPoleVectorEnv.metadata | {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def step(self, actions):
        shown, reward, over, cut, info = super().step(actions)
        ended = over | cut
        if ended.any():
            self.prev_done[:] = False
            shown = shown.copy()
            shown[ended] = 0.0
            self.state[:, ended] = 0.0
            self.steps[ended] = 0
        return shown, reward, over, cut, info


gymnasium.register("Liar-v0", vector_entry_point=Liar)
"""
ENVIRONMENT = {"type": "my_env:Strange", "id": "", "num_envs": 4}
SHOWN = "return self.steps % 5, 1.0, self.steps == 20"


@pytest.fixture
def strange(workplace: Any) -> Any:
    workplace.base = copy.deepcopy(workplace.base) | {"environment": ENVIRONMENT}
    return workplace


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (
            "return -1 if self.steps == 7 else 0, 1.0, self.steps == 20",
            "environment 0 of actor 0 gave -1 as observation in step 7 of its episode: "
            "observation_space says 0 to 4; show one of these, or widen it",
        ),
        (
            "return 7 if self.steps == 7 else 0, 1.0, self.steps == 20",
            "environment 0 of actor 0 gave 7 as observation in step 7 of its episode: obs",
        ),
        (
            "return np.array([1, 2]) if self.steps == 7 else 0, 1.0, self.steps == 20",
            "my_env:Strange: step() gave an observation of shape (2,) and int64, [1 2]; observation_sp",
        ),
        (
            "return self.steps % 5, 1.0, [self.steps == 20]",
            "my_env:Strange: step() gave terminated of type list and shape (1,), [False]; True or False",
        ),
        (
            "return self.steps % 5, None if self.steps == 9 else 1.0, self.steps == 20",
            "a reward of type NoneType, None; a single number is wanted, which a wrapper can make",
        ),
    ],
)
def test_a_step_that_is_not_what_the_spaces_say_ends_the_run_before_it_is_learnt_from(
    strange: Any, shown: str, words: str
) -> None:
    strange.module(STRANGE.replace(SHOWN, shown))
    run = strange.train()
    summary = run.finish(1)
    assert words in run.command.last_words
    assert "Traceback" not in run.command.stderr
    assert summary["received"] == 0


def test_a_first_observation_that_the_space_does_not_have_is_refused_before_there_is_a_run(
    strange: Any,
) -> None:
    strange.module(STRANGE.replace("return 0, {}", "return -1, {}"))
    command = strange.command("train", str(strange.config()))
    command.wait(2)
    assert "my_env:Strange gave -1 as observation when it was reset: observation_space says 0 to 4" in (
        command.last_words
    )
    assert not (strange.place / "experiments").exists()


SEVERAL = {
    "    action_space": "    reward_space = spaces.Box(-1.0, 1.0, (2,), np.float32)\n    action_space",
    SHOWN: "return self.steps % 5, np.array([1.0, 2.0]), self.steps == 20",
}


def test_rewards_of_several_numbers_are_refused_before_there_is_a_run_unless_a_wrapper_makes_one(
    strange: Any,
) -> None:
    module = STRANGE + "def weighed(env):\n"
    module += "    return gymnasium.wrappers.TransformReward(env, lambda rewards: float(rewards.sum()))\n"
    for before, after in SEVERAL.items():
        assert before in module
        module = module.replace(before, after)
    strange.module(module)
    command = strange.command("train", str(strange.config()))
    command.wait(2)
    assert (
        "my_env:Strange: step() gave a reward of shape (2,) and float64, [1. 2.]; a single number is wanted, "
        "which a wrapper can make of several (copy 0, step 1 of its episode)"
    ) in command.last_words
    assert not (strange.place / "experiments").exists()
    strange.train({"environment": {"wrappers": ["my_env:weighed"]}}).finish()


def test_a_real_number_outside_of_its_bounds_is_said_once_and_the_run_goes_on(strange: Any) -> None:
    module = STRANGE.replace("spaces.Discrete(5)", "spaces.Box(-1.0, 1.0, (2,), np.float32)")
    module = module.replace("return 0, {}", "return np.zeros(2, np.float32), {}")
    strange.module(
        module.replace(SHOWN, "return np.array([0.5, self.steps / 10], np.float32), 1.0, self.steps == 20")
    )
    run = strange.train(options=())
    run.finish()
    said = "environment 0 of actor 0 gave 1.1 as observation[1] in step 11 of its episode: "
    said += "observation_space says -1.0 to 1.0 ("
    assert run.command.stderr.count(said) == 1
    assert run.command.stderr.count("they are learnt from as they are") == 1


def test_a_vector_that_does_not_reset_when_it_says_ends_the_run(workplace: Any) -> None:
    workplace.module(STRANGE)
    workplace.base["environment"] = {"type": "gym", "id": "my_env:Liar-v0", "num_envs": 4}
    run = workplace.train()
    summary = run.finish(1)
    assert "gave a reward of 1 in the step after an episode's end, which is to show" in run.command.last_words
    assert 'metadata["autoreset_mode"] = AutoresetMode.SAME_STEP' in run.command.last_words
    assert summary["received"] % (16 * 4) == 0, "whole fragments, all of them from before"
