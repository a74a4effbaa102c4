"""Programs in benchmarks/ say in a line what keeps them from measuring."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

from tianji_cli.errors import RunFailed

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["platforms.py", "--config", "nowhere"], 1, "a training of platform-cpu failed"),
        (["apex.py", "--seconds=-1"], 1, "a training of apex-0-1 failed"),
        (["policy_lag.py", "--rates", "1e-3", "--env-steps", "512"], 1, "a training of 0-1-0.001-1 failed"),
        (
            ["peers/compare.py", "--tianji", "tianji", "--envpool", "python"],
            2,
            "--envpool takes no part in --algorithm ppo; it does in pong",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_benchmark_that_cannot_measure_says_why(
    words: list[str],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = ROOT / "benchmarks" / words[0]
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    why = ended.value.code
    said = capsys.readouterr().err + str(why)
    assert message in said
    assert why == status or (isinstance(why, str) and status == 1)


def test_a_training_without_100_episodes_has_no_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("policy_lag", ROOT / "benchmarks" / "policy_lag.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "policy_lag", program)
    spec.loader.exec_module(program)
    summary = {"returns": {"mean_100": 20.0, "best_mean_100": None}, "staleness": {"mean": 0.0}}
    monkeypatch.setattr(program, "train_once", lambda *_words, **_names: None)
    monkeypatch.setattr(program, "read_summary", lambda _run: summary)
    with pytest.raises(RunFailed, match="PPO ended before 100 episodes or one update: --env-steps 4096"):
        program.train(program.Trial("PPO", 1, 1e-3, 1), 4096, tmp_path)
