"""The model, fitted to one row of the paper's Table 1 (section D.2), predicts the other four.

DQN on CartPole with two learners of four cores each: production rises with the actors, consumption with it
until both are in balance at L2A8. Production runs free there, so what is made beyond L2A8 is never used. The
paper measures no role by itself. In balance actors and learners are both busy, so that row shows what one of
each can do; all that is known of the other rows is their number of actors.
"""

from __future__ import annotations

from statistics import mean

import pytest

from tianji_lab.model.costs import ActorCosts, BufferCosts, Cost, Costs, LearnerCosts, Split, Workload
from tianji_lab.model.prediction import Prediction, predict

FRAGMENT_STEPS = 16.0
BATCH = 64.0

ROWS = [
    (2, "sample-bound", (3255.02, 3293.26, 3280.98), (3263.15, 3299.35, 3288.98)),
    (4, "sample-bound", (6232.26, 6224.91, 6229.98), (6199.11, 6174.51, 6174.51)),
    (8, "balanced", (11661.47, 11571.96, 11578.31), (11432.79, 11308.52, 11247.72)),
    (16, "training-bound", (22137.23, 22335.65, 22176.82), (10725.61, 10894.60, 10781.47)),
    (24, "training-bound", (31190.68, 32251.47, 32814.92), (10189.90, 10508.93, 10671.10)),
]
"""Actors; what section D.2 says of it; steps/s produced and consumed in three runs."""
LEARNERS, BALANCED = 2, 8
_, _, _PRODUCED, _CONSUMED = next(row for row in ROWS if row[0] == BALANCED)
PRODUCED_PER_ACTOR = mean(_PRODUCED) / BALANCED
CONSUMED_PER_LEARNER = mean(_CONSUMED) / LEARNERS
"""Fitted to L2A8: 1,450 and 5,665 steps/s."""


def table_1(actors: int) -> Prediction:
    """Predict a row."""
    split = Split(learners=LEARNERS, learner_cores=4, actors=actors, num_envs=1)
    workload = Workload(
        rho=1.0, uses_per_update=LEARNERS * BATCH, updates_per_version=1.0, send_size=16, rollout_steps=None
    )
    costs = Costs(
        actor=ActorCosts(FRAGMENT_STEPS, Cost.fixed(FRAGMENT_STEPS / PRODUCED_PER_ACTOR), send_s=0.0),
        # The figure of a learner has everything in it.
        buffer=BufferCosts(receive_s=0.0, store=Cost.fixed(0.0), draw=Cost.fixed(0.0)),
        learner=LearnerCosts(update=Cost.fixed(BATCH / CONSUMED_PER_LEARNER), publish=Cost.fixed(0.0)),
    )
    return predict(split, workload, costs)


def test_the_row_that_the_model_is_fitted_to_is_in_balance() -> None:
    assert table_1(BALANCED).bottleneck.kind == "balanced"


@pytest.mark.parametrize(
    ("actors", "regime", "produced", "consumed"), [row for row in ROWS if row[0] != BALANCED]
)
def test_another_row_of_table_1_is_predicted_with_its_regime_and_its_throughputs_within_12_percent(
    actors: int, regime: str, produced: tuple[float, ...], consumed: tuple[float, ...]
) -> None:
    prediction = table_1(actors)
    assert prediction.split.name == f"L2A{actors}"
    assert prediction.bottleneck.kind == regime
    assert prediction.production == pytest.approx(mean(produced), rel=0.12)
    assert prediction.throughput == pytest.approx(mean(consumed), rel=0.12)


def test_beyond_the_balance_of_table_1_more_actors_change_nothing() -> None:
    assert table_1(16).throughput == table_1(24).throughput == LEARNERS * CONSUMED_PER_LEARNER
