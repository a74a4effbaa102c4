import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tianji_cli.files.campaigns import SeedsDirectory, SweepDirectory
from tianji_cli.files.rundir import NoSuchRunError, RunDirectory, RunDirectoryError, write_whole


def make_run(out: Path, name: str) -> RunDirectory:
    run = RunDirectory.create(name, out)
    run.write_config("[experiment]\n")
    return run


def test_runs_are_numbered_and_a_number_is_not_used_again(tmp_path: Path) -> None:
    assert [RunDirectory.create("x", tmp_path).path.name for _ in range(3)] == ["1", "2", "3"]
    (tmp_path / "x" / "notes").mkdir()
    (tmp_path / "x" / "41").mkdir()
    run = RunDirectory.create("x", tmp_path)
    assert run.path == tmp_path / "x" / "42"
    assert {path.name for path in run.path.iterdir()} == {"logs", "checkpoints", "plots"}


def test_runs_that_start_at_the_same_moment_get_different_directories(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tianji_cli.files.rundir import RunDirectory\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for _ in range(50): print(RunDirectory.create('x', Path(sys.argv[1])).path)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    starters = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert [starter.stdout.readline() for starter in starters] == ["ready\n"] * 4
    for starter in starters:
        starter.stdin.write("go\n")
        starter.stdin.flush()
    paths = [path for starter in starters for path in starter.communicate(timeout=120)[0].split()]
    assert all(starter.returncode == 0 for starter in starters)
    assert len(paths) == len(set(paths)) == 200
    assert {int(Path(path).name) for path in paths} == set(range(1, 201))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", ".hidden"])
def test_a_name_that_is_no_directory_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunDirectoryError, match="cannot name a directory"):
        RunDirectory.create(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_hold_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RunDirectoryError, match=r"out/x: Not a directory; --out DIR"):
        RunDirectory.create("x", tmp_path / "out")


def test_a_run_is_found_by_path_by_name_and_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path("experiments")
    runs = [make_run(out, "ppo") for _ in range(10)]
    assert RunDirectory.find("ppo") == runs[9]
    assert RunDirectory.find("ppo/2") == runs[1]
    assert RunDirectory.find("experiments/ppo/2") == runs[1]
    assert RunDirectory.find("experiments/ppo/") == runs[9]
    assert RunDirectory.find(str(runs[3].path.absolute())).path.samefile(runs[3].path)
    make_run(Path("elsewhere"), "dqn")
    assert RunDirectory.find("dqn", Path("elsewhere")).path == Path("elsewhere/dqn/1")


def test_a_run_that_died_before_it_wrote_its_config_is_passed_over(tmp_path: Path) -> None:
    whole = make_run(tmp_path, "ppo")
    RunDirectory.create("ppo", tmp_path)
    assert RunDirectory.find("ppo", tmp_path) == whole


def test_a_directory_of_the_users_that_is_no_run_hides_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ppo").mkdir()
    run = make_run(Path("experiments"), "ppo")
    assert RunDirectory.find("ppo") == run


def test_a_run_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    for _ in range(3):
        make_run(tmp_path, "ppo_cartpole")
    make_run(tmp_path, "dqn")
    with pytest.raises(NoSuchRunError) as missing:
        RunDirectory.find("ppo_cartpol/1", tmp_path)
    assert str(missing.value) == (
        f"no run 'ppo_cartpol/1' (did you mean 'ppo_cartpole'?)\n{tmp_path}/ has dqn (1), ppo_cartpole (1-3)"
    )
    (tmp_path / "dqn/old").mkdir()
    with pytest.raises(NoSuchRunError, match=r"'dqn/old' \(.*/dqn/old is a directory without a config"):
        RunDirectory.find("dqn/old", tmp_path)
    with pytest.raises(NoSuchRunError, match=r"no run 'x': there are no runs in .*/empty/"):
        RunDirectory.find("x", tmp_path / "empty")
    with pytest.raises(NoSuchRunError, match=r"no run 'z{190,}\.\.\.'") as missing:
        RunDirectory.find("z" * 3000, tmp_path)
    assert len(str(missing.value)) < len(str(tmp_path)) + 400


