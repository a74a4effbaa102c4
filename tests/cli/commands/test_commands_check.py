"""`tianji check`: environments with one fault each, and one without any."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.warm import WarmCommands

from tianji_cli.commands import check as checking
from tianji_cli.errors import ConfigError
from tianji_cli.telemetry.progress import Progress

GOOD = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """A walk to the right end of a line, which drifts."""

    observation_space = spaces.Box(-20.0, 20.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.left = float(self.np_random.uniform(-1, 1)), 20
        return self.seen(), {}

    def step(self, action):
        self.at += (1 if action else -1) * 0.5 + float(self.np_random.normal(0, 0.1))
        self.left -= 1
        return self.seen(), float(self.at > 1), bool(self.at > 4), self.left <= 0, {}

    def seen(self):
        return np.array([self.at, self.left], np.float32)
'''

SHOWN = "return np.array([self.at, self.left], np.float32)\n"
SEES = """

class Sees(Walk):
    observation_space = spaces.Box(0, 20, {})

    def seen(self):
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)
"""

Check = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def check(tmp_path: Path, warm_commands: WarmCommands) -> Check:
    """Check GOOD with a change; gives the exit status, and the findings by what they are of."""

    def run(old: str = "", new: str = "", target: str = "walk:Walk", *options: str) -> Any:
        assert old in GOOD
        (tmp_path / "walk.py").write_text(GOOD.replace(old, new) if old else GOOD)
        arguments = ["check", target, "--json", str(tmp_path / "found.json"), *options]
        command = warm_commands.begin_kept(arguments, tmp_path, os.environ)
        out, err = command.communicate(60.0)
        found = json.loads((tmp_path / "found.json").read_text())["findings"]
        run.said = out + err
        return command.returncode, {one["subject"]: one for one in reversed(found)}

    return run


def faults(findings: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: one["grade"] for name, one in findings.items() if one["grade"] != "ok"}


@pytest.mark.parametrize(
    ("old", "subject", "found"),
    [
        ("    def step(", "built", "walk:Walk called sys.exit('no licence') when it was built ("),
        ("        super().reset(", "played", "SystemExit: no licence ("),
    ],
)
def test_an_environment_that_leaves_the_program_is_a_problem_with_its_words(
    check: Any, old: str, subject: str, found: str
) -> None:
    leaves = "__import__('sys').exit('no licence')\n"
    new = (
        f"    def __init__(self):\n        {leaves}\n{old}"
        if subject == "built"
        else f"        {leaves}{old}"
    )
    status, findings = check(old, new)
    assert status == 1
    assert findings[subject]["found"].startswith(found)


def test_an_environment_without_faults_has_nothing_to_mend(check: Any) -> None:
    status, findings = check()
    assert (status, faults(findings)) == (0, {})
    assert findings["agents"]["found"] == "ppo, dqn can act in it"
    assert findings["processes"]["found"].startswith("one of its own has built it")
    assert set(findings) >= {"built", "gymnasium's checker", "observations", "rewards", "seeding", "speed"}
    assert "nothing is to be mended" in check.said


@pytest.mark.parametrize(
    ("old", "new", "subject", "said"),
    [
        ("float(self.at > 1)", "float('nan') if self.left < 5 else 1.0", "rewards", "step 16 gave nan"),
        ("[self.at, self.left]", "[self.at, np.inf]", "observations", "gave inf as observation[1]"),
        ("self.np_random.normal", "np.random.normal", "seeding", "differ in observation at step 1"),
        ("self.left -= 1", "self.left -= 1; print(1 / (self.left - 3))", "played", "walk.py:20"),
        ("np.array([self.at, self.left], np.float32)", "np.array([self.at])", "played", "of shape (1,)"),
        ("spaces.Discrete(2)", "spaces.Text(3)", "built", "action_space is Text"),
        ("-20.0, 20.0", "-0.1, 0.1", "gymnasium's checker", "is not within the observation space"),
    ],
)
def test_a_fault_is_named_with_what_to_do(check: Any, old: str, new: str, subject: str, said: str) -> None:
    status, findings = check(old, new)
    assert status == 1
    assert findings[subject]["grade"] == "problem"
    assert said in findings[subject]["found"]
    assert findings[subject]["remedy"]
    assert f"problem: {subject}: " in check.said


BOX = "spaces.Box(-20.0, 20.0, (2,), np.float32)"
SHOWN = "np.array([self.at, self.left], np.float32)"
MASK = "np.array([1, self.at < 0], np.int8)"


def test_a_mask_that_forbids_every_action_is_found(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    masked = GOOD.replace(BOX, f"spaces.Dict({{'at': {BOX}, 'action_mask': spaces.MultiBinary(2)}})")
    masked = masked.replace(f"return {SHOWN}", f"return {{'at': {SHOWN}, 'action_mask': {MASK}}}")
    monkeypatch.setattr(sys.modules[__name__], "GOOD", masked)
    _, findings = check()
    assert findings["action_mask"]["grade"] == "ok"
    assert findings["action_mask"]["found"].startswith("leaves something to choose")
    status, findings = check(MASK, f"{MASK} * (self.left != 17)")
    assert (status, findings["action_mask"]["grade"]) == (1, "problem")
    assert findings["action_mask"]["found"] == "step 3 forbade every action"
    check(MASK, f"{MASK} * (self.left != 0)")
    assert "forbade" not in check.said, "an episode is over there"


ONE_PROCESS = (
    "    def reset(self,",
    """    def __init__(self):
        import fcntl
        global lock
        if "lock" not in globals():
            lock = open("lock", "w")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def reset(self,""",
)


@pytest.mark.parametrize(
    ("old", "new", "subject"),
    [
        ("self.left -= 1", "self.left -= 1\n        while self.left == 3: pass", "played"),
        ("def reset", "def __init__(self):\n        while True: pass\n\n    def reset", "built"),
    ],
)
def test_a_call_that_does_not_return_is_named_with_its_line(
    check: Any, old: str, new: str, subject: str
) -> None:
    status, found = check(old, new, "walk:Walk", "--patience", "1")
    wrong = [one for one in found.values() if one["grade"] == "problem"]
    assert status == 1, found
    assert [one["subject"] for one in wrong] == [subject]
    assert re.search(r"had not returned after \d s.*walk\.py:\d+", wrong[0]["found"])


def test_what_only_one_process_may_have_is_found(check: Any) -> None:
    status, findings = check(*ONE_PROCESS)
    assert (status, faults(findings)) == (1, {"processes": "problem"})
    assert "may be only one process's at a time" in check.said


def test_what_keeps_a_config_from_running_is_not_blamed_on_the_environment(
    check: Any, tmp_path: Path
) -> None:
    (tmp_path / "walk.toml").write_text(CONFIG + 'model.type = "cnn_actor_critic"\n')
    status, findings = check("float(self.at > 1)", "1.0", "walk.toml")
    assert (status, faults(findings)) == (1, {"processes": "problem"})
    assert "mend what is named there" in check.said
    assert "only one process" not in check.said


def test_episodes_that_do_not_end_are_a_warning_and_a_limit_ends_it(check: Any) -> None:
    status, findings = check("bool(self.at > 4), self.left <= 0", "False, False")
    assert (status, findings["episodes"]["grade"]) == (0, "warning")
    limit = ("--set", "environment.max_episode_steps=50")
    _, findings = check("bool(self.at > 4), self.left <= 0", "False, False", "walk:Walk", *limit)
    assert findings["episodes"]["grade"] == "ok"


CONFIG = """
experiment.stop = { env_steps = 9999 }
environment.type = "walk:Walk"
agent.type = "ppo"
"""


def test_a_config_is_checked_with_its_environment(check: Any, tmp_path: Path) -> None:
    (tmp_path / "walk.toml").write_text(CONFIG)
    status, findings = check("float(self.at > 1)", "float('inf')", "walk.toml")
    assert (status, findings["rewards"]["grade"]) == (1, "problem")
    assert findings["config"]["found"] == "its keys and values fit one another"
    assert "agents" not in findings
    assert findings["processes"]["grade"] == "ok"


def test_what_is_no_config_and_no_module_is_refused_as_such() -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml: no such file"):
        list(checking._examine("nothing.toml", (), 60.0, Progress(0, quiet=True)))
    for path in ("proj/my_env", "./proj/my_env.py"):
        with pytest.raises(ConfigError, match=r"is a path; a module is named with dots: proj\.my_env:Walk"):
            list(checking._examine(f"{path}:Walk", (), 60.0, Progress(0, quiet=True)))
    with pytest.raises(ConfigError, match=r"put /home/me on PYTHONPATH, and name my_env:Walk"):
        list(checking._examine("/home/me/my_env.py:Walk", (), 60.0, Progress(0, quiet=True)))


def test_a_team_is_played_by_the_actions_that_there_are() -> None:
    findings = list(checking._examine("qmix_two_step", (), 60.0, Progress(0, quiet=True)))
    assert [one.subject for one in findings if one.grade != "ok"] == []


@pytest.mark.parametrize(
    ("space", "settings", "network"),
    [
        ("(2,), np.float32", (), "mlp_actor_critic sees the observation: numbers in a row (Box of 1 axes)"),
        (
            "(2, 64, 64, 3), np.uint8",
            (),
            "cnn_actor_critic sees the observation: an image of 64 x 64 pixels, channels: 6, 0 to 20",
        ),
        (
            "(20, 20), np.int32",
            ("--set", "environment.image_layout=none"),
            "mlp_actor_critic sees the observation: numbers in a row (environment.image_layout)",
        ),
    ],
)
def test_each_part_of_an_observation_has_its_network_and_the_reason(
    space: str, settings: tuple[str, ...], network: str, check: Any
) -> None:
    status, findings = check(SHOWN, SHOWN + SEES.format(space), "walk:Sees", *settings)
    assert findings["network"]["found"] == network
    assert (status, faults(findings)) == (0, {})


def test_channels_on_either_side_are_a_fault_with_the_ways_out(check: Any) -> None:
    status, findings = check(SHOWN, SHOWN + SEES.format("(32, 32, 32), np.uint8"), "walk:Sees")
    assert (status, faults(findings)) == (1, {"agents": "problem"})
    assert "environment.image_layout = 'channels_first' or 'channels_last' would be right" in check.said
