from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings


@pytest.mark.parametrize(
    ("values", "where", "what"),
    [
        ({"learning_rat": 1e-3}, ("learning_rat",), "Extra inputs"),
        ({"gamma": 1.5}, ("gamma",), "less than or equal to 1"),
        ({"learning_rate": "1e-3"}, ("learning_rate",), "valid number"),
        ({"learning_rate": float("nan")}, ("learning_rate",), "finite"),
        ({"epochs": 0}, ("epochs",), "greater than or equal to 1"),
        ({"epochs": 2.0}, ("epochs",), "valid integer"),
        ({"clip_value": 1}, ("clip_value",), "valid boolean"),
        ({"clip_range_schedule": "cosine"}, ("clip_range_schedule",), "'constant' or 'linear'"),
        ({"optimizer": "sgd"}, ("optimizer",), "'adam' or 'rmsprop'"),
        ({"rmsprop_decay": 1.0}, ("rmsprop_decay",), "less than 1"),
        ({"minibatch_size": 512, "rollout_steps": 256}, (), "can never be filled"),
        ({"learning_rate_schedule": "linear"}, (), "needs schedule_steps"),
        *(
            ({key: points}, (key,), what)
            for key in ("learning_rate_schedule", "clip_range_schedule")
            for points, what in [
                ([], "has none"),
                ([0, 1.0], "is a pair of env steps and a factor"),
                ([[0, 1.0, 2]], "is a pair of env steps and a factor"),
                ([[500, 1.0], [20, 0.5]], "ascend in env steps, and 20 comes after 500"),
                ([[0, 1.0], [0, 0.5]], "ascend"),
                ([[-1, 1.0]], "whole number of env steps from 0, not at -1"),
                ([[0.5, 1.0]], "whole number of env steps"),
                ([[True, 1.0]], "whole number of env steps"),
                ([[0, -0.1]], "a number from 0, not -0.1"),
                ([[0, "1"]], "a number from 0"),
                ([[0, float("inf")]], "a number from 0"),
                ({"0": 1.0}, "or points such as"),
            ]
        ),
    ],
)
def test_a_wrong_hyperparameter_is_refused_where_it_stands(
    values: dict[str, Any], where: tuple[str, ...], what: str
) -> None:
    with pytest.raises(ValidationError, match=what) as refused:
        PPOSettings(**values)
    assert [error["loc"] for error in refused.value.errors()] == [where]


def test_what_toml_gives_is_taken() -> None:
    settings = PPOSettings(learning_rate=1, schedule_steps=1000, learning_rate_schedule="linear")
    assert settings.learning_rate == 1.0
    points = PPOSettings.model_validate_json('{"clip_range_schedule": [[0, 1], [5e3, 0.5]]}')
    assert points.clip_range_schedule == ((0, 1.0), (5000, 0.5))
    assert MLPActorCriticSettings.model_validate({"hidden": [32, 16]}).hidden == (32, 16)


@pytest.mark.parametrize(
    "values", [{"hidden": []}, {"hidden": [0]}, {"activation": "gelu"}, {"policy_gain": 0.0}]
)
def test_a_network_that_cannot_be_built_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MLPActorCriticSettings.model_validate(values)


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    settings = PPOSettings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.gamma = 2.0  # type: ignore[misc]
    with pytest.raises(ValidationError):
        PPOAgentSettings.model_validate({"epsilon": 0.1})
