"""`tianji eval`: greedy episodes with a checkpoint of a run."""

import itertools
import json
import re
import signal
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt


def test_eval_plays_a_checkpoint_and_says_what_is_wrong(workplace: Any) -> None:
    run = workplace.train({"experiment": {"stop": {"wall_s": 3.0}, "checkpoint_every_s": 0.4}})
    run.finish()
    out = ("--out", "out")

    def figures(*options: str) -> dict[str, Any]:
        command = workplace.command("eval", "run", *out, "--episodes", "4", "--json", "-", *options)
        command.wait(0)
        document: dict[str, Any] = json.loads(command.stdout)
        return document

    first = figures("--seed", "5")
    keys = ["episodes", "mean", "std", "left_out", "cut_off", "length", "min", "max", "returns"]
    assert list(first) == keys
    assert first["episodes"] == len(first["returns"]) == 4
    assert (first["left_out"], first["cut_off"]) == (0, None)
    assert first["mean"] == sum(first["returns"]) / 4
    assert figures("--seed", "5") == first
    steps = sorted(int(path.name) for path in (run.path / "checkpoints").iterdir() if path.name.isdecimal())
    assert figures("--seed", "5", "--checkpoint", str(steps[-1])) == figures(
        "--seed", "5", "--checkpoint", "last"
    )

    sampled = figures("--seed", "5", "--policy", "sampled")
    assert sampled.pop("policy") == "sampled"
    assert sampled["returns"] != first["returns"], "it explores"
    assert (
        figures("--seed", "5", "--policy", "sampled", "--checkpoint", "best")["returns"] == sampled["returns"]
    )
    wrong = workplace.command("eval", "run/1", *out, "--checkpoint", "3")
    wrong.wait(2)
    assert all(str(step) in wrong.last_words for step in [*steps, "best", "last"])
    for name in ("9" * 5000, "z" * 5000):
        wrong = workplace.command("eval", "run/1", *out, "--checkpoint", name)
        wrong.wait(2)
        assert "has no checkpoint" in wrong.last_words
    missing = workplace.command("eval", "ru", *out)
    missing.wait(2)
    assert "did you mean 'run'" in missing.stderr

    shown = workplace.command("eval", str(run.path), "--episodes", "1", "--json", "figures.json")
    shown.wait(0)
    assert "greedy episodes" in shown.stdout
    assert json.loads((workplace.place / "figures.json").read_text())["episodes"] == 1


def test_eval_plays_the_checkpoint_that_the_config_asks_for(workplace: Any) -> None:
    run = workplace.train({"experiment": {"eval_checkpoint": "last"}})
    run.finish()
    shown = workplace.command("eval", str(run.path), "--episodes", "1")
    shown.wait(0)
    assert f"{run.path}, last: " in shown.stdout
    shown = workplace.command("eval", str(run.path), "--episodes", "1", "--checkpoint", "best")
    shown.wait(0)
    assert f"{run.path}, best: " in shown.stdout


