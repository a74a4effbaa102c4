"""The rules that the root minds, and when it looks at what."""

from typing import Any, cast

import pytest

from tianji_cli.config.schema import Stop
from tianji_cli.root.job_view import Overview
from tianji_cli.root.observers.goals import StopRules
from tianji_cli.wire.reports import LearnerReport


class Said:
    """What two learners have said, and how long they have trained."""

    def __init__(self, *env_steps: int) -> None:
        self.env_steps = env_steps
        self.looks = 0

    def learners(self) -> dict[int, LearnerReport]:
        return {group: LearnerReport(env_steps=steps) for group, steps in enumerate(self.env_steps)}

    @property
    def session_train_s(self) -> float:
        self.looks += 1
        return 60.0


@pytest.fixture
def rules(job: Any) -> Any:
    def make(said: Said, groups: int = 2, **stop: Any) -> StopRules:
        return StopRules(job(groups, stop), cast("Overview", said))

    return make


@pytest.fixture
def job() -> Any:
    from types import SimpleNamespace as Part  # noqa: PLC0415

    def make(groups: int, stop: dict[str, Any]) -> Any:
        return Part(experiment=Part(stop=Stop(**stop)), distribution=Part(groups=groups))

    return make


def test_steps_of_several_groups_are_added_up_without_a_look_at_the_actors_pages(rules: Any) -> None:
    said = Said(600, 400)
    assert rules(said, env_steps=1000, wall_s=1.0).steps_reached() == "1000 environment steps"
    assert rules(said, env_steps=1001, wall_s=1.0).steps_reached() is None
    assert rules(said, groups=1, env_steps=1000).steps_reached() is None, "a single learner minds its own"
    assert said.looks == 0


def test_time_is_up_when_it_is(rules: Any) -> None:
    assert rules(Said(), wall_s=60.0).time_reached() == "60 s of training"
    assert rules(Said(), wall_s=61.0).time_reached() is None
    assert rules(Said(), env_steps=1).time_reached() is None
