"""A patience that ends while one waits, and a config that is trained in seconds."""

from pathlib import Path

import pytest
import tomli_w
from cli.bench.trainings import CONFIG

from tianji_cli.bench import experiment


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines give up after a second."""
    # The default patience of Deadline is bound where it is defined.
    monkeypatch.setattr(experiment.Deadline.__init__, "__defaults__", (1.0,))


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "quick.toml"
    path.write_text(tomli_w.dumps(CONFIG))
    return str(path)