def test_seeds_and_trials_have_to_be_named(tmp_path: Path) -> None:
    seeds = SeedsDirectory.create("ppo", (3, 7, 11), "", tmp_path).path
    for seed in (7, 3):
        RunDirectory(seeds / str(seed)).write_config("")
    named = ", ".join(f"ppo/seeds-1/{seed}" for seed in (3, 7, 11))
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match=f"^ppo/seeds-1 has 3 runs: name one of {named}$"):
            RunDirectory.find("ppo/seeds-1/", tmp_path)
        make_run(tmp_path, "ppo")  # What its experiment has besides makes no difference.
    assert RunDirectory.find("ppo", tmp_path).path == tmp_path / "ppo/2"
    assert RunDirectory.find("ppo/seeds-1/7", tmp_path).path == seeds / "7"
    alone = SeedsDirectory.create("ppo", (5,), "", tmp_path).path
    with pytest.raises(NoSuchRunError):
        RunDirectory.find("ppo/seeds-2", tmp_path)
    RunDirectory(alone / "5").write_config("")
    assert RunDirectory.find("ppo/seeds-2", tmp_path).path == alone / "5"

    sweep = SweepDirectory(tmp_path / "ppo/sweep-1")
    for number, seed in [(0, 1), (2, 1), (10, 1), (10, 2)]:
        sweep.run(number, seed).path.mkdir(parents=True)
        sweep.run(number, seed).write_config("")
        sweep.trial_config(number).write_text("")
    sweep.config.write_text("")
    (tmp_path / "one" / "trials/0/1").mkdir(parents=True)
    for name in ("sweep.toml", "trials/0/1/config.toml"):
        (tmp_path / "one" / name).touch()
    with pytest.raises(RunDirectoryError, match="has 1 run: name one of"):  # Another trial may begin.
        RunDirectory.find("one", tmp_path)
    with pytest.raises(RunDirectoryError, match=r"sweep-1 has 4 runs: name one of \S+/trials/0/1, \S+/2/1, "):
        RunDirectory.find(str(sweep.path))
    with pytest.raises(RunDirectoryError, match=r"^ppo/sweep-1/trials/10 has 2 runs"):
        RunDirectory.find("ppo/sweep-1/trials/10", tmp_path)
    assert RunDirectory.find("ppo/sweep-1/trials/2", tmp_path) == sweep.run(2, 1)


def test_many_experiments_do_not_flood_the_error(tmp_path: Path) -> None:
    for index in range(30):
        make_run(tmp_path, f"experiment{index:02}")
    with pytest.raises(NoSuchRunError) as missing:
        RunDirectory.find("zzz", tmp_path)
    assert str(missing.value).endswith("experiment09 (1) and 20 more")


def test_a_file_is_replaced_whole_or_not_at_all(small_disk: Path) -> None:
    path = small_disk / "summary.json"
    write_whole(path, b"old")
    with pytest.raises(OSError, match="No space left") as full:
        write_whole(path, b"x" * 100_000)
    assert full.value.errno == errno.ENOSPC
    assert path.read_text() == "old"
    assert [entry.name for entry in small_disk.iterdir()] == ["summary.json"]
    write_whole(path, b"new")
    assert path.read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"figures")
        assert os.read(reader, 100) == b"figures"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_what_a_killed_process_has_left_of_a_file_goes_with_the_next_writing_of_it(tmp_path: Path) -> None:
    file, old, young, other = (tmp_path / name for name in ("a.json", ".a.json.7", ".a.json.8", ".b.json.7"))
    for leftover in (old, young, other):
        leftover.write_text("half")
    for leftover in (old, other):
        os.utime(leftover, (1.0, 1.0))
    write_whole(file, b"{}")
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", ".a.json.8", ".b.json.7"}


def test_what_a_killed_process_has_left_of_a_sweep_goes_with_the_next_one(tmp_path: Path) -> None:
    for name in (".sweep-deadbeef", ".sweep-0123abcd"):
        (tmp_path / name / "workers").mkdir(parents=True)
    os.utime(tmp_path / ".sweep-deadbeef", (1.0, 1.0))

    def fill(made: SweepDirectory) -> None:
        made.config.touch()

    SweepDirectory.create(tmp_path / "sweep", "run", fill)
    assert {path.name for path in tmp_path.iterdir()} == {".sweep-0123abcd", "sweep"}
