"""Claims about what `tianji profile` tells people."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from lab.profile.conftest import Find
from lab.profile.made_up_measurements import DQN, PPO, Job, repeated

from tianji_cli.config.loader import load_config
from tianji_cli.quantities import count
from tianji_lab.model.prediction import Prediction
from tianji_lab.profile.report import measured_facts, print_result, print_verified, print_written
from tianji_lab.profile.result import ProfileResult
from tianji_lab.profile.scaling import Cluster
from tianji_lab.profile.settings import split_of
from tianji_lab.profile.verify import Verified

Out = pytest.CaptureFixture[str]
TOO_SMALL = ("distribution.buffer.capacity=2048", "training.warmup_steps=1000")
"""Actors with many environments would have more in flight than this replay holds."""
COMMANDS = ("train with it", "write it down", "prove it", "on this machine")


def checks_of(predictions: list[Prediction], *errors: float) -> list[Verified]:
    """Trainings that came to this much less than predicted."""
    return [
        Verified(
            predicted,
            uses_per_s=repeated(predicted.throughput / (1 + error), 0.06),
            steps_per_s=repeated(predicted.throughput / predicted.rho / (1 + error), 0.06),
        )
        for predicted, error in zip(predictions, errors, strict=True)
    ]


def printed(found: ProfileResult, capsys: Out, **asked: bool) -> str:
    print_result(found, **asked)
    return capsys.readouterr().out


def flat(text: str) -> str:
    return " ".join(text.split())


# -- what was measured -----------------------------------------------------------------------------------


def test_an_actor_is_told_by_its_parts_sizes_neighbours_and_terms_of_equation_1(found: Find) -> None:
    measured = found().subject.measurements
    act, step, whole = (getattr(measured.actors[2], name).cost for name in ("act_s", "step_s", "fragment_s"))
    said, lines = dict(measured_facts(found())), [line for _, line in measured_facts(found())]
    assert f"inference {act / whole:.0%}, environments {step / whole:.0%}".replace("%", " %") in lines[1]
    assert said["one actor core"] == "245 K env steps/s with 64 environments:"
    assert "85.7 K with 16, 151 K with 32" in lines
    assert "shm, 156 KB a fragment: 52 us to push (T_sd)," in lines
    assert "55 us to receive, 214 us with checking and storing it (T_rv)" in lines
    beside = dict(measured_facts(found(DQN, 16)))["side by side"]
    assert beside.startswith("2 at 100 %, 4 at 100 %, 8 at 100 %, 15 at 87 %, 16 at 87 %")
    assert not dict(measured_facts(found(PPO, 1))).keys() & {"side by side", "averaging", "learner, 2 cores"}


@pytest.mark.parametrize("job", [PPO, DQN])
def test_a_learners_rate_is_what_the_parts_of_its_time_come_to(found: Find, job: Job) -> None:
    there = found(job, 16)
    costs, split = there.costs, there.as_it_is.split
    one = next(of for of in there.subject.measurements.learners if of.num_envs == split.num_envs)
    fragments = one.uses_per_update / job.rho / costs.actor.samples
    receiving_s = fragments * (costs.buffer.receive_s + one.store_s.cost)
    publishing_s = costs.learner.publish.alone_s / one.updates_per_version
    whole_s = one.update_s.cost + one.draw_s.cost + publishing_s + receiving_s
    said = dict(measured_facts(there))
    assert said["learner, 1 core"].startswith(f"{count(one.uses_per_update / whole_s)} uses/s: ")
    shares = [one.update_s.cost, one.draw_s.cost, publishing_s, receiving_s]
    assert [int(part) for part in re.findall(r"(\d+) %", said["learner, 1 core"])] == [
        round(100 * seconds / whole_s) for seconds in shares
    ]
    for cores in (2, 4, 8, 16):
        line = said[f"learner, {cores} cores"]
        assert all(part in line for part in ("uses/s", "updates", "sampling", "publishing", "receiving"))


def test_what_speaks_against_the_figures_is_shown(found: Find, capsys: Out) -> None:
    there = found(PPO, 2, noise=0.9)
    assert there.subject.warnings
    said = printed(there, capsys)
    assert all(f"WARNING: {warning}" in flat(said) for warning in there.subject.warnings)


# -- what is recommended ---------------------------------------------------------------------------------


def test_a_config_that_is_right_already_is_left_alone(found: Find, capsys: Out) -> None:
    said = printed(found(PPO, 2), capsys)
    assert "There is nothing to change in the config." in said
    assert "which is\nwhat the config gives as it is." in said
    assert "training-bound: more actors will not help" in said
    assert "tianji train configs/ppo_cartpole.toml\n" in said
    assert "groups" not in said.partition("RECOMMENDED")[0].partition("BEST WAYS")[2].splitlines()[5]
    for words in ("--write", "Each group", "extrapolated", "EXTRAPOLATED"):
        assert words not in said


def test_the_lines_to_change_are_toml_that_gives_the_recommended_split(found: Find, capsys: Out) -> None:
    there = found(DQN, 16, overrides=("distribution.mode=async",))
    said = printed(there, capsys)
    heading = "To change in configs/dqn_cartpole.toml, beside the settings above:\n"
    lines = said.partition(heading)[2].partition("\n\n")[0]
    # What a config leaves to the machine would change with the rest.
    assert tomllib.loads(lines) == {
        "distribution": {"groups": 8, "pin_cores": True},
        "environment": {"num_envs": 64},
    }
    settings = said.partition("train with it")[2].splitlines()[0].split(" --set ")[1:]
    assert split_of(load_config(DQN.config, settings)) == there.recommended.split
    commands = [line for line in said.splitlines() if line.startswith(COMMANDS)]
    assert len(commands) == 3
    assert all(f"{DQN.config} --set distribution.mode=async" in line for line in commands)
    # Nobody is told to ask for what was asked for.
    said = printed(there, capsys, verifies=True, writes=True)
    assert "train with it" in said
    assert "--verify" not in said
    assert "--write" not in said


def test_the_gain_over_the_config_as_it_is_is_told(found: Find, capsys: Out) -> None:
    there = found(DQN, 16)
    times = there.recommended.prediction.throughput / there.as_it_is.throughput
    assert f": {times:.1f} times the" in flat(printed(there, capsys))
    assert there.like_the_config is not None
    gain = there.like_the_config.prediction.throughput / there.as_it_is.throughput - 1
    like = replace(there, candidates=[there.like_the_config])
    assert f": {100 * gain:.0f} % more than the" in flat(printed(like, capsys))


def test_five_candidates_and_the_best_that_learns_as_the_config_does_are_shown(
    found: Find, capsys: Out
) -> None:
    said = printed(found(DQN, 16), capsys)
    lines = said.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("learners"))
    rows = lines[start + 1 : start + 7]
    assert lines[start].split() == [
        *("learners", "actors", "groups", "production", "reception", "consumption", "uses/s", "bottleneck")
    ]
    assert rows[0].split()[:7] == ["1", "x", "1", "1", "x", "64", "8"]
    assert rows[5].split()[:7] == ["1", "x", "8", "8", "x", "32", "1"]
    assert lines[start + 7] == ""
    assert "*" not in "".join(rows)
    assert "Each group learns from samples of its own" in said


@pytest.mark.parametrize(
    ("job", "cores", "cluster"),
    [
        (PPO, 2, None),
        (DQN, 16, None),
        (PPO, 1, None),
        (PPO, 2, Cluster(40, 8)),
    ],
)
def test_lines_fit_80_columns_and_tables_with_groups_a_few_more(
    found: Find, capsys: Out, job: Job, cores: int, cluster: Cluster | None
) -> None:
    said = printed(found(job, cores, cluster), capsys)
    lines = [line for line in said.splitlines() if not line.startswith(COMMANDS)]
    heading = next(place for place, line in enumerate(lines) if line.endswith("  bottleneck"))
    # Below the five best stands the best with the config's own groups and learners, if it is none of them.
    table = lines[heading : heading + 8]
    assert max(map(len, table)) <= (92 if "groups" in table[0] else 80)
    assert [line for line in lines if len(line) > 80 and line not in table] == []


def test_cores_that_the_best_leaves_free_are_counted(found: Find, capsys: Out) -> None:
    for cores, said in ((3, "1 of the 3 cores stays free"), (16, "14 of the 16 cores stay free")):
        there = replace(found(PPO, 2), cluster=Cluster(cores))
        assert f"{said}: more actors would only wait" in flat(printed(there, capsys))
    assert " free: " not in printed(found(PPO, 2), capsys)
    there = found(DQN, 2, Cluster(4), overrides=TOO_SMALL)
    there = replace(there, cluster=Cluster(20, 2))
    best, _, runnable = flat(printed(there, capsys)).partition("The best that can:")
    assert "36 of the 40 cores stay free" in best
    assert "36 of the 40 cores stay free" in runnable


# -- what is extrapolated --------------------------------------------------------------------------------


def test_an_extrapolation_is_marked_simulated_and_says_what_breaks_first(found: Find, capsys: Out) -> None:
    there = found(PPO, 2, Cluster(40, 8))
    said = flat(printed(there, capsys))
    assert "BEST WAYS TO SPLIT 40 CORES OF EACH OF 8 NODES, EXTRAPOLATED" in said
    assert "EXTRAPOLATED: RECKONED, NOT MEASURED" in said
    assert there.extrapolated
    assert all(f"- {what}" in said for what in there.extrapolated)
    assert "A simulation, fragment by fragment, comes to" in said
    assert there.breaks_first is not None
    assert f"What breaks first: {there.breaks_first.words}." in said
    assert "--link-mb MB/S names what they carry" in said
    assert "--link-mb" not in printed(found(PPO, 2, Cluster(40, 8, link_bytes_per_s=125e6)), capsys)


def test_what_cannot_be_run_is_marked_and_the_best_that_can_is_named(found: Find, capsys: Out) -> None:
    there = found(DQN, 2, Cluster(4), overrides=TOO_SMALL)
    assert not there.recommended.runnable
    assert there.runnable is not None
    said = printed(there, capsys)
    table = said.partition("bottleneck\n")[2].partition("* cannot be run")[0].splitlines()
    marked = [line.lstrip().startswith("*") for line in table if line.strip()]
    assert marked == [True, True, False, False, False, False]
    assert "* cannot be run: distribution.buffer.capacity: 2048 env steps are less than" in flat(said)
    assert "This cannot be run. The best that can: 2 groups, each of 1 learner" in flat(said)
    assert " --cores 4 --write dqn_cartpole_tuned.toml" in said
    assert "--verify" not in said, "this machine has two cores"


# -- what is verified ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ((0.0, 0.3, 0.3), "was measured to be the best of 3"),
        ((0.08, 0.05, 0.3), "as good as the best"),
        ((0.5, 0.0, 0.3), "another split is better"),
    ],
)
def test_the_verdict_compares_the_first_choice_with_the_others(
    found: Find, capsys: Out, errors: tuple[float, ...], said: str
) -> None:
    even = [found(DQN, 16).recommended.prediction] * 3
    print_verified(checks_of(even, *errors))
    out = capsys.readouterr().out
    assert said in flat(out)
    rows = [line.split() for line in out.splitlines() if line.startswith("   1 x")]
    assert [row[-4] for row in rows] == [f"{100 * error:+.0f}" for error in errors]
    assert {" ".join(row[-2:]) for row in rows} == {"6 %"}


def test_what_was_written_is_named_with_the_command_to_use_it(
    found: Find, capsys: Out, tmp_path: Path
) -> None:
    print_written(tmp_path / "a b.toml", found(PPO, 2).recommended, is_best=False)
    said = capsys.readouterr().out
    assert "the best that can be run" in said
    assert f"tianji train '{tmp_path}/a b.toml'" in said
