import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.errors import TianjiError
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_cli.telemetry.report import document_of, print_result
from tianji_cli.telemetry.snapshot import RoleStatus, Summary

FINISHED = """\
ppo_cartpole finished: mean_return 475 reached
return          475.3  mean of the last 100 of 412 episodes, best 476.1
evaluation      499.1  mean of 100 greedy episodes, standard deviation 2.30
time to 300     4.2 s
time to 475     11.9 s
time to 490.5   not reached
trained         3.00 K env steps, 120 updates in 12.0 s, 14.0 s in all
rates           produced 250/s, received 242/s, consumed 967/s
replay ratio    3.98, target 4.00
policy lag      mean 1.20, p50 1, p95 3, max 5 versions
samples         3000 = 2900 received + 96 in flight + 4 lost + 0 dropped
busy            root 1 %, learner 97 %, actor 93 %
run directory   experiments/ppo_cartpole/3
evaluate it     tianji eval experiments/ppo_cartpole/3
see its curves  tensorboard --logdir experiments/ppo_cartpole/3
"""

RUN = RunDirectory(Path("experiments/ppo_cartpole/3"))


def test_a_finished_run_is_reported_with_what_to_do_next(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(), RUN)
    assert capsys.readouterr() == (FINISHED, "")


def test_a_resumed_run_says_which_time_is_that_of_its_last_session(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(env_steps=9000, train_s=36.0), RUN)
    assert "9.00 K env steps, 120 updates in 36.0 s; the last session took 14.0 s in all" in (
        capsys.readouterr().out
    )


def test_frames_are_reported_where_a_step_takes_several(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(frames_per_step=4), RUN)
    assert "3.00 K env steps, 12.0 K frames, 120 updates in" in capsys.readouterr().out


def test_the_bottleneck_of_a_run_is_reported(
    summary: Callable[..., Summary], bottleneck: Bottleneck, capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(bottleneck=bottleneck), RUN)
    line = "bottleneck      sample-bound: the learner waits for samples; more actors would help\n"
    assert line in capsys.readouterr().out


def test_the_groups_of_a_run_are_reported(
    summary: Callable[..., Summary], of_groups: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(**of_groups), RUN)
    assert (
        "averaging       12 rounds; group 1 missed 3; group 1 is lost\n"
        "groups          0: return 410.5, 2.00 K env steps, 80 updates; "
        "1: no episode has ended, 1.00 K env steps, 40 updates\n"
    ) in capsys.readouterr().out


def test_the_replay_of_a_run_is_reported(
    summary: Callable[..., Summary], with_replay: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(**with_replay), RUN)
    out = capsys.readouterr().out
    assert (
        "replay          34.0 K of 50.0 K env steps, 2.14 MB; a batch is 0.00128 of it (P, Equation 2)\n"
        "sample age      mean 13.0 K, p50 12.0 K, p95 40.1 K, max 49.9 K env steps\n"
        "uses            mean 3.96, p50 4, p95 8, max 13 of each sample\n"
        "priorities      12 came after their samples had made room for others\n"
    ) in out


def test_a_stopped_run_says_how_to_go_on_with_it(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(status="stopped", reason="interrupted"), RunDirectory(Path("my runs/x/1")))
    out = capsys.readouterr().out
    assert out.startswith("ppo_cartpole stopped: interrupted\n")
    assert "tianji train --resume 'my runs/x/1'\n" in out


def test_a_failed_run_points_at_its_logs_and_is_not_recommended_for_evaluation(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(status="failed", reason="actor 2: ValueError"), RUN)
    out = capsys.readouterr().out
    assert "ls experiments/ppo_cartpole/3/logs\n" in out
    assert "tianji eval" not in out


def test_a_run_that_never_began_to_train_is_not_recommended_for_going_on(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(status="failed", reason="a replay is too large", env_steps=0), RUN)
    assert "--resume" not in capsys.readouterr().out


def test_lines_are_not_broken_in_a_pipe(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "the learner ended with an exception that has a long message " * 5
    print_result(summary(reason=reason), RUN)
    assert (
        capsys.readouterr().out.splitlines()[0] == f"ppo_cartpole finished: {reason.rstrip()} ".rstrip() + " "
    )


def test_what_went_wrong_is_not_hidden(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    roles = (
        RoleStatus(2, "actor", 0, "node1", None, 0.93, 2, cores=(1,)),
        RoleStatus(3, "actor", 0, "node1", None, 0.91, 1, cores=(1,)),
        RoleStatus(4, "actor", 0, "node1", None, None, 0, cores=(1,)),
    )
    print_result(summary(lost=3, rejected_frames=7, roles=roles), RUN)
    out = capsys.readouterr().out
    assert "busy            2 actors 91 % to 93 %\n" in out
    assert "restarted       actor-2 2 times, actor-3 once\n" in out
    assert "rejected        7 messages that were no frames of this job\n" in out
    assert "unaccounted     1 samples; do not trust this run's counts\n" in out


def test_returns_of_few_episodes_are_reported_as_such(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(episodes=12, episodes_in_mean=12, mean_100=20.5, best_mean_100=None), RUN)
    print_result(summary(episodes=0, mean_100=None), RUN)
    out = capsys.readouterr().out
    assert "return          20.5  mean of 12 episodes\n" in out
    assert "return          no episode has ended\n" in out


def test_json_on_stdout_is_all_there_is_on_stdout(
    summary: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(), RUN, json_to="-")
    assert json.loads(capsys.readouterr().out) == document_of(summary(), RUN)


def test_json_in_a_file_leaves_the_table_on_stdout(
    summary: Callable[..., Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary(), RUN, json_to=str(tmp_path / "result.json"))
    assert json.loads((tmp_path / "result.json").read_text()) == document_of(summary(), RUN)
    assert capsys.readouterr().out == FINISHED


def test_a_json_file_that_cannot_be_written_is_named(summary: Callable[..., Summary], tmp_path: Path) -> None:
    path = tmp_path / "missing" / "result.json"
    with pytest.raises(TianjiError, match=r"missing/result\.json: No such file or directory; --json"):
        print_result(summary(), RUN, json_to=str(path))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_no_word_is_broken_and_commands_stay_whole(
    summary: Callable[..., Summary], bottleneck: Bottleneck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    terminal, pipe = Terminal(), io.StringIO()
    of_many_words = Bottleneck(bottleneck.kind, " ".join(["the learner waits for samples"] * 12))
    shown = summary(reason="a reason " * 30, bottleneck=of_many_words, status="stopped")
    run = RunDirectory(Path(f"experiments/{'long' * 15}/3"))
    for stream in (terminal, pipe):
        monkeypatch.setattr(sys, "stdout", stream)
        print_result(shown, run)
    on_terminal = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert on_terminal.split() == pipe.getvalue().split()
    commands = [f"go on with it   tianji train --resume {run.path}", str(run.path)]
    for line in on_terminal.splitlines():
        assert len(line.rstrip()) <= 80 or line.endswith(str(run.path)), line
    assert commands[0] in on_terminal
    assert max(map(len, pipe.getvalue().splitlines())) > 300
