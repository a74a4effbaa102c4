"""Lines from an actor over a replay to its learner."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from cli.learner.replay_line import Line


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    with ExitStack() as lines:
        yield lambda *arguments, **keywords: lines.enter_context(closing(Line(*arguments, **keywords)))
