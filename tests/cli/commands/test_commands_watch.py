"""`tianji watch`, over runs whose files are written between its looks: what it shows, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli.telemetry.conftest import build_snapshot, build_summary

from tianji_cli.commands import watch as watching
from tianji_cli.errors import RunFailed, TianjiError
from tianji_cli.files.directories import directory_lock
from tianji_cli.files.rundir import NoSuchRunError, RunDirectory
from tianji_cli.main import main
from tianji_cli.plan.plan import this_host
from tianji_cli.signals import Interruption
from tianji_cli.telemetry.display import Display
from tianji_cli.telemetry.snapshot import RoleStatus, Snapshot, Summary
from tianji_cli.telemetry.telemetry import Telemetry

Step = Callable[[], Any]


def snapshot(second: int, host: str | None = None, **changes: Any) -> Snapshot:
    """As its root writes it, which is on this host if nothing else is said."""
    roles = (RoleStatus(0, "root", None, host or this_host().name, None, None),)
    return build_snapshot(second, **({"roles": roles} | changes))


def summary(second: int, **changes: Any) -> Summary:
    """The summary of a run that was over at this second."""
    return build_summary(**({"updates": 350 * second} | changes))


class Session:
    """A session of a run, as its root writes it."""

    def __init__(self, run: RunDirectory, *seconds: int, resumed_at: int | None = None) -> None:
        self.telemetry = Telemetry(run, Display(), resumed_at)
        self.telemetry.begin()
        self.write(*seconds)

    def write(self, *seconds: int, host: str | None = None) -> None:
        for second in seconds:
            self.telemetry.update(snapshot(second, host))

    def end(self, of: Summary) -> None:
        self.telemetry.close(of, plots=False)

    def die(self) -> None:
        """Close its file, as the kernel does for a process that is killed."""
        self.telemetry._metrics.close()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create("ppo_cartpole", tmp_path)
    made.write_config('[experiment]\nname = "ppo_cartpole"\n')
    return made


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Has steps done between the looks, one each, and after the last one a signal come."""

    def script(*steps: Step) -> list[float]:
        left: Iterator[Step] = iter(steps)
        waits: list[float] = []

        def select(_r: Any, _w: Any, _x: Any, seconds: float) -> None:
            waits.append(seconds)
            step = next(left, None)
            if step is None:
                raise Interruption
            step()

        monkeypatch.setattr(watching, "select", SimpleNamespace(select=select))
        return waits

    return script


def nothing() -> None:
    """Nothing happens between two looks."""


