"""A patience that ends while one waits."""

import pytest

from tianji_cli.bench import experiment


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines give up after a second."""
    # The default patience of Deadline is bound where it is defined.
    monkeypatch.setattr(experiment.Deadline.__init__, "__defaults__", (1.0,))
