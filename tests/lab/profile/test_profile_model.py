"""Claims about what the model predicts of a split: Equations 1, 3 and 4."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.profile.made_up_measurements import APEX, DQN, PPO, SYNC, made_up, part

from tianji_cli.config.loader import load_config
from tianji_lab.profile.model import Cluster, Model, Prediction
from tianji_lab.profile.split import Split

ROWS = [
    (2, "sample-bound", (3255.02, 3293.26, 3280.98), (3263.15, 3299.35, 3288.98)),
    (4, "sample-bound", (6232.26, 6224.91, 6229.98), (6199.11, 6174.51, 6174.51)),
    (8, "balanced", (11661.47, 11571.96, 11578.31), (11432.79, 11308.52, 11247.72)),
    (16, "training-bound", (22137.23, 22335.65, 22176.82), (10725.61, 10894.60, 10781.47)),
    (24, "training-bound", (31190.68, 32251.47, 32814.92), (10189.90, 10508.93, 10671.10)),
]
"""The paper's Table 1 (section D.2), two learners of four cores each: actors, the regime,
and steps/s produced and consumed in three runs. Production runs free there, beyond what is used."""


def model(config: str = PPO, cluster: Cluster | None = None, *overrides: str, **times: float) -> Model:
    measurements = made_up(config, 2, overrides=overrides, **times)
    return Model(load_config(config, overrides), measurements, cluster or Cluster(2))


def split(config: str = PPO, **other: int | bool) -> Split:
    return replace(Split(1, 1, 1, load_config(config).environment.num_envs), **other)  # type: ignore[arg-type]


def table_1(actors: int) -> Prediction:
    """Predict a row from what one of each role does in the balanced one, where both are busy all the time."""
    produced, consumed = next((row[2], row[3]) for row in ROWS if row[0] == 8)
    update_s = 128.0 / mean(consumed)
    times = {"act_s": 16.0 * 8 / mean(produced), "step_s": 0.0, "rest_s": 0.0, "push_s": 0.0, "draw_s": 0.0}
    times |= {
        "samples": 16.0,
        "receive_s": 1e-9,
        "update_s": update_s,
        "other_s": 0.0,
        "uses_per_update": 128,
    }
    one = part(1, learners=2, learner_cores=4).model_copy(update=times)
    measurements = made_up(DQN).model_copy(update={"parts": (one,), "rho": 1.0})
    split = Split(learners=2, learner_cores=4, actors=actors, num_envs=1)
    return Model(load_config(DQN), measurements, Cluster(40)).predict(split)


@pytest.mark.parametrize(("actors", "regime", "produced", "consumed"), ROWS)
def test_a_row_of_table_1_is_predicted_with_its_regime_and_its_throughputs_within_12_percent(
    actors: int, regime: str, produced: tuple[float, ...], consumed: tuple[float, ...]
) -> None:
    prediction = table_1(actors)
    assert prediction.split.name == f"L2A{actors}"
    assert prediction.bottleneck.kind == regime
    assert prediction.limits["production"] / prediction.rho == pytest.approx(mean(produced), rel=0.12)
    assert prediction.throughput == pytest.approx(mean(consumed), rel=0.12)


@given(st.integers(1, 64), st.sampled_from([16, 32, 64]))
def test_production_and_reception_are_equation_1_turned_round(actors: int, num_envs: int) -> None:
    found = model(PPO, Cluster(100)).predict(split(actors=actors, num_envs=num_envs))
    samples = 64 * num_envs
    assert found.limits["production"] / 4 == pytest.approx(actors * samples / (3e-3 + samples * 2e-6 + 5e-5))
    assert found.limits["reception"] / 4 == pytest.approx(samples / 2e-4)
    # Equation 3: the least of the three, in uses.
    assert found.throughput == pytest.approx(
        min(found.limits[name] for name in ("production", "reception", "consumption")), rel=1e-9
    )


def test_a_learner_that_takes_turns_with_its_buffer_receives_meanwhile() -> None:
    update_s = 3e-4 + 3e-5 + 2e-5
    colocated, apart = model(PPO).predict(split()), model(APEX).predict(split(APEX, buffer_cores=1))
    received_s = 512 / 4.0 / (64 * 64) * 2e-4
    assert colocated.limits["consumption"] == pytest.approx(512 / (update_s + received_s))
    assert apart.limits["consumption"] == pytest.approx(512 / update_s)


def test_roles_that_share_cores_take_turns_on_them() -> None:
    alone, shared = model().predict(split()), model().predict(split(actors=2, pinned=False))
    assert "cores" not in alone.limits
    actor_s, learner_s = 1 / alone.limits["production"], 1 / alone.limits["consumption"]
    assert shared.limits["cores"] == pytest.approx(2 / (actor_s + learner_s))
    one = model(PPO, Cluster(2), "distribution.transport=inproc").predict(split())
    assert one.throughput == pytest.approx(1 / (actor_s + learner_s)), "roles of one process share a core"


def test_roles_in_step_wait_for_one_another() -> None:
    found = model(SYNC).predict(split(SYNC))
    assert 1 / found.throughput == pytest.approx(
        1 / found.limits["production"] + 1 / found.limits["consumption"]
    )
    assert found.bottleneck.kind == "in step"


def test_sizes_between_those_measured_lie_between_them() -> None:
    rates = [model().predict(split(num_envs=size)).limits["production"] / 4 for size in (16, 32, 64)]
    assert rates == sorted(rates)
    assert model().knows(32)
    assert not model().knows(128)


def test_a_learner_gains_what_was_measured_of_more_cores_and_nothing_beyond() -> None:
    one, two, four = (
        model().predict(split(learner_cores=cores)).limits["consumption"] for cores in (1, 2, 4)
    )
    assert one < two == four
    beyond = list(model().extrapolated(split(learner_cores=4)))
    assert beyond == ["a learner with 4 cores: no faster than with 2, the most measured"]


def test_numbers_of_learners_follow_the_two_that_were_measured() -> None:
    measurements = made_up(PPO, 4)
    several = Model(load_config(PPO), measurements, Cluster(16))
    assert several.learners == [1, 2, 4, 8, 16]
    assert model().learners == [1], "on two cores only one was measured"
    rates = {
        learners: several.predict(split(learners=learners)).limits["consumption"] for learners in (1, 2, 4)
    }
    assert rates[1] < rates[2] < rates[4] < 2 * rates[1], "half of the work is not divided"


def test_a_link_carries_what_comes_from_actors_elsewhere() -> None:
    slow = Cluster(4, 2, link_bytes_per_s=1e6)
    found = model(PPO, slow).predict(split(actors=7))
    # Four actors of seven are elsewhere: three share the learner's node.
    assert found.limits["link"] == pytest.approx(1e6 / (160_000 * 4 / 7) * 64 * 64 * 4)
    assert found.bottleneck.kind == "communication-bound"
    assert "link" not in model(PPO, slow).predict(split(actors=7, groups=2)).limits


def test_versions_of_a_group_are_those_that_fit_into_the_steps_or_the_time_of_the_job() -> None:
    stop = "experiment.stop={ env_steps = 409600 }"
    found = model(PPO, Cluster(16), stop)
    assert found.predict(split()).versions == pytest.approx(409600 / 4096)
    assert found.predict(split(groups=4)).versions == pytest.approx(409600 / 4096 / 4)
    timed = model(PPO, None, "experiment.stop={ wall_s = 10 }").predict(split())
    assert timed.versions == pytest.approx(10 * timed.throughput / 512 / 32)
    assert math.isinf(model(PPO, None, "experiment.stop={ mean_return = 1e9 }").predict(split()).versions)
