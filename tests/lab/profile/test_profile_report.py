"""Claims about what `tianji profile` prints."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from lab.profile.conftest import Find
from lab.profile.made_up_measurements import DQN, PPO, made_up

from tianji_cli.config.loader import load_config
from tianji_lab.profile.model import Cluster
from tianji_lab.profile.race import Contender, Race
from tianji_lab.profile.report import print_profile, print_written
from tianji_lab.profile.result import Profile
from tianji_lab.profile.split import split_of

Out = pytest.CaptureFixture[str]
COMMANDS = ("train with it", "write it down", "prove it", "on this machine")


def printed(found: Profile, capsys: Out, *, writes: bool = False) -> str:
    print_profile(found, writes=writes)
    return capsys.readouterr().out


def flat(text: str) -> str:
    return " ".join(text.split())


def raced(found: Profile, *rates: float, is_clear: bool = True) -> Profile:
    """A profile whose candidates were trained with, each once."""
    contenders = [
        Contender(candidate, [rate], [rate / 4], [3.0])
        for candidate, rate in zip(found.listed, rates, strict=False)
    ]
    contenders.sort(key=lambda one: -one.measured)
    return replace(found, race=Race(contenders, is_clear, 41.0))


# -- what was measured -----------------------------------------------------------------------------------


def test_the_times_of_the_parts_are_shown_with_the_terms_of_equation_1(found: Find, capsys: Out) -> None:
    said = flat(printed(found(), capsys))
    # 4,096 steps in 2 + 8.192 + 1 ms.
    assert (
        "one actor 366 K env steps/s with 64 environments: inference 18 %, environments 73 %, rest 9 %"
        in said
    )
    assert "203 K with 16" in said
    assert "50 us to push a fragment (T_sd), 200 us to receive it (T_rv)" in said
    assert "learner 350 us an update of 512 sample uses: gradients 86 %, sampling 9 %, rest 6 %" in said
    assert "275 us with 1 learner with 2 cores" in said


def test_what_speaks_against_the_figures_is_shown(found: Find, capsys: Out) -> None:
    there = found(measurements=made_up(busy=0.9))
    assert there.warnings
    assert all(f"WARNING: {warning}" in flat(printed(there, capsys)) for warning in there.warnings)
    mpi = found(PPO, overrides=("distribution.transport=mpi",))
    assert "WARNING: trained over shm in place of mpi" in flat(printed(mpi, capsys))


# -- what is recommended ---------------------------------------------------------------------------------


def test_a_config_that_is_right_already_is_left_alone(found: Find, capsys: Out) -> None:
    own = next(one for one in found().listed if not one.changes)
    said = printed(raced(replace(found(), listed=[own]), 1e6), capsys)
    assert "There is nothing to change in the config." in said
    assert "of the config as it is" not in said
    assert "--write" not in said


def test_the_lines_to_change_are_toml_that_gives_the_recommended_split(found: Find, capsys: Out) -> None:
    there = found(DQN, 16, overrides=("distribution.mode=async",))
    said = printed(there, capsys)
    heading = "To change in configs/dqn_cartpole.toml, beside the settings above:\n"
    lines = said.partition(heading)[2].partition("\n\n")[0]
    table = tomllib.loads(lines)
    # What a config leaves to the machine would change with the rest.
    assert table["distribution"]["pin_cores"] is there.recommended.split.pinned
    assert table["distribution"]["actor"]["num"] == there.recommended.split.actors
    settings = said.partition("train with it")[2].splitlines()[0].split(" --set ")[1:]
    assert split_of(load_config(DQN, settings)) == there.recommended.split
    commands = [line for line in said.splitlines() if line.startswith(COMMANDS)]
    assert len(commands) == 3
    assert all(f"{DQN} --set distribution.mode=async" in line for line in commands)
    # Nobody is told to ask for what was asked for.
    assert "--write" not in printed(there, capsys, writes=True)


def test_the_winner_is_recommended_with_what_it_came_to_beside_what_was_predicted(
    found: Find, capsys: Out
) -> None:
    there = found()
    number = next(place for place, one in enumerate(there.listed) if one.split == there.as_it_is.split)
    rates = [1e6] * len(there.listed)
    rates[number] = 5e5
    rates[1 - min(number, 1)] = 1.25e6
    said = flat(printed(raced(there, *rates), capsys))
    assert "TRAINED WITH, IN 41 S" in said
    assert "The first is the best." in said
    assert "Measured: 1.25 M sample uses a second (predicted" in said
    assert ": 2.5 times the 500 K of the config as it is." in said


def test_inference_apart_is_recommended_where_it_has_won_the_race(found: Find, capsys: Out) -> None:
    there = found(measurements=made_up(act_s=2e-2))
    *others, apart = there.listed
    assert apart.split.inference == 1
    assert "only the race can recommend it" in flat(printed(there, capsys))
    assert there.recommended is there.listed[0]
    said = printed(raced(there, *[1e6] * len(others), 1.2e6), capsys)
    assert f"of {apart.split.num_envs} environments, inference apart" in said
    assert "[distribution.inference]\n  num = 1\n" in said


def test_equation_4_is_shown_for_what_is_recommended(found: Find, capsys: Out) -> None:
    there = found()
    split, rates = there.recommended.split, there.recommended.prediction
    said = flat(printed(there, capsys))
    used = "on 2 cores" if split.pinned else "share 2 cores"
    cores = f"M_L + M_A = {split.cores_of_learners} + {split.cores_of_actors}"
    assert f"{cores} {used}; predicted rho T_RA =" in said
    assert f"T_RL = {rates.limits['consumption'] / 1e6:.2f} M; P = 0.12, as configured." in said
    assert there.document()["equation_4"]["batch_share"] == 512 / 4096
    assert found(DQN).document()["equation_4"]["batch_share"] == 512 / 100_000


def test_a_race_that_is_not_clear_says_so(found: Find, capsys: Out) -> None:
    said = flat(printed(raced(found(), 1e6, 1e6, is_clear=False), capsys))
    assert "The race is not clear: the next may be as good; --race-s gives it longer" in said


@pytest.mark.parametrize(
    ("config", "cores", "cluster"),
    [(PPO, 2, None), (DQN, 16, None), (PPO, 1, None), (PPO, 2, Cluster(40, 8))],
)
def test_lines_fit_80_columns_and_tables_with_groups_a_few_more(
    found: Find, capsys: Out, config: str, cores: int, cluster: Cluster | None
) -> None:
    said = printed(found(config, cores, cluster), capsys)
    lines = [line for line in said.splitlines() if not line.startswith(COMMANDS)]
    heading = next(place for place, line in enumerate(lines) if line.endswith("  bottleneck"))
    table = lines[heading : heading + 7]
    assert max(map(len, table)) <= (92 if "groups" in table[0] else 80)
    assert [line for line in lines if len(line) > 80 and line not in table] == []


# -- what is extrapolated --------------------------------------------------------------------------------


def test_an_extrapolation_says_what_it_takes_for_granted(found: Find, capsys: Out) -> None:
    there = found(PPO, 2, Cluster(40, 8))
    said = flat(printed(there, capsys))
    assert "SPLITS OF 40 CORES OF EACH OF 8 NODES, EXTRAPOLATED" in said
    assert there.extrapolated
    assert all(f"- {what}" in said for what in there.extrapolated)
    assert "--cores 40 --nodes 8 --write ppo_cartpole_tuned.toml" in said
    assert "--verify" not in said, "this machine has two cores"
    steps = load_config(PPO).experiment.stop.env_steps
    assert steps is not None
    assert there.recommended.split.groups * 50 * 4096 <= steps


def test_where_nothing_may_be_recommended_the_reason_is_said(found: Find, capsys: Out) -> None:
    there = found(PPO, 2, Cluster(40, 8))
    refused = [replace(one, why_not="no actors today") for one in there.listed]
    there = replace(there, listed=refused)
    assert "No split of these cores is recommended: no actors today" in flat(printed(there, capsys))
    assert there.document()["writable"] is None


def test_a_short_job_is_no_reason_against_its_own_split(found: Find) -> None:
    there = found(PPO, 2, overrides=("experiment.stop.env_steps=9000",))
    assert there.recommended.why_not is None
    assert there.recommended.prediction.versions < 3


# -- what is verified ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((100.0, 90.0, 80.0), "was measured to be the best of 3"),
        ((96.0, 100.0, 80.0), "The first is 4 % behind"),
        ((60.0, 100.0, 80.0), "that one is recommended"),
    ],
)
def test_the_verdict_compares_the_winner_with_the_others(
    found: Find, capsys: Out, rates: tuple[float, ...], words: str
) -> None:
    there = raced(found(), 3.0, 2.0, 1.0)
    verified = [
        Contender(candidate, [rate, rate, 1.06 * rate], [rate] * 3, [5.0] * 3)
        for candidate, rate in zip(there.racers, rates, strict=True)
    ]
    out = printed(replace(there, verified=verified), capsys)
    assert words in flat(out)
    below = out.partition("VERIFIED")[2]
    assert [line.split()[-2] for line in below.splitlines() if line.startswith((" ~ 1 x", "   1 x"))] == [
        "6"
    ] * 3


def test_what_was_written_is_named_with_the_command_to_use_it(
    found: Find, capsys: Out, tmp_path: Path
) -> None:
    print_written(tmp_path / "a b.toml", found().recommended)
    assert f"tianji train '{tmp_path}/a b.toml'" in capsys.readouterr().out


def test_the_best_of_those_that_were_verified_is_recommended(found: Find) -> None:
    there = raced(found(), 3.0, 2.0)
    winner, other = there.racers
    verified = [Contender(winner, [60.0], [15.0], [5.0]), Contender(other, [100.0], [25.0], [5.0])]
    assert there.recommended == winner
    assert replace(there, verified=verified).recommended == other


def test_what_failed_in_the_race_is_named(found: Find, capsys: Out) -> None:
    there = raced(found(), 3.0, 2.0)
    assert there.race is not None
    failed = Contender(there.listed[2], failure="out of memory")
    there = replace(there, race=replace(there.race, failed=[failed]))
    assert "failed: out of memory" in flat(printed(there, capsys))
    assert there.document()["race"]["failed"][0]["why"] == "out of memory"


def test_a_race_whose_finalists_all_failed_says_where_its_first_comes_from(found: Find, capsys: Out) -> None:
    there = raced(found(), 3.0, 2.0, is_clear=False)
    assert there.race is not None
    there = replace(there, race=replace(there.race, fell_back=True))
    said = flat(printed(there, capsys))
    assert "All finalists failed in a later round: the first is the best of those dropped before" in said
