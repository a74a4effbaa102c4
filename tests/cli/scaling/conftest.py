"""A config that is trained in seconds."""

from pathlib import Path

import pytest
import tomli_w
from cli.bench.trainings import CONFIG


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "quick.toml"
    path.write_text(tomli_w.dumps(CONFIG))
    return str(path)
