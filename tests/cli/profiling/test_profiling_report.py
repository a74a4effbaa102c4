"""Claims about what `tianji profile` tells people."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from cli.profiling.conftest import Find
from cli.profiling.made_up_measurements import DQN, PPO, Job, repeated

from tianji_cli.config.loader import load_config
from tianji_cli.profiling.report import print_findings, print_verified, print_written
from tianji_cli.profiling.report_measured import measured_facts
from tianji_cli.profiling.scaling import Cluster
from tianji_cli.profiling.settings import split_of
from tianji_cli.profiling.verify import Verified
from tianji_cli.telemetry.quantities import count
from tianji_cli.throughput.prediction import Prediction

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


# -- what was measured -----------------------------------------------------------------------------------


def test_inference_environments_and_the_rest_of_an_actor_are_told_apart(found: Find) -> None:
    measured = found().subject.measurements
    said = dict(measured_facts(found()))
    act, step, whole = (getattr(measured.actors[2], name).cost for name in ("act_s", "step_s", "fragment_s"))
    lines = [line for _, line in measured_facts(found())]
    assert f"inference {act / whole:.0%}, environments {step / whole:.0%}".replace("%", " %") in lines[1]
    assert said["one actor core"] == "245 K env steps/s with 64 environments:"
    assert "85.7 K with 16, 151 K with 32" in lines


def test_actors_side_by_side_are_compared_with_one_alone(found: Find) -> None:
    there = found(DQN, 16)
    said = dict(measured_facts(there))
    assert said["side by side"].startswith("2 at 100 %, 4 at 100 %, 8 at 100 %, 15 at 87 %, 16 at 87 %")


@pytest.mark.parametrize("job", [PPO, DQN])
def test_each_learner_has_its_rate_and_the_parts_of_its_time(found: Find, job: Job) -> None:
    there = found(job, 16)
    said = dict(measured_facts(there))
    for cores in ("1 core", "2 cores", "4 cores", "8 cores", "16 cores"):
        line = said[f"learner, {cores}"]
        assert all(part in line for part in ("uses/s", "updates", "sampling", "publishing", "receiving"))


@pytest.mark.parametrize("job", [PPO, DQN])
def test_a_learners_rate_is_what_the_parts_of_its_time_come_to(found: Find, job: Job) -> None:
    there = found(job, 16)
    costs, split = there.costs, there.as_it_is.split
    one = next(of for of in there.subject.measurements.learners if of.num_envs == split.num_envs)
    fragments = one.uses_per_update / job.rho / costs.actor.samples
    receiving_s = fragments * (costs.buffer.receive_s + one.store_s.cost)
    publishing_s = costs.learner.publish.alone_s / one.updates_per_version
    whole_s = one.update_s.cost + one.draw_s.cost + publishing_s + receiving_s
    said = dict(measured_facts(there))["learner, 1 core"]
    assert said.startswith(f"{count(one.uses_per_update / whole_s)} uses/s: ")
    shares = [one.update_s.cost, one.draw_s.cost, publishing_s, receiving_s]
    assert [int(part) for part in re.findall(r"(\d+) %", said)] == [
        round(100 * seconds / whole_s) for seconds in shares
    ]


def test_the_terms_of_equation_1_are_those_of_the_configured_fragment(found: Find) -> None:
    there = found()
    lines = [line for _, line in measured_facts(there)]
    assert "shm, 156 KB a fragment: 52 us to push (T_sd)," in lines
    assert "55 us to receive, 214 us with checking and storing it (T_rv)" in lines


def test_one_core_has_no_line_about_what_needs_more(found: Find) -> None:
    there = found(PPO, 1)
    said = dict(measured_facts(there))
    assert not said.keys() & {"side by side", "averaging", "learner, 2 cores"}


def test_what_speaks_against_the_figures_is_shown(found: Find, capsys: Out) -> None:
    there = found(PPO, 2, noise=0.9)
    assert there.subject.warnings
    print_findings(there)
    flat = " ".join(capsys.readouterr().out.split())
    assert all(f"WARNING: {warning}" in flat for warning in there.subject.warnings)


# -- what is recommended ---------------------------------------------------------------------------------


def test_a_config_that_is_right_already_is_left_alone(found: Find, capsys: Out) -> None:
    print_findings(found(PPO, 2))
    said = capsys.readouterr().out
    assert "There is nothing to change in the config." in said
    assert "which is\nwhat the config gives as it is." in said
    assert "--write" not in said
    assert "tianji train configs/ppo_cartpole.toml\n" in said


def test_the_lines_to_change_are_toml_that_gives_the_recommended_split(found: Find, capsys: Out) -> None:
    there = found(DQN, 16)
    print_findings(there)
    said = capsys.readouterr().out
    lines = said.partition("To change in configs/dqn_cartpole.toml:\n")[2].partition("\n\n")[0]
    table = tomllib.loads(lines)
    # What a config leaves to the machine would change with the rest.
    assert table == {"distribution": {"groups": 8, "pin_cores": True}, "environment": {"num_envs": 64}}
    settings = said.partition("train with it")[2].splitlines()[0].split(" --set ")[1:]
    assert split_of(load_config(DQN.config, settings)) == there.recommended.split


def test_the_gain_over_the_config_as_it_is_is_told(found: Find, capsys: Out) -> None:
    there = found(DQN, 16)
    print_findings(there)
    times = there.recommended.prediction.throughput / there.as_it_is.throughput
    assert f": {times:.1f} times the" in " ".join(capsys.readouterr().out.split())
    assert there.like_the_config is not None
    print_findings(replace(there, candidates=[there.like_the_config]))
    gain = there.like_the_config.prediction.throughput / there.as_it_is.throughput - 1
    assert f": {100 * gain:.0f} % more than the" in " ".join(capsys.readouterr().out.split())


def test_the_bottleneck_is_told_in_words(found: Find, capsys: Out) -> None:
    print_findings(found(PPO, 2))
    assert "training-bound: more actors will not help" in capsys.readouterr().out


def test_five_candidates_and_the_best_that_learns_as_the_config_does_are_shown(
    found: Find, capsys: Out
) -> None:
    print_findings(found(DQN, 16))
    said = capsys.readouterr().out
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


def test_one_group_is_no_matter_for_words(found: Find, capsys: Out) -> None:
    print_findings(found(PPO, 2))
    said = capsys.readouterr().out
    assert "groups" not in said.partition("RECOMMENDED")[0].partition("BEST WAYS")[2].splitlines()[5]
    assert "Each group" not in said


def test_overrides_are_part_of_every_command(found: Find, capsys: Out) -> None:
    print_findings(found(DQN, 16, overrides=("distribution.mode=async",)))
    lines = capsys.readouterr().out.splitlines()
    commands = [line for line in lines if line.startswith(COMMANDS)]
    assert len(commands) == 3
    assert all(f"{DQN.config} --set distribution.mode=async" in line for line in commands)


def test_nobody_is_told_to_ask_for_what_was_asked_for(found: Find, capsys: Out) -> None:
    print_findings(found(DQN, 16), verifies=True, writes=True)
    said = capsys.readouterr().out
    assert "train with it" in said
    assert "--verify" not in said
    assert "--write" not in said


@pytest.mark.parametrize(
    ("job", "cores", "cluster"),
    [
        (PPO, 2, None),
        (DQN, 16, None),
        (PPO, 1, None),
        (PPO, 2, Cluster(40, 8)),
        pytest.param(DQN, 16, Cluster(1000, 10), marks=pytest.mark.soak),
    ],
)
def test_lines_fit_80_columns_and_tables_with_groups_a_few_more(
    found: Find, capsys: Out, job: Job, cores: int, cluster: Cluster | None
) -> None:
    print_findings(found(job, cores, cluster))
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(COMMANDS)]
    heading = next(place for place, line in enumerate(lines) if line.endswith("  bottleneck"))
    # Below the five best stands the best with the config's own groups and learners, if it is none of them.
    table = lines[heading : heading + 8]
    assert max(map(len, table)) <= (92 if "groups" in table[0] else 80)
    assert [line for line in lines if len(line) > 80 and line not in table] == []


@pytest.mark.parametrize(
    ("cores", "said"), [(3, "1 of the 3 cores stays free"), (16, "14 of the 16 cores stay free")]
)
def test_cores_that_the_best_leaves_free_are_counted(found: Find, capsys: Out, cores: int, said: str) -> None:
    print_findings(replace(found(PPO, 2), cluster=Cluster(cores)))
    assert f"{said}: more actors would only wait" in " ".join(capsys.readouterr().out.split())
    print_findings(found(PPO, 2))
    assert " free: " not in capsys.readouterr().out


def test_cores_that_the_best_that_can_be_run_leaves_free_are_counted_as_well(
    found: Find, capsys: Out
) -> None:
    there = found(DQN, 2, Cluster(4), overrides=TOO_SMALL)
    assert not there.recommended.runnable
    print_findings(replace(there, cluster=Cluster(20, 2)))
    best, _, runnable = " ".join(capsys.readouterr().out.split()).partition("The best that can:")
    assert "36 of the 40 cores stay free" in best
    assert "36 of the 40 cores stay free" in runnable


# -- what is extrapolated --------------------------------------------------------------------------------


def test_nothing_is_called_extrapolated_on_the_machine_that_was_measured(found: Find, capsys: Out) -> None:
    print_findings(found(PPO, 2))
    assert "extrapolated" not in capsys.readouterr().out.lower()


def test_an_extrapolation_is_marked_simulated_and_says_what_breaks_first(found: Find, capsys: Out) -> None:
    there = found(PPO, 2, Cluster(40, 8))
    print_findings(there)
    said = capsys.readouterr().out
    assert "BEST WAYS TO SPLIT 40 CORES OF EACH OF 8 NODES, EXTRAPOLATED" in said
    assert "EXTRAPOLATED: RECKONED, NOT MEASURED" in said
    flat = " ".join(said.split())
    assert there.extrapolated
    assert all(f"- {what}" in flat for what in there.extrapolated)
    assert "A simulation, fragment by fragment, comes to" in flat
    assert there.breaks_first is not None
    assert f"What breaks first: {there.breaks_first.words}." in flat


def test_a_link_that_nobody_named_is_said_to_have_no_limit(found: Find, capsys: Out) -> None:
    print_findings(found(PPO, 2, Cluster(40, 8)))
    assert "--link-mb MB/S names what they carry" in capsys.readouterr().out
    print_findings(found(PPO, 2, Cluster(40, 8, link_bytes_per_s=125e6)))
    assert "--link-mb" not in capsys.readouterr().out


def test_what_cannot_be_run_is_marked_and_the_best_that_can_is_named(found: Find, capsys: Out) -> None:
    there = found(DQN, 2, Cluster(4), overrides=TOO_SMALL)
    assert not there.recommended.runnable
    assert there.runnable is not None
    print_findings(there)
    said = capsys.readouterr().out
    flat = " ".join(said.split())
    table = said.partition("bottleneck\n")[2].partition("* cannot be run")[0].splitlines()
    marked = [line.lstrip().startswith("*") for line in table if line.strip()]
    assert marked[:2] == [True, True]
    assert marked[2:] == [False] * 4
    assert "* cannot be run: distribution.buffer.capacity: 2048 env steps are less than" in flat
    assert "This cannot be run. The best that can: 2 groups, each of 1 learner" in flat
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
    assert said in " ".join(out.split())
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