def filmed(path: Path) -> tuple[float, list[npt.NDArray[np.uint8]]]:
    """Pictures a second of a film, and its pictures."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate is not None
        frames = container.decode(stream)
        return float(stream.average_rate), [frame.to_ndarray(format="rgb24") for frame in frames]


def test_eval_films_all_episodes_one_after_the_other(workplace: Any) -> None:
    run = workplace.train()
    run.finish()
    shown = workplace.command("eval", str(run.path), "--episodes", "2", "--json", "-", "--render", "play.mp4")
    shown.wait(0)
    figures = json.loads(shown.stdout)
    rate, pictures = filmed(workplace.place / "play.mp4")
    assert (rate, len(pictures)) == (50, sum(figures["returns"]) + 2), "a step of CartPole is worth 1"
    assert (figures["render"], figures["pictures"], figures["fps"]) == ("play.mp4", len(pictures), 50)
    assert {picture.shape for picture in pictures} == {(400, 600, 3)}
    # An episode begins within 2.9 degrees of upright and ends beyond 12: a turn by 9, the least that
    # there can be, changes a picture by 0.3 in the mean of all its pixels.
    end = int(figures["returns"][0])
    first, last, again = (pictures[n].astype(int) for n in (0, end, end + 1))
    assert abs(first - last).mean() > 0.2
    assert abs(again - last).mean() > 0.2
    said = workplace.command("eval", str(run.path), "--render", "again.MP4", "--overlay")
    said.wait(0)
    assert "mean of 1 greedy episodes" in said.stdout
    assert re.search(r"^again\.MP4: 1 episode; \d+ pictures, 50 a second$", said.stdout, re.MULTILINE)
    _, pictures = filmed(workplace.place / "again.MP4")
    assert pictures[0].shape[0] > 400
    assert pictures[0].shape[1:] == (600, 3)
    strips = [picture[400:].astype(int) for picture in pictures]
    assert all(abs(one - next_).mean() > 0.1 for one, next_ in itertools.pairwise(strips)), (
        "steps are counted"
    )
    for options, why in (
        (("--render", "missing/play.mp4"), "there is no directory missing"),
        (("--render", "play.avi"), "play.avi names no film that can be written; play.mp4 would be right"),
        (("--render", "play.gif"), "play.mp4 would be right, and `ffmpeg -i play.mp4 play.gif` converts it"),
        (("--overlay",), "--overlay is drawn below a film; --render X.mp4 makes one"),
    ):
        refused = workplace.command("eval", str(run.path), *options)
        refused.wait(2)
        assert why in refused.last_words


def test_eval_names_the_library_that_a_film_needs_before_it_plays(workplace: Any) -> None:
    run = workplace.train()
    run.finish()
    workplace.customize("import os, sys\nsys.modules |= dict.fromkeys(os.environ['ABSENT'].split())\n")
    for absent, words in (
        ("av", "--render: a film as .mp4 needs PyAV: pip install 'tianji[video]'"),
        ("pygame", "needs pygame: pip install 'gymnasium[classic-control]'"),
    ):
        workplace.environment["ABSENT"] = absent
        command = workplace.command("eval", str(run.path), "--episodes", "1", "--render", "play.mp4")
        command.wait(2)
        assert words in command.last_words
        assert not list(workplace.place.glob("*play.*"))


def test_eval_films_nothing_of_what_cannot_be_drawn(workplace: Any) -> None:
    workplace.module(ENDLESS_ENV.replace("    def render", "    def draw"))
    run = workplace.train(endless(1.0, first=5))
    run.finish()
    refused = workplace.command("eval", str(run.path), "--render", "play.mp4")
    refused.wait(2)
    assert "--render: nothing was played: " in refused.last_words
    assert refused.last_words.endswith("; without --render it can be")
    assert "cannot be drawn: NotImplementedError" in refused.last_words
    workplace.module(ENDLESS_ENV.replace("zeros((20, 30, 3)", "zeros((20 + self.steps, 300, 3)"))
    grows = workplace.command("eval", str(run.path), "--render", "play.mp4")
    grows.wait(2)
    assert "picture 2 has 300 x 21 pixels, and the first 300 x 20; a film has one size" in grows.last_words
    assert not list(workplace.place.glob("*play.*"))
    workplace.module(ENDLESS_ENV.replace("return numpy.zeros((20, 30, 3)", "raise SystemExit(0) #"))
    leaves = workplace.command("eval", str(run.path), "--render", "play.mp4")
    leaves.wait(2)
    assert "nothing was played: " in leaves.last_words
    assert "SystemExit: 0" in leaves.last_words
    deadly = ENDLESS_ENV.replace("import time\n", "import os, time\n")
    workplace.module(deadly.replace("return numpy.zeros((20, 30, 3)", "os.kill(os.getpid(), 11) #"))
    crashes = workplace.command("eval", str(run.path), "--render", "play.mp4")
    assert crashes.wait() not in {0, 1, 2}
    assert " in render\n" in crashes.stderr, "where it was"


def test_a_film_that_is_interrupted_leaves_what_was_there(workplace: Any) -> None:
    workplace.module(ENDLESS_ENV)
    run = workplace.train(endless(60.0, first=5))
    run.finish()
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("first = 5", "first = 1_000_000_000"))
    film = workplace.place / "play.mp4"
    film.write_bytes(b"before")
    played = workplace.command("eval", str(run.path), "--render", "play.mp4")
    workplace.until(lambda: len(list(workplace.place.glob("*play.*"))) > 1, "it is filmed")
    workplace.until(lambda: "evaluating: " in played.stderr, "it is played")
    played.signal_all(signal.SIGINT)
    played.wait(130)
    assert film.read_bytes() == b"before"
    assert [path.name for path in workplace.place.glob("*play.*")] == ["play.mp4"]


ENDLESS_ENV = """
import time
import gymnasium, numpy, setproctitle

