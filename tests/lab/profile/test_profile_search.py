"""Claims about the splits that are compared, which comes first, and which can be run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.config.loader import load_config
from tianji_cli.errors import UsageError
from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_lab.model.costs import ActorCosts, BufferCosts, Cost, Costs, ExchangeCosts, LearnerCosts, Split
from tianji_lab.model.prediction import Prediction
from tianji_lab.profile.scaling import Cluster
from tianji_lab.profile.search import TIE, Ranking, Search, Splits, check_gpus
from tianji_lab.profile.settings import num_envs_options, split_of, split_values, workload_of

APEX = "configs/dqn_cartpole_apex.toml"
DQN = "configs/dqn_cartpole.toml"
PPO = "configs/ppo_cartpole.toml"
SYNC = "configs/ppo_cartpole_sync.toml"
CONFIGS = st.sampled_from([APEX, DQN, PPO])


class MadeUp:
    """Costs of a learner half of whose work more cores do not shorten.

    Args:
        update_s: of a learner with one core and the whole batch.
        step_s: of an environment.
    """

    def __init__(self, update_s: float = 2e-3, step_s: float = 2e-5) -> None:
        self._update_s = update_s
        self._step_s = step_s

    def at(self, split: Split) -> Costs:
        samples = 64 * split.num_envs
        update = self._update_s * (0.5 + 0.5 / split.learner_cores) / split.learners
        return Costs(
            ActorCosts(samples, Cost.fixed(5e-4 + samples * self._step_s), send_s=1e-5),
            BufferCosts(1e-5, store=Cost.fixed(1e-5), draw=Cost.fixed(1e-5)),
            LearnerCosts(Cost.fixed(update), publish=Cost.fixed(1e-5)),
            ExchangeCosts(gradients_s=1e-4 * (split.learners - 1)),
        )


def search(config: str, cores: int, nodes: int = 1, *overrides: str, costs: MadeUp | None = None) -> Search:
    return Search(
        config,
        overrides,
        cluster=Cluster(cores, nodes),
        num_envs=num_envs_options(config, overrides),
        workload=partial(workload_of, load_config(config, overrides), 4.0, 512.0, 32.0),
        costs=costs or MadeUp(),
    )


def splits(config: str, cluster: Cluster, *overrides: str, num_envs: Sequence[int] = (16,)) -> list[Split]:
    return list(Splits(load_config(config, overrides), cluster, num_envs))


# -- which splits there are ----------------------------------------------------------------------------


@given(CONFIGS, st.integers(3, 200), st.integers(1, 12), st.integers(1, 3))
def test_every_split_uses_all_cores_and_nothing_is_listed_twice(
    config: str, cores: int, nodes: int, of_actor: int
) -> None:
    cores = max(cores, of_actor + 2)
    found = splits(config, Cluster(cores, nodes), f"distribution.actor.cores={of_actor}")
    assert found
    assert len(found) == len(set(found))
    assert {split.cores for split in found if split.pinned} == {cores * nodes}
    for split in found:  # Where roles share cores, there is an actor for each of them.
        assert split.pinned or split.actors == cores * nodes // split.groups // of_actor
    assert {split.actor_cores for split in found} == {of_actor}
    assert all(split.actors and split.learners and split.learner_cores for split in found)


@given(CONFIGS, st.integers(3, 64), st.integers(1, 12))
def test_learners_and_buffer_of_a_group_are_on_one_node(config: str, cores: int, nodes: int) -> None:
    for split in splits(config, Cluster(cores, nodes)):
        of_node = max(1, split.groups // nodes)
        assert max(nodes, split.groups) % min(nodes, split.groups) == 0
        assert of_node * (split.learners * split.learner_cores + split.buffer_cores) <= cores


def test_a_buffer_with_a_process_of_its_own_has_its_cores() -> None:
    found = splits(APEX, Cluster(4), "distribution.buffer.cores=2")
    cores = [(split.buffer_cores, split.learner_cores, split.actors) for split in found]
    assert cores == [(2, 1, 1), (2, 1, 4)]


@pytest.mark.parametrize(
    ("config", "cores", "actors"),
    [(PPO, 1, ["1"]), (SYNC, 1, ["1"]), (APEX, 1, ["1"]), (APEX, 2, ["1", "2", "1 pinned"])],
)
def test_where_cores_are_too_few_roles_share_them(config: str, cores: int, actors: list[str]) -> None:
    found = splits(config, Cluster(cores))
    assert [f"{split.actors}{' pinned' * split.pinned}" for split in found] == actors
    for split in found:
        assert (split.learners, split.learner_cores, split.groups) == (1, 1, 1)
        assert split.cores > cores


def test_groups_that_share_a_core_are_looked_at_only_where_the_config_has_them() -> None:
    assert {split.groups for split in splits(PPO, Cluster(2))} == {1}
    assert {split.groups for split in splits(SYNC, Cluster(2))} == {1}
    own = splits(PPO, Cluster(2), "distribution.groups=2", num_envs=(16, 64))
    assert [(split.actors, split.num_envs) for split in own if split.groups == 2] == [(1, 16), (1, 64)]
    # As it is, the config is compared although its roles take turns: twice the updates at the same time.
    of_two = search(PPO, 2, 1, "distribution.groups=2", costs=MadeUp(update_s=1e-4, step_s=1e-6)).best()
    assert any(candidate.split.groups == 2 and not candidate.changes for candidate in of_two)


@pytest.mark.parametrize(("cores", "shared"), [(2, [(1, 2)]), (4, [(1, 4), (2, 4), (3, 4)])])
def test_learners_leave_what_they_do_not_need_to_an_actor_for_each_core(
    cores: int, shared: list[tuple[int, int]]
) -> None:
    found = [split for split in splits(PPO, Cluster(cores)) if split.groups == split.learners == 1]
    assert [(split.learner_cores, split.actors) for split in found if not split.pinned] == shared
    assert {split.learner_cores for split in found if split.pinned} == {each for each, _ in shared}
    # Where all roles share a process more actors are not tried.
    found = splits(PPO, Cluster(cores), "distribution.transport=inproc", "distribution.actor.num=2")
    assert {split.actors for split in found} == {2}
    assert max(split.learner_cores for split in found if split.groups == 1) == cores


@given(st.integers(2, 64), st.integers(1, 8), st.integers(1, 4))
def test_every_learner_on_a_gpu_has_one(cores: int, nodes: int, gpus: int) -> None:
    job = load_config(PPO)
    on_gpu = job.model_copy(update={"distribution": job.distribution.model_copy(update={"device": "cuda"})})
    found = list(Splits(on_gpu, Cluster(cores, nodes, gpus), (16,)))
    assert found
    for split in found:
        assert split.learners * max(1, split.groups // nodes) <= gpus


def test_gpus_are_refused_for_learners_that_use_none() -> None:
    with pytest.raises(UsageError, match=r"distribution\.device=cuda"):
        check_gpus(Cluster(4, gpus_per_node=1), "cpu")
    check_gpus(Cluster(4, gpus_per_node=1), "cuda:0")
    check_gpus(Cluster(4), "cpu")


# -- which comes first ---------------------------------------------------------------------------------


def predicted(throughput: float, split: Split) -> Prediction:
    none = Bottleneck("balanced", "")
    return Prediction(split, 4.0, throughput, throughput, throughput, throughput, {}, none)


def test_of_equal_throughputs_the_least_rank_comes_first_and_others_by_throughput() -> None:
    found = [
        predicted(throughput, Split(1, 1, 1, num_envs))
        for throughput, num_envs in ((90.0, 1), (99.2, 8), (100.0, 32), (99.4, 4), (98.5, 2))
    ]
    ranking = Ranking(found, lambda prediction: (prediction.split.num_envs,))
    assert [prediction.split.num_envs for prediction in ranking] == [4, 8, 32, 2, 1]


def test_ties_go_to_fewer_changes_then_to_fewer_environments() -> None:
    # Environments cost nothing, and the learner is the slower side: their number makes no difference.
    idle = MadeUp(update_s=0.1, step_s=0.0)
    assert [found.split.num_envs for found in search(DQN, 2, costs=idle).best()] == [32, 8, 16, 64, 128]
    assert search(DQN, 2, costs=idle).best()[0].changes == ()
    assert search(DQN, 2, costs=idle).best()[1].changes == ("environment.num_envs", "distribution.pin_cores")
    pinned = search(DQN, 2, 1, "distribution.pin_cores=true", costs=idle)
    assert pinned.best()[1].changes == ("environment.num_envs",)
    for config in (APEX, PPO):
        best = [found.split for found in search(config, 2, costs=MadeUp(update_s=0.1)).best()]
        assert len(best) == len(set(best)), "no split is shown twice"


@pytest.mark.parametrize(("cores", "nodes"), [(2, 1), (16, 1), (40, 250)])
def test_the_first_is_the_best_of_all_but_for_a_tie(cores: int, nodes: int) -> None:
    compared = search(PPO, cores, nodes)
    assert len(splits(PPO, Cluster(cores, nodes))) < 2_000, "ten thousand cores are thousands and no more"
    every = splits(PPO, Cluster(cores, nodes), num_envs=num_envs_options(PPO))
    best = max(compared.predict(split).throughput for split in every)
    assert compared.best()[0].prediction.throughput >= (1 - TIE) * best


# -- which can be run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [PPO, DQN, SYNC])
def test_several_groups_and_learners_can_be_run(config: str) -> None:
    found = search(config, 16).best()
    assert all(candidate.runnable for candidate in found)
    assert any(candidate.split.groups > 1 for candidate in found)


def test_learners_share_what_they_learn_from_evenly() -> None:
    for config in (PPO, DQN, SYNC):
        for split in splits(config, Cluster(40), num_envs=num_envs_options(config)):
            if split.learners > 1:
                few = split_values(replace(split, actors=1))
                # It would refuse what cannot be divided.
                load_config(config, [f"{key}={value}" for key, value in few.items()])
    assert {split.learners for split in splits(DQN, Cluster(40))} == {1, 2, 4, 8, 16, 32}
    assert {split.learners for split in splits(APEX, Cluster(40))} == {1}, "its buffer has its own process"


def test_what_cannot_be_run_says_why_and_the_best_that_can_comes_last() -> None:
    over = ("distribution.transport=inproc", "distribution.learner.num=1")
    found = search(PPO, 16, 1, *over)
    *others, last = found.best()
    assert len(others) == 5
    for candidate in others:
        assert not candidate.runnable
        assert "averages go between processes" in (candidate.why_not or "")
    assert last.runnable
    assert last == found.runnable()[0]
    assert (last.split.learners, last.split.groups) == (1, 1)
    # The best that learns as the config does has its groups and learners.
    like = search(PPO, 16, 1, "distribution.groups=2").like_the_config()
    assert like is not None
    assert (like.split.learners, like.split.groups) == (1, 2)


def test_settings_of_what_can_be_run_give_the_config_that_split() -> None:
    for candidate in search(PPO, 4).runnable():
        job = load_config(PPO, candidate.settings)
        assert split_of(job) == candidate.split
        assert {setting.partition("=")[0] for setting in candidate.settings} >= set(candidate.changes)
        assert not replace(candidate, why_not="because").runnable


def test_zmq_goes_between_hosts_unless_the_config_names_what_reaches_them() -> None:
    best = search(PPO, 4, 2).runnable()[0]
    assert {"distribution.hosts", "distribution.transport"} <= set(best.changes)
    job = load_config(PPO, best.settings)
    assert (job.distribution.hosts, job.distribution.transport.remote) == (2, "zmq")
    assert job.distribution.transport.local == "shm"
    over = "distribution.transport=ucx"
    best = search(PPO, 4, 2, over).runnable()[0]
    assert set(best.changes) & {"distribution.hosts", "distribution.transport"} == {"distribution.hosts"}
    assert load_config(PPO, [over, *best.settings]).distribution.hosts == 2


# -- what a choice is compared with --------------------------------------------------------------------


def tried(found: Search, choice: Split) -> list[str]:
    """Learner cores, actors, environments, and ~ where they are not pinned."""
    splits = [candidate.split for candidate in found.to_try(choice)]
    return [f"{'' if of.pinned else '~'}{of.learner_cores} {of.actors} {of.num_envs}" for of in splits]


def test_a_choice_is_compared_with_the_config_the_best_that_shares_cores_and_other_pins() -> None:
    assert tried(search(PPO, 2), Split(1, 1, 1, 32)) == ["1 1 32", "1 1 64", "~1 2 32", "~1 1 32", "1 1 16"]
    assert tried(search(PPO, 2), Split(1, 1, 1, 64)) == ["1 1 64", "~1 2 64", "~1 1 64", "1 1 32", "1 1 16"]
    unpinned = Split(1, 1, 2, 64, pinned=False)
    assert tried(search(PPO, 2), unpinned) == ["~1 2 64", "1 1 64", "1 2 64", "~1 2 32", "~1 2 16"]


def test_a_core_is_moved_either_way_where_there_are_more() -> None:
    own = ("distribution.learner.cores=3", "distribution.actor.num=3", "distribution.pin_cores=true")
    assert tried(search(PPO, 6, 1, *own), Split(1, 3, 3, 64)) == [
        *("3 3 64", "~4 3 64", "~3 3 64", "4 2 64", "2 4 64")
    ]
    assert tried(search(PPO, 6, 1, "distribution.actor.cores=2"), Split(1, 2, 2, 64, actor_cores=2))[-2:] == [
        *("~2 2 64", "4 1 64")
    ]
    # Three actors cannot share a rollout of four fragments.
    for line in tried(search(SYNC, 6), Split(1, 4, 2, 16)):
        assert line.split()[1] in {"1", "2", "4"}


def test_a_job_that_was_measured_with_one_number_of_environments_is_compared_with_other_actors() -> None:
    config = load_config(PPO)
    one_size = Search(
        PPO,
        (),
        cluster=Cluster(2),
        num_envs=(64,),
        workload=partial(workload_of, config, 4.0, 512.0, 32.0),
        costs=MadeUp(),
    )
    assert tried(one_size, split_of(config)) == ["1 1 64", "~1 2 64", "~1 1 64", "1 2 64", "1 3 64"]
