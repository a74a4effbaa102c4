"""Evaluations while training: rows, the best policy, a stop rule, groups, deaths, limits, resumption."""

import json
import os
import signal
from collections.abc import Mapping
from typing import Any

import av
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tianji

EVERY = {"every_env_steps": 2000, "episodes": 8}
ENDLESS = {"env_steps": 10**9}


def evaluated(stop: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"experiment": {"stop": stop, "evaluation": EVERY | more}}


def evaluations_of(run: Any) -> list[dict[str, Any]]:
    return [row for row in run.rows if row.get("kind") == "evaluation"]


def best_of(run: Any) -> dict[str, Any]:
    state = json.loads((run.path / "checkpoints/best/state.json").read_text())
    said: dict[str, Any] = state["evaluation"]
    return said


def wait_for(run: Any, workplace: Any, number: int = 1) -> None:
    workplace.until(lambda: len(evaluations_of(run)) >= number, f"{number} evaluations")


def test_the_best_policy_goes_by_evaluations_and_plays_as_it_was_evaluated(workplace: Any) -> None:
    changes = evaluated({}) | {"distribution": {"actor": {"send_size": 32}}}
    more = {"experiment": {"eval_episodes": 8, "plots": True}}
    run = workplace.train(changes, workplace.with_goal(), more)
    wait_for(run, workplace, 2)
    run.reach_goal()
    summary = run.finish()
    rows = evaluations_of(run)
    assert len(rows) >= 2
    keys = "kind wall_s train_s env_steps version group episodes mean std left_out cut_off length is_best"
    assert list(rows[0]) == keys.split()
    steps = [row["env_steps"] for row in rows]
    assert all(later - earlier >= 2000 for earlier, later in zip([0, *steps], steps, strict=False))
    assert steps[-1] <= summary["env_steps"]
    means = [row["mean"] for row in rows]
    assert [row["is_best"] for row in rows] == [
        mean > max(means[:number], default=0.0) for number, mean in enumerate(means)
    ]
    last, best = rows[-1], best_of(run)
    assert best["mean"] == max(means) == summary["evaluated"]["best_mean"]
    told = {"number": len(rows), "env_steps": last["env_steps"], "mean": last["mean"], "std": last["std"]}
    assert summary["evaluated"] == told | {"best_mean": best["mean"], "evaluating": None}
    assert os.readlink(run.path / "checkpoints/best") == "evaluated/best"
    assert len(list((run.path / "checkpoints/evaluated").iterdir())) == 2, "the best one and the link to it"
    examined = np.random.SeedSequence([1, *b"examiner", 0, 0, 0]).generate_state(1)[0]
    play = ("--checkpoint", "best", "--episodes", "8", "--seed", str(examined), "--json", "-")
    again = workplace.command("eval", str(run.path), *play)
    again.wait(0)
    assert json.loads(again.stdout)["mean"] == best["mean"], "the same policy plays the same episodes"
    assert summary["evaluation"]["episodes"] == 8, "others than it was chosen by, which would flatter it"
    assert [role["role"] for role in summary["roles"]][-2:] == ["examiner", "evaluator"]
    events = EventAccumulator(str(run.path))
    events.Reload()
    scalars = events.Scalars("evaluated/mean")
    assert [scalar.step for scalar in scalars] == steps
    assert [scalar.value for scalar in scalars] == pytest.approx(means)
    assert (run.path / "plots/return_over_steps.png").is_file()
    left = tianji.Run(run.path)
    columns = left.evaluations
    assert list(columns["mean"]) == means
    assert list(columns["is_best"]) == [row["is_best"] for row in rows]
    assert "kind" not in left.metrics
    assert len(left.metrics["env_steps"]) == len(run.rows) - len(rows)


def test_a_run_stops_by_an_evaluation_and_has_reached_its_goal_then(workplace: Any) -> None:
    stop = {"evaluation": 25.0, "wall_s": 600.0}
    run = workplace.train(evaluated(stop), options=())
    summary = run.finish()
    reached = evaluations_of(run)[-1]["mean"]
    assert reached >= 25.0
    assert summary["reason"] == f"mean return of an evaluation is {reached:.6g}"
    assert "evaluated  " in run.command.stdout
    assert " evaluated.mean=" in run.command.stderr
    again = workplace.command("train", "--resume", str(run.path))
    again.wait(0)
    assert "has reached its goal" in again.stdout
    assert "the best evaluation's mean was" in again.stdout


