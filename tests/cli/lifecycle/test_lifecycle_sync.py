"""In step: the seed alone decides what comes out, whatever carries the data and however many act."""

import hashlib
from typing import Any

import pytest


def outcome(workplace: Any, transport: str, actors: int, seed: int) -> tuple[Any, ...]:
    run = workplace.train(
        {
            "experiment": {
                "seed": seed,
                "stop": {"env_steps": 6000},
                "eval_episodes": 5,
                "thresholds": [15.0],
            },
            "training": {
                "normalize_observations": True,
                "normalize_rewards": True,
                "normalize_values": True,
            },
            "distribution": {"transport": transport, "mode": "sync", "actor": {"num": actors}},
        }
    )
    summary = run.finish()
    assert (summary["status"], summary["transport"]) == ("finished", transport)
    assert summary["evaluation"]["episodes"] == 5
    roles = ["root", "buffer", "learner", *["actor"] * actors, "evaluator"]
    assert sorted(role["role"] for role in summary["roles"]) == sorted(roles)
    assert (summary["lost"], summary["in_flight"]) == (0, 0)
    parameters = {
        name: hashlib.sha256((run.path / "checkpoints" / name / "model.safetensors").read_bytes()).hexdigest()
        for name in ("last", "best")
    }
    figures = tuple(
        str(summary[key]) for key in ("env_steps", "updates", "consumed", "returns", "evaluation")
    )
    return (*parameters.items(), *figures)


@pytest.mark.parametrize("actors", [2, pytest.param(1, marks=pytest.mark.soak)])
def test_the_same_seed_gives_the_same_parameters_bit_for_bit_over_every_transport(
    workplace: Any, actors: int
) -> None:
    workplace.begins_cold = True  # All others have one seed of hashes in common.
    reference = outcome(workplace, "inproc", actors, seed=7)
    workplace.begins_cold = False
    assert outcome(workplace, "shm", actors, seed=7) == reference
    for transport in ("zmq", "mpi", "ucx"):
        assert outcome(workplace, transport, actors, seed=7) == reference, transport
    if actors == 1:
        assert outcome(workplace, "shm", actors, seed=8)[0] != reference[0]
