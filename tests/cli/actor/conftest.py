"""Stages whose actor has a policy."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def acting(stage: Callable[..., Any]) -> Callable[..., Any]:
    """Stages whose actor has a policy, of version 0."""

    def open_stage(*arguments: Any, **options: Any) -> Any:
        one = stage(*arguments, **options)
        one.publish(0)
        return one

    return open_stage