def test_a_resumed_run_keeps_what_was_best(workplace: Any) -> None:
    run = workplace.train(evaluated(ENDLESS))
    wait_for(run, workplace, 2)
    run.command.signal_all(signal.SIGTERM)
    run.finish(130)
    before, best = len(evaluations_of(run)), best_of(run)
    saved = run.saved_env_steps
    again = workplace.resume(run)
    wait_for(run, workplace, before + 2)
    again.command.signal_all(signal.SIGTERM)
    again.finish(130)
    new = evaluations_of(run)[before:]
    assert new[0]["env_steps"] >= saved
    assert best_of(run)["mean"] == max([best["mean"], *(row["mean"] for row in new)])
    assert all(row["mean"] > best["mean"] for row in new if row["is_best"])


def test_an_examiner_that_is_killed_begins_again(workplace: Any) -> None:
    run = workplace.train(evaluated(ENDLESS))
    wait_for(run, workplace)
    killed = run.command.kill("examiner")
    before = len(evaluations_of(run))
    wait_for(run, workplace, before + 2)
    assert run.command.pid_of("examiner") != killed
    run.command.signal_all(signal.SIGTERM)
    summary = run.finish(130)
    assert {role["role"]: role["restarts"] for role in summary["roles"]}["examiner"] == 1
    assert summary["evaluated"]["number"] == len(evaluations_of(run))
    assert "examiner (group 0) was killed by SIGKILL" in run.log


def test_groups_are_evaluated_in_turn(workplace: Any) -> None:
    run = workplace.train(evaluated(ENDLESS), {"distribution": {"groups": 2}})
    both = lambda: {row["group"] for row in evaluations_of(run)} == {0, 1}  # noqa: E731 - named for the line
    workplace.until(both, "evaluations of both groups")
    run.command.signal_all(signal.SIGTERM)
    run.finish(130)
    goal = best_of(run)["mean"] + 1.0
    again = workplace.resume(run, "--set", f"experiment.stop={{ evaluation = {goal} }}")
    summary = again.finish()
    reached = evaluations_of(run)[-1]
    assert summary["reason"].endswith(f" in group {reached['group']}"), "whose policy it was"
    assert {row["group"] for row in evaluations_of(run)} == {0, 1}
    assert best_of(run)["mean"] == summary["evaluated"]["best_mean"]


SLOW = """
import time
import gymnasium


class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        time.sleep(0.001)
        self._steps += 1
        return self.observation_space.sample(), 1.0, self._steps == 400, False, {}
"""


def test_an_evaluation_that_a_limit_cuts_off_is_neither_the_best_nor_an_end(workplace: Any) -> None:
    workplace.module(SLOW)
    limited = evaluated({"evaluation": 1.0} | ENDLESS, every_env_steps=600, max_s=0.5)
    run = workplace.train(limited, {"environment": {"type": "my_env:Slow", "id": ""}})
    wait_for(run, workplace, 2)
    run.command.signal_all(signal.SIGTERM)
    summary = run.finish(130)
    rows = evaluations_of(run)
    assert all((row["episodes"], row["left_out"], row["mean"]) == (0, 8, None) for row in rows)
    assert all(row["cut_off"] == "0.5 s" and not row["is_best"] for row in rows)
    assert run.log.count("an evaluation was cut off after 0.5 s") == 1
    assert summary["reason"] == "SIGTERM"
    assert (summary["evaluated"]["mean"], summary["evaluated"]["best_mean"]) == (None, None)
    best, last = ((run.path / "checkpoints" / name).resolve() for name in ("best", "last"))
    assert best == last


HANGS = SLOW.replace(
    "import time\n", "import pathlib\nimport signal\nimport time\n\nimport setproctitle\n"
).replace(
    "        time.sleep(0.001)\n",
    """        if setproctitle.getproctitle().startswith("tianji: examiner"):
            pathlib.Path("hangs").touch()
            while True:
                signal.pause()
""",
)


