"""Claims about the splits that are listed: which there are, which come first, which may be recommended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.profile.made_up_measurements import APEX, DQN, PPO, SYNC, made_up

from tianji_cli.config.loader import load_config
from tianji_lab.profile.candidates import RACED, Candidate, Candidates
from tianji_lab.profile.model import Cluster, Model
from tianji_lab.profile.split import INFERENCE, Split, num_envs_options, split_of

ALL = 10_000


def candidates(
    config: str,
    cluster: Cluster,
    *overrides: str,
    measured_on: int = 4,
    elsewhere: bool = False,
    **times: float,
) -> Candidates:
    job, measurements = (
        load_config(config, overrides),
        made_up(config, measured_on, overrides=overrides, **times),
    )
    model = Model(job, measurements, cluster)
    return Candidates(config, overrides, model, num_envs_options(config, overrides), elsewhere=elsewhere)


def splits(config: str, cores: int, *overrides: str, **other: float) -> list[Split]:
    return [one.split for one in candidates(config, Cluster(cores), *overrides, **other).best(ALL)]  # type: ignore[arg-type]


# -- which splits there are ----------------------------------------------------------------------------


@pytest.mark.parametrize("config", [APEX, DQN, PPO])
@pytest.mark.parametrize(("cores", "nodes"), [(1, 1), (2, 1), (3, 1), (16, 1), (4, 3), (40, 8)])
def test_every_split_fits_and_is_listed_once(config: str, cores: int, nodes: int) -> None:
    cluster = Cluster(cores, nodes)
    every = [one.split for one in candidates(config, cluster, elsewhere=nodes > 1).best(ALL)]
    assert len(every) == len(set(every))
    for split in set(every) - {split_of(load_config(config))}:
        assert split.pinned is (split.cores <= cluster.cores)
        assert split.actors >= 1
        if split.pinned:  # Learners and buffer of a group are on one node.
            assert max(1, split.groups // nodes) * split.cores_of_learners <= cores * split.groups


def test_only_the_configs_groups_are_compared_on_its_own_hosts() -> None:
    assert {split.groups for split in splits(PPO, 16)} == {1}
    assert {split.groups for split in splits(PPO, 4, "distribution.groups=2")} == {2}
    elsewhere = candidates(PPO, Cluster(4, 2), elsewhere=True).best(ALL)
    assert {one.split.groups for one in elsewhere} == {1, 2, 4, 8}


def test_a_buffer_with_a_process_of_its_own_has_its_cores() -> None:
    found = splits(APEX, 4, "distribution.buffer.cores=2")
    assert {split.buffer_cores for split in found} == {2}
    assert all(split.cores == 4 for split in found if split.pinned and split.actors == 1)


def test_learners_leave_what_they_do_not_need_to_an_actor_for_each_core() -> None:
    shared = [split for split in splits(DQN, 4, update_s=1e-5) if not split.pinned and split.learners == 1]
    assert {split.actors for split in shared} == {4}
    assert {split.learner_cores for split in shared} == {1, 2, 3, 4}


def test_actors_in_step_share_a_rollout_evenly() -> None:
    fragments = {16: 4, 32: 2, 64: 1}
    found = splits(SYNC, 6)
    assert {split.actors for split in found} == {1, 2, 4}
    assert all(fragments[split.num_envs] % split.actors == 0 for split in found)


def test_roles_of_one_process_have_the_configs_split_but_for_the_environments() -> None:
    found = splits(PPO, 4, "distribution.transport=inproc", "distribution.actor.num=2")
    assert {(split.learners, split.actors, split.learner_cores) for split in found} == {(1, 2, 1)}


def test_learners_share_what_they_learn_from_evenly() -> None:
    assert {split.learners for split in splits(DQN, 16)} == {1, 2, 4, 8, 16}
    assert {split.learners for split in splits(APEX, 16)} == {1}, "its buffer has its own process"
    assert {split.learners for split in splits(DQN, 16, measured_on=2)} == {1}, "no other was measured"


@pytest.mark.parametrize(("cores", "gpus"), [(2, 1), (8, 1), (8, 2), (16, 4)])
def test_every_learner_on_a_gpu_has_one(cores: int, gpus: int) -> None:
    overrides = ("distribution.device=cuda",)
    for one in candidates(PPO, Cluster(cores, 2, gpus), *overrides, elsewhere=True).best(ALL):
        assert one.split.learners * max(1, one.split.groups // 2) <= gpus


# -- which comes first ---------------------------------------------------------------------------------


def test_the_first_is_the_best_of_all_but_for_a_tie() -> None:
    found = candidates(PPO, Cluster(16)).best(ALL)
    best = max(one.prediction.throughput for one in found)
    assert found[0].prediction.throughput >= 0.98 * best
    assert len(candidates(PPO, Cluster(40, 250), elsewhere=True).best(ALL)) < 5_000


def test_ties_go_to_fewer_changes_then_to_fewer_environments() -> None:
    # Environments cost nothing, and the learner is the slower side: their number makes no difference.
    every = candidates(DQN, Cluster(2), measured_on=2, update_s=0.1, step_s=0.0).best(ALL)
    found = [one for one in every if one.split.learner_cores == 1 and one.split.pinned]
    assert [one.split.num_envs for one in found] == [32, 8, 16, 64, 128]
    assert found[0].changes == ()


def test_actors_that_would_only_wait_are_left_out() -> None:
    found = candidates(PPO, Cluster(16), update_s=1e-2).best(1)[0]
    assert found.prediction.bottleneck.kind in {"training-bound", "balanced"}
    assert found.split.cores < 16
    model = Model(load_config(PPO), made_up(PPO, 4, update_s=1e-2), Cluster(16))
    if found.split.actors > 1:  # With one fewer the learner would not be fed with a tenth to spare.
        fewer = model.predict(replace(found.split, actors=found.split.actors - 1))
        assert fewer.limits["production"] < 1.1 * fewer.limits["consumption"]


# -- which may be recommended --------------------------------------------------------------------------


def test_a_split_that_ends_before_it_has_learnt_is_not_recommended() -> None:
    found = candidates(PPO, Cluster(40, 8), elsewhere=True).best(ALL)
    steps = load_config(PPO).experiment.stop.env_steps
    assert steps is not None
    for one in found:
        ends_early = steps / 4096 / one.split.groups < 50
        assert ends_early is ("when a policy has had" in (one.why_not or ""))
    assert found[0].why_not is None
    assert found[0].split.groups <= steps / 4096 / 50
    refused = next(one for one in found if one.split.groups == 320)
    assert refused.why_not == "the job ends when a policy has had 0 versions"


def test_what_cannot_be_run_says_why() -> None:
    cluster = Cluster(4, 2)
    found = candidates(PPO, cluster, "distribution.transport=inproc", elsewhere=True).best(ALL)
    assert any("averages go between processes" in (one.why_not or "") for one in found)


def test_settings_give_the_config_that_split() -> None:
    for one in candidates(PPO, Cluster(4)).best(20):
        if one.why_not is None:
            assert split_of(load_config(PPO, one.settings)) == one.split
            assert {setting.partition("=")[0] for setting in one.settings} >= set(one.changes)


def test_zmq_goes_between_hosts_unless_the_config_names_what_reaches_them() -> None:
    best = candidates(PPO, Cluster(4, 2), elsewhere=True).best(1)[0]
    assert {"distribution.hosts", "distribution.transport"} <= set(best.changes)
    job = load_config(PPO, best.settings)
    assert (job.distribution.hosts.max, job.distribution.transport.remote) == (2, "zmq")
    ucx = candidates(PPO, Cluster(4, 2), "distribution.transport=ucx", elsewhere=True).best(1)[0]
    assert set(ucx.changes) & {"distribution.hosts", "distribution.transport"} == {"distribution.hosts"}


# -- which race ----------------------------------------------------------------------------------------


def kinds(found: list[Candidate]) -> list[str]:
    """Learner cores, actors, environments, and ~ where roles share cores."""
    return [
        f"{'' if one.split.pinned else '~'}{one.split.learner_cores} {one.split.actors} {one.split.num_envs}"
        for one in found
    ]


@pytest.mark.parametrize("config", [PPO, DQN, APEX, SYNC])
@pytest.mark.parametrize("cores", [1, 2, 16])
def test_the_best_the_configs_own_and_one_of_the_other_kind_of_cores_race(config: str, cores: int) -> None:
    asked = candidates(config, Cluster(cores))
    raced = asked.to_race()
    may = [one for one in asked.best(ALL) if one.why_not is None]
    assert len(raced) <= RACED
    assert len(set(kinds(raced))) == len(raced)
    assert raced[0] == may[0]
    assert split_of(load_config(config)) in [one.split for one in raced]
    if {one.split.pinned for one in may} == {True, False}:
        assert {one.split.pinned for one in raced} == {True, False}


def test_those_that_race_differ_in_their_environments_before_they_differ_in_their_actors() -> None:
    assert {one.split.num_envs for one in candidates(DQN, Cluster(2), measured_on=2).to_race()} >= {
        32,
        64,
        128,
    }


# -- inference apart -----------------------------------------------------------------------------------

SLOW = 2e-2
"""Seconds of the network for a fragment: most of an actor's time."""


