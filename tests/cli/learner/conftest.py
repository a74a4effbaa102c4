"""Lines from an actor over a replay to its learner."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cli.learner.replay_line import Line


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    lines: list[Line] = []

    def open_line(*arguments: Any, **keywords: Any) -> Line:
        lines.append(Line(*arguments, **keywords))
        return lines[-1]

    yield open_line
    for one in lines:
        one.close()