def test_an_examiner_that_hangs_is_killed_at_the_end_and_nothing_else_ends_with_it(workplace: Any) -> None:
    workplace.module(HANGS)
    changes = evaluated(ENDLESS, every_env_steps=600)
    run = workplace.train(changes, {"environment": {"type": "my_env:Slow", "id": ""}})
    workplace.until((workplace.place / "hangs").exists, "it hangs")
    run.command.signal_all(signal.SIGTERM)
    summary = run.finish(130)
    assert summary["status"] == "stopped"
    assert summary["evaluated"]["number"] == 0
    assert "examiner (group 0) did not stop in time and was killed" in run.log


NAN = SLOW.replace("import time\n", "import setproctitle\n").replace(
    "        time.sleep(0.001)\n",
    """        if setproctitle.getproctitle().startswith("tianji: examiner"):
            return self.observation_space.sample(), float("nan"), True, False, {}
""",
)


def test_a_reward_that_is_no_number_ends_the_run_and_is_never_the_best(workplace: Any) -> None:
    workplace.module(NAN)
    changes = evaluated(ENDLESS, every_env_steps=600)
    run = workplace.train(changes, {"environment": {"type": "my_env:Slow", "id": ""}})
    summary = run.finish(1)
    assert "the return of an episode in environment 0 of an evaluation is nan" in summary["reason"]
    assert "evaluation" not in json.loads((run.path / "checkpoints/best/state.json").read_text())


def test_a_study_leaves_evaluations_out(workplace: Any) -> None:
    config = str(workplace.config(evaluated(ENDLESS)))
    quick = ("--actors", "1", "--repeats", "1", "--seconds", "2", "--no-prediction", "--quiet")
    study = workplace.command("bench", "scaling", config, "--figure", "6a", *quick, "--out", "study")
    study.wait(0)
    plans = [path.read_text() for path in (workplace.place / "study/runs").glob("*/*/config.toml")]
    assert plans
    assert not any("[experiment.evaluation]" in plan for plan in plans)


def test_an_inherited_evaluation_can_be_taken_back(workplace: Any) -> None:
    words = ["config", "show", str(workplace.config(evaluated(ENDLESS)))]
    for more, wanted in (([], True), (["--set", "experiment.evaluation=false"], False)):
        shown = workplace.command(*words, *more)
        shown.wait(0)
        assert ("every_env_steps" in shown.stdout) == wanted


def test_policies_may_be_evaluated_as_they_train(workplace: Any) -> None:
    run = workplace.train(evaluated(ENDLESS, deterministic=False, episodes=200))
    wait_for(run, workplace)
    run.command.signal_all(signal.SIGTERM)
    run.finish(130)
    first = evaluations_of(run)[0]
    assert (first["episodes"], first["mean"] > 0, first["std"] > 0) == (200, True, True)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["experiment.evaluation.episodes=3"], "experiment.evaluation: nothing says how often"),
        (["experiment.stop={ evaluation = 3.0 }"], "stop.evaluation: nothing is evaluated while training"),
        (
            ["experiment.evaluation={ every_s = 3.0 }", 'distribution.transport="inproc"'],
            "and evaluations while training have one of their own",
        ),
        (["experiment.evaluation={ every_s = 0.0 }"], "experiment.evaluation.every_s"),
    ],
)
def test_what_says_no_evaluation_is_refused(workplace: Any, overrides: list[str], said: str) -> None:
    words = [word for override in overrides for word in ("--set", override)]
    refused = workplace.command("train", "ppo_cartpole", *words)
    refused.wait(2)
    assert said in refused.stderr


def films_of(run: Any) -> list[str]:
    return [path.name for path in sorted((run.path / "videos").glob("*"))]


PICTURES = (
    SLOW.replace("400", "20")
    .replace(
        "    def step",
        """    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}

    def __init__(self, render_mode=None):
        pass

    def render(self):
        if BREAKS:
            raise RuntimeError("the lamp is broken")
        return np.full((63, 64, 3), 10 * self._steps, np.uint8)

    def step""",
    )
    .replace("import gymnasium\n", "import itertools\nimport os\n\nimport gymnasium\nimport numpy as np\n")
)


