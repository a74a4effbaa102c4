"""The command line as a user meets it: exit statuses, what stays unimported, errors of a few lines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tianji_cli.commands import doctor
from tianji_cli.main import _FUNCTIONS, _complain, _example, main

IMPORTS = """
import sys
from tianji_cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    heavy = {"torch", "tensorboard", "matplotlib"} & set(sys.modules)
    assert not heavy, heavy
    sys.exit(ended.code)
"""


def tianji(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, where importing anything heavy is an error."""
    command = [sys.executable, "-c", IMPORTS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)
    assert "AssertionError" not in done.stderr, done.stderr
    return done


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    done = tianji("--help")
    assert done.returncode == 0
    commands = (
        "new",
        "train",
        "eval",
        "export",
        "watch",
        "list",
        "show",
        "logs",
        "stop",
        "rm",
        "cp",
        "check",
        "config",
    )
    assert all(f" {command} " in done.stdout for command in (*commands, "doctor"))


@pytest.mark.parametrize("command", sorted(_FUNCTIONS, key=str))
def test_the_help_of_a_command_ends_with_an_example(command: tuple[str | None, str | None]) -> None:
    function, _ = _FUNCTIONS[command]
    example = _example(resolve_name(f"tianji_cli.commands.{function}"))
    group = () if command[0] == "tianji" else (command[0],)
    assert example is not None
    assert example.startswith(" ".join(filter(None, ("Example: tianji", *group, command[1]))))


def test_version_is_the_distributions() -> None:
    assert tianji("--version").stdout == f"tianji {version('tianji')}\n"


