"""The examples in docs/ run as they are written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def test_the_corridor_example_trains_with_its_own_environment_and_model(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    command = [sys.executable, "-m", "tianji_cli.main", "train", str(EXAMPLES / "corridor.toml")]
    subprocess.run(
        [*command, "--quiet", "--out", str(tmp_path), "--json", str(summary)], check=True, timeout=100
    )
    result = json.loads(summary.read_text())
    assert result["status"] == "finished"
    assert result["evaluation"]["mean"] > 0.9