def stopped_after(workplace: Any, evaluations: int, lamp: str, *more: Any, **evaluation: Any) -> Any:
    """Train with a lamp that does something in the tenth picture, and stop after so many evaluations."""
    breaks = PICTURES.replace("BREAKS", "self._steps == 10")
    workplace.module(breaks.replace('raise RuntimeError("the lamp is broken")', lamp))
    changes = evaluated(ENDLESS, every_env_steps=300, video=1, **evaluation)
    run = workplace.train(changes, *more, {"environment": {"type": "my_env:Slow", "id": ""}})
    wait_for(run, workplace, evaluations)
    run.command.signal_all(signal.SIGTERM)
    run.finish(130)
    return run


def restarts_of_examiner(run: Any) -> int:
    (found,) = (role["restarts"] for role in run.summary["roles"] if role["role"] == "examiner")
    return int(found)


def test_evaluations_are_filmed_and_the_newest_films_stay_also_over_sessions(workplace: Any) -> None:
    workplace.module(PICTURES.replace("BREAKS", "False"))
    changes = evaluated(ENDLESS, every_env_steps=300, episodes=2, video=2, keep_videos=2)
    run = workplace.train(changes, {"environment": {"type": "my_env:Slow", "id": ""}})
    workplace.until(lambda: len(films_of(run)) >= 2, "two films")
    first = films_of(run)[0]
    workplace.until(lambda: first not in films_of(run), "the oldest makes room")
    run.command.signal_all(signal.SIGTERM)
    run.finish(130)
    films = films_of(run)
    assert len(films) == 2, "and no half one"
    steps = {row["env_steps"] for row in evaluations_of(run)}
    assert {int(name.removesuffix(".mp4")) for name in films} <= steps
    with av.open(str(run.path / "videos" / films[0])) as film:
        stream = film.streams.video[0]
        levels = [frame.to_ndarray(format="rgb24")[:250].mean() for frame in film.decode(stream)]
        assert (stream.average_rate, stream.width) == (25, 256)
        assert stream.height > 4 * 63, "with numbers below"
    assert levels == pytest.approx([10.0 * step for step in range(21)] * 2, abs=4)
    again = workplace.resume(run)
    workplace.until(lambda: set(films_of(again)) - set(films), "another film")
    again.command.signal_all(signal.SIGTERM)
    again.finish(130)
    assert len(films_of(again)) == 2
    assert "could not be filmed" not in run.log


def test_what_fails_in_a_film_is_said_and_ends_neither_training_nor_evaluation(workplace: Any) -> None:
    run = stopped_after(workplace, 3, 'raise RuntimeError("the lamp is broken")')
    assert run.summary["evaluated"]["mean"] == 20.0
    assert run.log.count("an evaluation could not be filmed, and the run goes on: ") == 1
    assert "RuntimeError: the lamp is broken" in run.log
    (log,) = (run.path / "logs").glob("examiner-*")
    assert log.read_text().count('raise RuntimeError("the lamp is broken")') >= 2, "each of them"
    assert films_of(run) == []


def test_a_renderer_that_takes_its_process_with_it_costs_the_films_and_nothing_else(workplace: Any) -> None:
    alone = {"distribution": {"max_restarts_per_minute": 1}}
    run = stopped_after(workplace, 4, "os.kill(os.getpid(), 11)", alone)
    assert restarts_of_examiner(run) == 1
    assert run.log.count("examiner (group 0) was killed by SIGSEGV") == 1
    assert "; restarting it without films" in run.log
    assert films_of(run) == []
    (log,) = (run.path / "logs").glob("examiner-*")
    assert " in render\n" in log.read_text(), "where it was"


def test_a_renderer_that_hangs_costs_its_film_and_nothing_else(workplace: Any) -> None:
    run = stopped_after(workplace, 3, "time.sleep(3600)", max_s=2.0)
    assert restarts_of_examiner(run) == 0
    assert "could not be filmed, and the run goes on: a step or a picture took longer than 2 s" in run.log
    assert films_of(run) == []