class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, hangs="", first=10**9, render_mode=None):
        self.hangs, self.first, self.steps = hangs, first, 0

    def hang(self, where):
        if where and self.hangs == where and "tianji: actor" not in setproctitle.getproctitle():
            time.sleep(3600)

    def close(self):
        if self.steps:
            self.hang("close")

    def render(self):
        return numpy.zeros((20, 30, 3), numpy.uint8)

    def reset(self, *, seed=None, options=None):
        self.hang("reset")
        return numpy.zeros(3, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        self.hang("first step" if self.steps == 1 else "step" if self.steps == 10 else "")
        return numpy.zeros(3, numpy.float32), 1.0, self.steps == self.first, False, {}
"""


def endless(max_s: float, **options: Any) -> dict[str, Any]:
    return {
        "experiment": {"eval_episodes": 20, "eval_max_s": max_s},
        "environment": {"type": "my_env:Endless", "id": "", "options": options},
    }


def test_an_evaluation_whose_episodes_never_end_ends_and_says_so(workplace: Any) -> None:
    workplace.module(ENDLESS_ENV)
    run = workplace.train(endless(3.0, first=5), options=())
    summary = run.finish()
    # Each of the 20 environments ends its first episode, and an episode of a 21st would never end.
    assert summary["evaluation"] == {
        "episodes": 20,
        "mean": 5.0,
        "std": 0.0,
        "left_out": 0,
        "cut_off": None,
        "length": 5.0,
    }
    run = workplace.train(endless(3.0), options=())
    summary = run.finish()
    nothing = {"episodes": 0, "mean": None, "std": None, "left_out": 20, "cut_off": "3 s"}
    assert summary["evaluation"] == nothing
    assert "none of 20 greedy episodes had ended after 3 s (experiment.eval_max_s" in run.command.stdout
    progress = [row["evaluating"] for row in run.rows if row["evaluating"]]
    assert progress[-1]["wanted"] == 20
    roles = [role for row in run.rows if row["evaluating"] for role in row["roles"] or ()]
    assert "running" in {role["state"] for role in roles if role["role"] == "evaluator"}
    assert progress[-1]["env_steps"] > progress[0]["env_steps"]

    out = ("--episodes", "40", "--json", "figures.json")
    played = workplace.command("eval", str(run.path), *out, "--max-s", "0.5")
    played.wait(0)
    assert "none of 40 greedy episodes had ended after 0.5 s (--max-s, --max-steps)" in played.stdout
    document = json.loads((workplace.place / "figures.json").read_text())
    assert document == {
        **nothing,
        "left_out": 40,
        "cut_off": "0.5 s",
        "min": None,
        "max": None,
        "returns": [],
    }
    played = workplace.command("eval", str(run.path), *out, "--max-steps", "2000")
    played.wait(0)
    assert "after 2,000 env steps" in played.stdout
    played = workplace.command("eval", str(run.path), "--episodes", "40")
    played.wait(0)
    assert "evaluating: 0 of 40 episodes, " not in played.stdout
    assert "evaluating: 0 of 40 episodes, " in played.stderr


def test_a_step_that_does_not_return_does_not_keep_an_evaluation_for_ever(workplace: Any) -> None:
    workplace.module(ENDLESS_ENV)
    run = workplace.train(endless(1.0, hangs="step", first=5))
    summary = run.finish()
    assert summary["status"] == "finished"
    assert summary["evaluation"]["episodes"] == 20
    run = workplace.train(endless(1.0, hangs="step"))
    summary = run.finish()
    assert summary["evaluation"]["episodes"] == 0
    assert summary["evaluation"]["cut_off"].endswith("s in a step or an action that did not return")
    (log,) = (run.path / "logs").glob("evaluator-*.log")
    assert "in step\n" in log.read_text(), "where it hung"
    played = workplace.command("eval", str(run.path), "--episodes", "3", "--max-s", "0.5")
    played.wait(0)
    assert "had ended after 0.5 s, in a step or an action that did not return" in played.stdout


def test_code_in_c_that_does_not_return_ends_the_command_and_says_where(workplace: Any) -> None:
    workplace.module(ENDLESS_ENV)
    run = workplace.train(endless(1.0, first=5))
    run.finish()
    deaf = ENDLESS_ENV.replace("def render(self):", "def render(self):\n        sum(itertools.repeat(0))")
    workplace.module(deaf.replace("import time", "import itertools, time"))
    workplace.shorten(deaf_s=0.5, evaluator_start_s=0.5)
    stuck = workplace.command("eval", str(run.path), "--max-s", "0.5", "--render", "stuck.mp4")
    stuck.wait(1)
    assert "Timeout (0:00:01" in stuck.stderr
    assert " in render\n" in stuck.stderr
    assert not list(workplace.place.glob("*.mp4"))


def test_building_and_closing_do_not_keep_an_evaluation_for_ever(workplace: Any) -> None:
    workplace.module(ENDLESS_ENV)
    run = workplace.train(endless(1.0, hangs="step", first=5))
    run.finish()
    workplace.shorten(evaluator_start_s=0.5)
    config = run.path / "config.toml"
    text = config.read_text()
    config.write_text(text.replace('hangs = "step"', 'hangs = "reset"'))
    stuck = workplace.command("eval", str(run.path), "--episodes", "3", "--max-s", "2")
    stuck.wait(1)
    assert "environments and policy were not ready after 2.5 s" in stuck.last_words
    workplace.environment = {}
    config.write_text(text.replace('hangs = "step"', 'hangs = "close"'))
    played = workplace.command("eval", str(run.path), "--episodes", "3", "--max-s", "20")
    played.wait(0)
    assert "mean of 3 greedy episodes" in played.stdout
    assert "the environments were not closed after 5 s" in played.stderr
    config.write_text(text.replace('hangs = "step"', 'hangs = "first step"'))
    drawn = ("--render", "zero.mp4", "--json", "zero.json")
    played = workplace.command("eval", str(run.path), "--episodes", "3", "--max-s", "0.5", *drawn)
    played.wait(0)
    assert (
        "zero.mp4: 1 episode, the last one as far as it was played; 1 picture, 30 a second, since"
        in played.stdout
    )
    assert json.loads((workplace.place / "zero.json").read_text())["pictures"] == 1


def test_errors_of_environments_and_models_are_one_line_in_eval(workplace: Any) -> None:
    run = workplace.train()
    run.finish()
    config = run.path / "config.toml"
    text = config.read_text()
    for change, word in (
        (("CartPole-v1", "CartPole-v9"), "CartPole"),
        (("hidden = [", "hidden = [3, "), "model"),
        (("CartPole-v1", "Pendulum-v1"), "model"),
    ):
        config.write_text(text.replace(*change))
        broken = workplace.command("eval", str(run.path), "--episodes", "1")
        assert broken.wait() in {1, 2}
        assert word in broken.stderr
        assert len(broken.stderr.splitlines()) <= 5


def test_an_environment_that_another_package_registers_is_trained_in_and_evaluated(workplace: Any) -> None:
    package = workplace.place / "installed"
    package.mkdir()
    (package / "far_grid.py").write_text(
        "import gymnasium\n"
        'cart_pole = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"\n'
        'gymnasium.register(id="FarGrid-v0", entry_point=cart_pole, max_episode_steps=100)\n'
    )
    workplace.environment = {"PYTHONPATH": str(package)}
    run = workplace.train({"environment": {"id": "far_grid:FarGrid-v0"}, "experiment": {"eval_episodes": 5}})
    assert run.finish()["evaluation"]["episodes"] == 5
    played = workplace.command("eval", str(run.path), "--episodes", "2")
    played.wait(0)
    assert "mean of 2 greedy episodes" in played.stdout
