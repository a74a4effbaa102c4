"""The parts of a real job are measured, from the start of the probes to the last figure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from lab.profile.probing import CONTROL, DQN, PPO, write_config

from tianji_cli.config.loader import load_config
from tianji_cli.telemetry.progress import Progress
from tianji_cli.wire.parameters import policy_layout
from tianji_lab.profile import schedule
from tianji_lab.profile.building import Subject
from tianji_lab.profile.measure import measure
from tianji_lab.profile.measurements import Measurements
from tianji_lab.profile.settings import fingerprint

pytestmark = [pytest.mark.usefixtures("warm_children"), pytest.mark.timeout(400)]
# Its windows take as long as they take, of processes that start anew.


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure as quickly as can be, for there is time for everything."""
    monkeypatch.setattr(schedule, "LONGEST_S", schedule.SHORTEST_S)
    monkeypatch.setattr(schedule, "MOST_ROUNDS", schedule.LEAST_ROUNDS)
    monkeypatch.setattr(schedule, "FRESH_S", 0.0)


def measured(config: str, cores: int, num_envs: list[int], *overrides: str) -> Measurements:
    """Measure on as many cores as one likes: they need not be there."""
    usable = sorted(os.sched_getaffinity(0))
    job = load_config(config, overrides)
    with Progress(0, quiet=True) as progress:
        on = [usable[core % len(usable)] for core in range(cores)]
        found = measure(Subject(config, overrides, job), on, num_envs, progress, budget_s=1000.0)
        assert progress.total == progress._done
    assert found.fingerprint == fingerprint(job)
    assert found.cores == found.at_work == cores
    assert found.unmeasured == ()
    assert found.startup_s > 0
    assert found.seconds > found.startup_s
    return found


def test_ppo_on_three_cores_is_measured_in_all_its_parts(tmp_path: Path) -> None:
    found = measured(write_config(tmp_path / "ppo.toml", PPO), 3, [4, 8], 'distribution.transport="shm"')
    actors = {(of.num_envs, of.side_by_side, of.crowded) for of in found.actors}
    assert actors == {
        *((num_envs, *kind) for num_envs in (4, 8) for kind in ((1, False), (2, True))),
        *((8, *kind) for kind in ((2, False), (1, True), (3, True))),
    }
    learners = {(of.num_envs, of.cores, of.share, of.crowded) for of in found.learners}
    assert learners == {
        *((num_envs, 1, 1, crowded) for num_envs in (4, 8) for crowded in (False, True)),
        *((8, 1, share, crowded) for share in (2, 4) for crowded in (False, True)),
        *((8, 2, 1, crowded) for crowded in (False, True)),
        (8, 3, 1, False),
    }
    # 2 epochs of 4 minibatches.
    assert all(of.updates_per_version == 8 for of in found.learners)
    # Steps in which an environment is reset are no experience; what is left of 256 is cut into minibatches of
    # equal size, seven at least where the batch is shared: 3.5 / 4 to 7.5 / 7 of the size that is set.
    assert all(0.875 * 64 <= of.uses_per_update * of.share <= 1.08 * 64 for of in found.learners)
    assert all(0.75 * 16 * of.num_envs < of.samples <= 16 * of.num_envs for of in found.actors)
    for actor in found.actors:
        windows = zip(*(of.values for of in (actor.fragment_s, actor.act_s, actor.step_s)), strict=True)
        assert all(whole > act + step > 0 for whole, act, step in windows) or actor.side_by_side > 1
    for learner in found.learners:
        pieces = (learner.update_s, learner.draw_s, learner.publish_s, learner.store_s)
        assert all(piece.cost > 0 for piece in pieces)
    assert found.sharing is not None
    assert (found.sharing.actors.side_by_side, found.sharing.actors.num_envs) == (3, 8)
    assert found.rho == 2
    assert set(found.fragment_bytes) == {4, 8}
    assert [of.nbytes for of in found.transport] == [found.fragment_bytes[4], found.fragment_bytes[8]]
    assert [of.actors for of in found.weights] == [1, 2]
    assert found.policy_bytes == policy_layout(found.parameters).nbytes
    assert [of.learners for of in found.averaging] == [2]
    assert all(len(of.seconds.values) == 4 for of in found.averaging)


def test_dqn_on_one_core_is_measured_without_a_transport(tmp_path: Path) -> None:
    found = measured(write_config(tmp_path / "dqn.toml", DQN), 1, [8], 'distribution.transport="inproc"')
    (actor,), (learner,) = found.actors, found.learners
    assert (actor.num_envs, actor.side_by_side, actor.crowded) == (8, 1, False)
    assert (learner.cores, learner.share, learner.crowded) == (1, 1, False)
    assert (found.rho, learner.uses_per_update, learner.updates_per_version) == (4.0, 32, 5)
    assert found.batch_bytes > 0
    assert found.sharing is not None
    assert found.sharing.actors.side_by_side == 1
    assert found.transport == found.weights == found.averaging == ()
    assert Measurements.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("agent", ["sac", "td3"])
def test_sac_and_td3_are_measured_as_any_other_agent_with_a_replay(tmp_path: Path, agent: str) -> None:
    config = write_config(tmp_path / "control.toml", CONTROL, agent={"type": agent})
    found = measured(config, 1, [4], 'distribution.transport="inproc"')
    (actor,), (learner,) = found.actors, found.learners
    assert (found.rho, learner.uses_per_update, learner.updates_per_version) == (32.0, 32, 5)
    assert actor.step_s.median > 0
    assert learner.update_s.median > 0


@pytest.mark.soak
def test_actors_of_several_cores_are_measured_with_as_many_processes_as_there_is_room_for(
    tmp_path: Path,
) -> None:
    config = write_config(tmp_path / "ppo.toml", PPO)
    found = measured(config, 4, [8], "distribution.actor.cores=2")
    actors = {(of.num_envs, of.side_by_side, of.crowded) for of in found.actors}
    assert actors == {(8, 1, False), (8, 1, True), (8, 2, True)}
    assert {of.cores for of in found.learners} == {1, 2, 4}
    assert [of.learners for of in found.averaging] == [2], "there are two processes"