def test_a_renderer_that_hangs_in_c_costs_the_films_and_nothing_else(workplace: Any) -> None:
    workplace.shorten(late_s=1.0, examiner_hangs_s=4.0)
    run = stopped_after(workplace, 3, "sum(itertools.repeat(0))", max_s=2.0)
    assert restarts_of_examiner(run) == 1
    assert films_of(run) == []
    assert "does not come back from a step, an action or a picture after 6 s: ending it" in run.log
    assert "examiner (group 0) hung for 6 s in a step, an action or a picture" in run.log
    (log,) = (run.path / "logs").glob("examiner-*")
    assert " in render\n" in log.read_text(), "where it was"


def test_a_suspended_examiner_is_left_alone(workplace: Any) -> None:
    workplace.shorten(late_s=1.0, examiner_hangs_s=4.0)
    run = workplace.train(evaluated(ENDLESS, max_s=0.5))
    wait_for(run, workplace)
    examiner = run.command.kill("examiner", signal.SIGSTOP)
    workplace.until(lambda: "nothing heard of examiner" in run.log, "it is reported")
    until_s = run.rows[-1]["wall_s"] + 6.0
    workplace.until(lambda: run.rows[-1]["wall_s"] > until_s, "it is not heard of for longer")
    os.kill(examiner, signal.SIGCONT)
    wait_for(run, workplace, len(evaluations_of(run)) + 1)
    run.command.signal_all(signal.SIGTERM)
    run.finish(130)
    assert restarts_of_examiner(run) == 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (SLOW, "to be drawn, it has to take render_mode in its constructor"),
        (
            PICTURES.replace("BREAKS", "True"),
            "experiment.evaluation.video: <Slow instance> cannot be drawn: RuntimeError: the lamp is broken; "
            "0 trains without films",
        ),
        (
            PICTURES.replace("BREAKS", "__import__('os').kill(__import__('os').getpid(), 11)"),
            "was killed by SIGSEGV; it wrote last: drawing it for experiment.evaluation.video",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_starts(
    workplace: Any, source: str, said: str
) -> None:
    workplace.module(source)
    run = workplace.train(evaluated(ENDLESS, video=1), {"environment": {"type": "my_env:Slow", "id": ""}})
    assert run.command.wait() in {1, 2}
    assert said in run.command.stderr
    assert not (workplace.place / "out").exists()


def test_films_without_their_library_are_refused_with_the_command_that_installs_it(workplace: Any) -> None:
    workplace.customize("import sys\nsys.modules['av'] = None\n")
    run = workplace.train(evaluated(ENDLESS, video=1))
    run.command.wait(2)
    said = "experiment.evaluation.video: a film as .mp4 needs PyAV: pip install 'tianji[video]'"
    assert said in run.command.last_words
    assert not (workplace.place / "out").exists()


LATE = (
    SLOW.replace("400", "20")
    .replace("import time\n", "import pathlib\nimport time\n\nimport setproctitle\n")
    .replace(
        "    def reset",
        """    def __init__(self):
        while setproctitle.getproctitle().startswith("tianji: examiner") and not pathlib.Path("go").exists():
            time.sleep(0.05)

    def reset""",
    )
)


@pytest.mark.parametrize("transport", ["shm", "zmq"])
def test_training_begins_without_an_examiner_that_takes_long_to_build(workplace: Any, transport: str) -> None:
    workplace.module(LATE)
    of_it = {"environment": {"type": "my_env:Slow", "id": ""}, "distribution": {"transport": transport}}
    run = workplace.train(evaluated(ENDLESS, every_env_steps=300), of_it)
    run.train_until(1000)
    killed = run.command.kill("actor")
    run.train_until(run.env_steps + 1000)
    assert run.command.pid_of("actor") != killed, "another actor waits for it as little"
    assert evaluations_of(run) == []
    (workplace.place / "go").touch()
    wait_for(run, workplace)
    run.command.signal_all(signal.SIGTERM)
    summary = run.finish(130)
    assert summary["evaluated"]["mean"] == 20.0


def test_an_examiner_that_was_never_ready_ends_with_the_run(workplace: Any) -> None:
    workplace.module(LATE)
    run = workplace.train(evaluated({"env_steps": 2000}), {"environment": {"type": "my_env:Slow", "id": ""}})
    summary = run.finish()
    assert summary["evaluated"]["number"] == 0