@pytest.mark.parametrize(("cores", "inference", "actors"), [(2, 1, 2), (4, 2, 4), (16, 7, 14)])
def test_inference_apart_races_where_the_network_is_most_of_an_actors_work(
    cores: int, inference: int, actors: int
) -> None:
    asked = candidates(PPO, Cluster(cores), measured_on=cores, act_s=SLOW, update_s=1e-5)
    (apart,) = asked.apart
    assert (apart.split.inference, apart.split.actors) == (inference, actors)
    assert apart in asked.to_race()
    assert apart.split not in [one.split for one in asked.best(ALL)], "no prediction recommends it"
    distribution = load_config(PPO, apart.settings).distribution
    assert distribution.inference is not None
    assert distribution.inference.num == inference
    assert apart.split.pinned is (apart.split.cores <= cores)
    assert set(apart.changes) >= {INFERENCE}


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        (SYNC, ()),
        (PPO, ("distribution.transport=inproc",)),
        (PPO, ("distribution.inference.num=1",)),
        (PPO, ("training.normalize_values=true",)),
    ],
)
def test_inference_apart_is_not_listed_where_the_config_cannot_have_it_or_has_it(
    config: str, overrides: tuple[str, ...]
) -> None:
    assert candidates(config, Cluster(2), *overrides, act_s=SLOW).apart == []


def test_inference_apart_is_not_listed_where_it_cannot_win_or_nothing_is_trained() -> None:
    assert candidates(PPO, Cluster(2)).apart == [], "environments are most of an actor's work"
    assert candidates(PPO, Cluster(4, 2), elsewhere=True, act_s=SLOW).apart == []


def test_one_gpu_runs_the_network_of_all_actors() -> None:
    (apart,) = candidates(PPO, Cluster(16), "distribution.device=cuda", act_s=SLOW, update_s=1e-5).apart
    inference = load_config(PPO, ["distribution.device=cuda", *apart.settings]).distribution.inference
    assert inference is not None
    assert (inference.num, inference.device) == (1, "cuda")