def test_of_a_run_that_is_over_the_result_is_printed_at_once(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    Session(run, 1, 2, 3).end(summary(3))
    waits = between()
    assert watching.watch(str(run.path)) == 0
    out, err = capsys.readouterr()
    assert waits == []
    assert err == ""
    assert out.startswith("ppo_cartpole finished: mean_return 475 reached\nreturn ")
    assert f"tianji eval {run.path}\n" in out


def test_a_run_is_found_by_its_name(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    Session(run, 1).end(summary(1))
    between()
    assert watching.watch("ppo_cartpole", out=run.path.parents[1]) == 0
    with pytest.raises(NoSuchRunError, match="no run 'ppo'"):
        watching.watch("ppo", out=run.path.parents[1])


def test_a_run_that_goes_on_is_shown_in_plain_lines_until_it_is_over(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(run, 1, 2, 3)
    waits = between(lambda: session.write(4), nothing, lambda: session.end(summary(4)))
    assert watching.watch(str(run.path)) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in err.splitlines()] == ["wall_s=5.0", "wall_s=6.0"]
    assert "returns.mean_100=120 " in err
    assert out.startswith("ppo_cartpole finished")
    assert set(waits) == {watching.LOOK_S}


def test_a_run_that_has_not_begun_is_waited_for(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    sessions: list[Session] = []
    between(
        nothing,
        lambda: sessions.append(Session(run)),  # No row yet: it waits for its hosts.
        nothing,
        nothing,
        lambda: sessions[0].write(1),
        lambda: sessions[0].end(summary(1)),
    )
    assert watching.watch(str(run.path)) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f'event="{run.path} has not begun yet; waiting for its first row"'
    assert len(said) == 2


def test_a_root_that_is_about_to_lock_its_metrics_finds_nobody_there(
    run: RunDirectory, between: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.metrics.touch()
    probed: list[int] = []
    monkeypatch.setattr(watching, "has_writer", lambda path: probed.append(path.stat().st_size) or True)
    between(lambda: run.metrics.write_bytes(b"x"))
    with pytest.raises(Interruption):
        watching.watch(str(run.path))
    assert probed == [1]


def test_a_run_that_has_failed_is_a_failure_after_its_result(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    Session(run, 1).end(summary(1, status="failed", reason="actor 0 was killed"))
    between()
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(run.path)])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert "ppo_cartpole failed: actor 0 was killed" in out
    assert err == "tianji: error: actor 0 was killed\n"


def test_watching_a_run_that_somebody_stopped_is_no_failure(
    run: RunDirectory, between: Callable[..., list[float]]
) -> None:
    Session(run, 1).end(summary(1, status="stopped", reason="Ctrl-C"))
    between()
    assert watching.watch(str(run.path)) == 0


def test_a_run_that_was_killed_is_told_with_the_command_that_goes_on_with_it(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(run, 1, 2)
    (run.checkpoints / "last").mkdir()
    between(nothing, session.die)
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(run.path)])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[1:] == [
        f"tianji: error: {run.path} has ended without a result: it was killed, or could not begin",
        f"see its logs: ls {run.path}/logs",
        f"go on with it: tianji train --resume {run.path}",
    ]


def test_a_run_that_was_killed_before_its_first_checkpoint_can_only_begin_again(
    run: RunDirectory, between: Callable[..., list[float]]
) -> None:
    Session(run).die()
    between(nothing)
    with pytest.raises(RunFailed, match=rf"no checkpoint; begin again: tianji train {run.path}/config.toml"):
        watching.watch(str(run.path))


def test_a_learner_that_still_saves_is_waited_for(
    run: RunDirectory, between: Callable[..., list[float]]
) -> None:
    Session(run, 1).die()
    saving = directory_lock(run.checkpoints)
    saving.__enter__()
    waits = between(nothing, nothing, lambda: saving.__exit__(None, None, None))
    with pytest.raises(RunFailed, match="has ended without a result"):
        watching.watch(str(run.path))
    assert len(waits) == 3


def test_a_resumed_run_is_not_over_because_its_first_session_is(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    Session(run, 1, 2, 3).end(summary(3, status="stopped", reason="Ctrl-C"))
    session = Session(run, resumed_at=1)
    session.telemetry.update(snapshot(3, elapsed_s=0.1, mean_100=7.0))
    between(
        lambda: session.telemetry.update(snapshot(4, elapsed_s=2.0)),
        lambda: session.end(summary(4, reason="it went on")),
    )
    assert watching.watch(str(run.path)) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in err.splitlines()] == ["wall_s=0.1", "wall_s=2.0"]
    assert out.startswith("ppo_cartpole finished: it went on\n")


def test_a_resumed_run_that_was_killed_does_not_pass_for_its_first_session(
    run: RunDirectory, between: Callable[..., list[float]]
) -> None:
    Session(run, 1, 2, 3).end(summary(3))
    Session(run, 4, resumed_at=1).die()
    between()
    with pytest.raises(RunFailed, match="has ended without a result"):
        watching.watch(str(run.path))


def test_a_session_that_begins_while_one_watches_is_shown_from_its_beginning(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = [Session(run, 50)]

    def resume() -> None:
        sessions[0].die()
        sessions.append(Session(run, resumed_at=1))
        sessions[1].telemetry.update(snapshot(51, elapsed_s=0.5))

    between(resume, lambda: sessions[1].end(summary(51)))
    assert watching.watch(str(run.path)) == 0
    shown = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["wall_s=52.0", "wall_s=0.5"]


def test_a_copy_of_a_run_is_over_whatever_its_files_were_written_last(
    run: RunDirectory, between: Callable[..., list[float]]
) -> None:
    Session(run, 1).end(summary(1))
    os.utime(run.summary, (0, 0))
    between()
    assert watching.watch(str(run.path)) == 0


class Clock:
    """A clock that only goes on when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        replaced = SimpleNamespace(monotonic=lambda: self.now_s, time=time.time)
        monkeypatch.setattr(watching, "time", replaced)

    def wait(self, seconds: float) -> Step:
        def step() -> None:
            self.now_s += seconds

        return step


def test_a_run_on_another_host_is_dead_when_it_has_been_silent_for_long(
    run: RunDirectory, between: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    session = Session(run)
    session.write(1, host="elsewhere")
    session.die()  # Its lock does not show here, and who is there may be alive.
    later = [
        clock.wait(50),
        session.telemetry.run.metrics.touch,
        clock.wait(50),
        clock.wait(50),
    ]
    waits = between(*later)
    with pytest.raises(RunFailed, match="has ended without a result"):
        watching.watch(str(run.path))
    assert len(waits) == 3


def test_a_run_on_another_host_goes_on_while_rows_come_and_is_over_with_its_summary(
    run: RunDirectory, between: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(watching, "has_writer", lambda _path: None)
    session = Session(run)

    def write(second: int) -> Step:
        def step() -> None:
            clock.now_s += 50
            session.write(second, host="elsewhere")

        return step

    session.write(1, host="elsewhere")
    waits = between(write(2), write(3), write(4), lambda: session.end(summary(4)), clock.wait(4))
    assert watching.watch(str(run.path)) == 0
    assert len(waits) == 5


def test_a_run_on_another_host_that_ended_long_ago_is_told_at_once(
    run: RunDirectory, between: Callable[..., list[float]]
) -> None:
    session = Session(run)
    session.write(1, host="elsewhere")
    session.die()
    os.utime(run.metrics, (0, 0))
    between()
    with pytest.raises(RunFailed, match="has ended without a result"):
        watching.watch(str(run.path))


def test_a_run_whose_directory_goes_away_is_an_error(
    run: RunDirectory, between: Callable[..., list[float]]
) -> None:
    between(run.config.unlink)
    with pytest.raises(NoSuchRunError, match="is not there any more"):
        watching.watch(str(run.path))


def test_a_damaged_summary_is_an_error_with_a_name(
    run: RunDirectory, between: Callable[..., list[float]]
) -> None:
    Session(run, 1).die()
    run.summary.write_text("{")
    between()
    with pytest.raises(TianjiError, match=r"summary\.json is no summary"):
        watching.watch(str(run.path))


def test_json_is_the_summary_as_it_was_written(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    Session(run, 1).end(summary(1, lag=None))
    between()
    assert watching.watch(str(run.path), json_to="-") == 0
    document = json.loads(run.summary.read_text()) | {"run": str(run.path)}
    assert json.loads(capsys.readouterr().out) == document


def test_what_another_user_s_run_says_cannot_command_a_terminal(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    session, evil = Session(run, 1), "\x1b]0;mine\x07\x9b2J"
    run.config.write_text(f"[experiment]\nname = {json.dumps(evil)}\n")
    between(lambda: session.end(summary(1, experiment=evil, reason=evil)), nothing, nothing)
    assert watching.watch(str(run.path)) == 0
    shown = capsys.readouterr()
    assert "]0;mine" in shown.out
    assert not {"\x1b", "\x07", "\x9b"} & set(shown.out + shown.err + watching._title(run))


def test_a_config_without_a_name_is_watched_by_its_path(run: RunDirectory) -> None:
    assert watching._title(run) == f"ppo_cartpole ({run.path})"
    for content in ("", "[", "experiment = 3", "[experiment]"):
        run.config.write_text(content)
        assert watching._title(run) == str(run.path)


class GoneDisplay(Display):
    """A pipe that nobody reads any more, of which that is found out as something is shown, told or closed."""

    def __init__(self, at: str) -> None:
        self._at = at

    def _write(self, at: str, what: object = "") -> None:
        if at == self._at:
            raise BrokenPipeError(str(what))

    def show(self, snapshot: Snapshot) -> None:
        self._write("show", snapshot)

    def event(self, text: str) -> None:
        self._write("event", text)

    def close(self) -> None:
        self._write("close")


@pytest.mark.parametrize("at", ["show", "event", "close"])
def test_when_nobody_reads_any_more_watching_is_over(
    at: str,
    run: RunDirectory,
    between: Callable[..., list[float]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(watching, "choose_display", lambda *_arguments, **_options: GoneDisplay(at))
    sessions: list[Session] = []
    between(lambda: sessions.append(Session(run, 1)), lambda: sessions[0].end(summary(1)))
    assert watching.watch(str(run.path)) == 130
    assert capsys.readouterr() == ("", "")


def test_what_fails_elsewhere_is_not_taken_for_a_display_that_has_gone(
    run: RunDirectory, between: Callable[..., list[float]]
) -> None:
    def fail() -> None:
        raise OSError("not of the display")

    session = Session(run, 1)
    between(fail)
    with pytest.raises(OSError, match="not of the display"):
        watching.watch(str(run.path))
    session.end(summary(1))


def test_files_that_cannot_be_read_are_an_error_with_a_name(
    run: RunDirectory, between: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    between()
    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(TianjiError, match=r"cannot read .*config\.toml: Permission denied"):
        watching.watch(str(run.path))


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json"])
def test_a_fifo_in_place_of_a_file_is_an_error_with_a_name_and_not_waited_for(
    run: RunDirectory, between: Callable[..., list[float]], name: str
) -> None:
    Session(run, 1).end(summary(1))
    (run.path / name).unlink()
    os.mkfifo(run.path / name)
    between()
    with pytest.raises(TianjiError, match=rf"cannot read .*{name}: it is no regular file"):
        watching.watch(str(run.path))


def test_lines_that_are_longer_than_any_row_are_passed_over_and_hold_nobody_up(
    run: RunDirectory, between: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(run, 1)
    grown = run.metrics.stat().st_size + (200 << 20)

    def write_endless_line() -> None:
        os.truncate(run.metrics, grown)

    def end_it() -> None:
        with run.metrics.open("ab") as metrics:
            metrics.write(b"\n")
        session.write(2)
        session.end(summary(2))

    between(write_endless_line, nothing, end_it)
    assert watching.watch(str(run.path)) == 0
    assert capsys.readouterr().err.count("\n") == 2, "both rows are shown"


def test_a_summary_larger_than_any_is_an_error_with_a_name(run: RunDirectory) -> None:
    Session(run, 1).end(summary(1))
    os.truncate(run.summary, 1 << 30)
    with pytest.raises(TianjiError, match=r"cannot read .*summary\.json: it has more than \d+ bytes"):
        watching.watch(str(run.path))
