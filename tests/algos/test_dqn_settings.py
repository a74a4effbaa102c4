from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tianji_algos.dqn.settings import DQNAgentSettings, DQNSettings


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"target_update": "sometimes"}, "'hard' or 'soft'"),
        ({"target_update": "soft", "target_tau": 1.0}, "less than 1"),
        ({"target_every": 0}, "greater than or equal to 1"),
        ({"learning_rate_schedule": "linear"}, "needs schedule_steps"),
        ({"replay_ratio": 0.0}, "greater than 0"),
        ({"n_step": 0}, "greater than or equal to 1"),
        ({"gamma": 1.1}, "less than or equal to 1"),
        ({"epsilon_end": 0.1}, "Extra inputs"),
        ({"double": 1}, "valid boolean"),
    ],
)
def test_a_wrong_hyperparameter_is_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        DQNSettings(**values)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"epsilon_start": 1.5}, "less than or equal to 1"),
        ({"epsilon_schedule": "per_actor", "epsilon_base": 1.0}, "less than 1"),
        ({"epsilon_schedule": "cosine"}, "'linear' or 'per_actor'"),
    ],
)
def test_an_exploration_that_makes_no_sense_is_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        DQNAgentSettings(**values)


def test_a_choice_may_be_changed_without_taking_back_what_belonged_to_the_other() -> None:
    soft = DQNSettings(target_update="soft", target_every=10)
    assert (soft.target_update, soft.target_tau) == ("soft", 0.005)
    per_actor = DQNAgentSettings(epsilon_schedule="per_actor", epsilon_steps=1000)
    assert (per_actor.epsilon_base, per_actor.epsilon_alpha) == (0.4, 7.0)


@pytest.mark.parametrize(
    "settings",
    [
        DQNSettings(target_update="soft", loss="mse", max_grad_norm=None),
        DQNSettings(target_every=7),
        DQNAgentSettings(epsilon_schedule="per_actor"),
        DQNAgentSettings(epsilon_end=0.1),
    ],
)
def test_what_was_written_out_in_full_is_read_again(settings: DQNSettings | DQNAgentSettings) -> None:
    assert type(settings).model_validate(settings.model_dump(mode="json")) == settings