def test_without_arguments_the_help_is_shown() -> None:
    done = tianji()
    assert "Usage: tianji" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lst",), "Did you mean 'list'?"),
        (("train", "--dry"), "no such option: --dry; --dry-run is one;"),
        (
            ("train", "x.toml", "--lr=1"),
            "no such option: --lr; keys of a config",
        ),
        (("config", "show", "x.toml", "--lr", "1"), "--set training.learning_rate=0.001"),
        (
            ("train", "ppo_cartpole", "--out", os.fsdecode(b"\xff\xfe")),
            "is not UTF-8; another would be right",
        ),
        (("train",), "name a config to train"),
        (("train", "configs/ppo_cartpole.toml", "--resume", "x"), "and not several of them"),
        (("train", "configs/ppo_cartpole.toml", "--env", "CartPole-v1"), "and not several of them"),
        (("train", "--resume", "x", "--env", "CartPole-v1"), "and not several of them"),
        (("train", "configs/ppo_cartpole.toml", "--agent", "ppo"), "--agent goes with --env"),
        (("train", "--resume", "x", "--agent", "ppo"), "--agent goes with --env"),
        (("train", "--env", "CartPol-v1"), "did you mean CartPole-v1"),
        (("train", "--env", "CartPole-v1", "--agent", "sac"), "ppo or dqn would be right"),
        (("train", "configs/ppo_cartpol.toml"), "did you mean 'configs/ppo_cartpole.toml'?"),
        (
            ("train", "configs/ppo_cartpole.toml", "--set", "training.gama=1"),
            "--set: training.gama: unknown key",
        ),
        (("train", "configs/ppo_cartpole.toml", "--transport", "smh"), "did you mean 'shm'?"),
        (("train", "configs/ppo_cartpole.toml", "--transport", 'a"b'), "no transport is named 'a\"b'"),
        (("train", "configs/ppo_cartpole.toml", "--device", "tpu"), "'tpu' is no device"),
        (("train", "configs/ppo_cartpole.toml", "--name", "a/b"), "'a/b' cannot name"),
        (("eval", "no-such-run"), "no run 'no-such-run'"),
        (("watch", "no-such-run"), "no run 'no-such-run'"),
        (("show", "no-such-run"), "no run 'no-such-run'"),
        (("logs", "no-such-run"), "no run 'no-such-run'"),
        (("stop", "no-such-run"), "no run 'no-such-run'"),
        (("rm", "--yes", "no-such-run"), "no run 'no-such-run'"),
        (("check", "CartPol-v1"), "CartPol-v1: environment.id: gymnasium has no environment"),
        (("config", "diff", "ppo_cartpole", "ppo_cartpol"), "did you mean 'configs/ppo_cartpole.toml'"),
        (("list", "agent"), "did you mean 'agents'?"),
        (("list",), "Missing argument"),
    ],
)
def test_what_a_user_gets_wrong_is_told_in_a_few_lines_with_status_2(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = tianji(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert 1 <= len(done.stderr.splitlines()) <= 5
    assert "Traceback" not in done.stderr


def test_every_problem_of_a_config_is_one_line_that_begins_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[environment]\ntype = 'gim'\nnum_envs = 0\n[trainning]\n")
    done = tianji("train", "bad.toml", cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert len(lines) == 5
    assert all(line.startswith("bad.toml: ") for line in lines)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback_wherever_it_stands(place: int, tmp_path: Path) -> None:
    arguments = ["train", "nothing.toml", "--quiet"]
    arguments.insert(place, "--debug")
    done = tianji(*arguments, cwd=tmp_path)
    assert "Traceback" in done.stderr
    assert "ConfigError" in done.stderr


def test_an_unforeseen_exception_is_a_failure_told_in_two_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(json_to: str | None = None) -> int:
        raise LookupError("the cellar is empty")

    monkeypatch.setattr(doctor, "examine", broken)
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 1
    message = capsys.readouterr().err.splitlines()
    assert message[0] == "tianji: error: LookupError: the cellar is empty"
    assert len(message) == 2


LEAVES = """
import sys
import gymnasium, numpy as np

AT_IMPORT

class Leaves(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        IN_INIT

    def reset(self, *, seed=None, options=None):
        IN_RESET
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def close(self):
        IN_CLOSE
"""
PLACES = ("IMPORT", "INIT", "RESET", "CLOSE")


@pytest.mark.parametrize(
    ("place", "code", "status", "words"),
    [
        ("IMPORT", "'no licence'", 2, "does not import: SystemExit: no licence"),
        ("INIT", "'no licence'", 2, "--env {}:Leaves called sys.exit('no licence') when it was built"),
        ("INIT", "0", 2, "--env {}:Leaves called sys.exit(0) when it was built"),
        ("RESET", "0", 2, "--env {}:Leaves cannot be reset: SystemExit: 0"),
        ("CLOSE", "0", 1, "tianji: error: sys.exit(0) in "),
    ],
)
def test_an_environment_that_leaves_is_an_error_with_its_words_before_there_is_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    code: str,
    status: int,
    words: str,
) -> None:
    module = f"leaves_{place.lower()}_{len(code)}"
    source = LEAVES
    for one in PLACES:
        prefix = "AT" if one == "IMPORT" else "IN"
        source = source.replace(f"{prefix}_{one}", f"sys.exit({code})" if one == place else "pass")
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--env", f"{module}:Leaves", "--quiet"])
    assert ended.value.code == status
    assert words.format(module) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ""] in ([], ["__pycache__"])


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    done = tianji("train", "configs/ppo_cartpole.toml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert "buffer + learner" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("agent", [(), ("--agent", "dqn")])
def test_a_dry_run_without_a_file_builds_what_the_defaults_say(
    tmp_path: Path, agent: tuple[str, ...]
) -> None:
    done = tianji("train", "--env", "CartPole-v1", *agent, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "buffer + learner" in done.stdout
    assert list(tmp_path.iterdir()) == []
    tuned = "configs/dqn_cartpole.toml" if agent else "configs/ppo_cartpole.toml"
    assert f"tianji: {tuned} is tuned for this environment: tianji train {tuned}\n" in done.stderr


@pytest.mark.parametrize("words", [("FrozenLake-v1",), ("CartPole-v1", "--quiet")])
def test_no_tuned_config_is_named_where_there_is_none_or_quiet_is_wanted(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = tianji("train", "--env", *words, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is tuned" not in done.stderr


def test_a_dry_run_names_files_that_other_hosts_would_write(tmp_path: Path) -> None:
    hosts = ("--set", "distribution.hosts=2", "--set", "distribution.groups=2")
    engines = ("--set", 'distribution.transport={ local = "shm", remote = "zmq" }')
    recorder = Path(__file__).parents[3] / "docs" / "examples" / "recorder.toml"
    done = tianji("train", str(recorder), *hosts, *engines, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "the checkpoints of group 1 are kept only if host-1 reaches the run directory" in words
    assert "the files of recorder (group 1) are kept only if host-1 reaches the run directory" in words
    assert "group 0 are kept" not in words


@pytest.mark.parametrize(
    "name",
    [
        "dqn_pong",
        *(
            pytest.param(one, marks=pytest.mark.soak)
            for one in ("qmix_two_step", "impala_cartpole", "ppo_lunarlander", "maddpg_adversary")
        ),
    ],
)
def test_a_dry_run_builds_what_trains_in_a_process_that_imports_torch_instead(
    tmp_path: Path, name: str
) -> None:
    assert tianji("train", name, "--dry-run", "--json", "-", cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not version("torch").endswith("+cpu"), reason="this build of torch knows GPUs")
def test_a_config_for_a_gpu_is_planned_anywhere_and_trained_only_where_torch_has_cuda(tmp_path: Path) -> None:
    gpu = ("train", "configs/ppo_cartpole.toml", "--set", "distribution.device=cuda")
    assert tianji(*gpu, "--dry-run", cwd=tmp_path).returncode == 0
    done = tianji(*gpu, cwd=tmp_path)
    assert done.returncode == 2
    assert "distribution.device: 'cuda' is not there: torch" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_of_an_environment_is_answered_with_the_pip_command(tmp_path: Path) -> None:
    without_box2d = f"import sys; sys.modules['Box2D'] = None\n{IMPORTS}"
    command = [sys.executable, "-c", without_box2d, "train", "configs/ppo_lunarlander.toml", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "environment.id: " in done.stderr
    assert "pip install 'tianji[box2d]'" in done.stderr


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_closed_stream_is_nobody_s_and_no_reason_to_fail(tmp_path: Path, closed: str) -> None:
    script = Path(sys.executable).with_name("tianji")
    listed, refused = tmp_path / "agents.json", tmp_path / "refused"
    wrong = f"{script} list nothing {closed}; echo $? > {refused}"
    line = f"{script} list agents --json {listed} {closed}; {wrong}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=True)
    assert '"agents"' in listed.read_text()
    assert refused.read_text() == "2\n"
    assert ("2>" in closed) == ("no list of 'nothing'" not in done.stderr)


def test_no_line_of_an_error_is_longer_than_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    _complain(f"a tensor \x1b[31m{'x' * 3_000_000}\nand more")
    said = capsys.readouterr().err
    assert said.startswith("a tensor \N{REPLACEMENT CHARACTER}[31mxxx")
    assert [len(line) for line in said.splitlines()] == [4096, 8]


def test_an_error_breaks_between_words_on_a_terminal_and_nowhere_in_a_pipe(tmp_path: Path) -> None:
    arguments = ("train", "configs/ppo_cartpole.toml", "--set", "training.zzz=1")
    in_pipe = tianji(*arguments, cwd=tmp_path).stderr
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    without_size = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES"}}
    command = [sys.executable, "-c", IMPORTS, *arguments]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=without_size
    ) as shown:
        os.close(theirs)
        on_terminal = b""
        with contextlib.suppress(OSError):  # Linux answers EIO once the other side has closed.
            while data := os.read(ours, 1 << 16):
                on_terminal += data
        os.close(ours)
        assert shown.wait(60) == 2
    lines = on_terminal.decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split() == in_pipe.split()
    assert max(map(len, in_pipe.splitlines())) > 200
