"""Members of a population are compared when all have shown themselves, and copies have the same bits."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cli.root.stub_job import stub_job
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_algos import registry as algorithms
from tianji_algos.core import Embryo, Spaces, build_model
from tianji_algos.normalization import Normalization, build_normalizer
from tianji_cli.config.edges import MEMBERS, TAKEOVERS
from tianji_cli.config.loader import load_config
from tianji_cli.config.population import Hyperparameters, config_with
from tianji_cli.config.schema import JobConfig, Population
from tianji_cli.files.lineage import ROUND, Lineage
from tianji_cli.plan.plan import make_plan
from tianji_cli.roles.learner.parallel.member import PopulationMember, StateMemory, TakeoverError
from tianji_cli.root.observers.population import Comparison, Standings, choose, members_of
from tianji_cli.wire.members import member_layout
from tianji_cli.wire.reports import Rejected
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Wiring

JOB = 7
DISCRETE = Spaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
CONTINUOUS = Spaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Box(-1, 1, (2,), np.float32))
ALGORITHMS = {
    "ppo": ("mlp_actor_critic", DISCRETE),
    "impala": ("mlp_actor_critic", DISCRETE),
    "dqn": ("mlp_q", DISCRETE),
    "sac": ("mlp_gaussian_q", CONTINUOUS),
}
CONFIG = """
[experiment]
stop = {{ env_steps = 100_000 }}
[environment]
type = "gym"
id = "{env}"
[agent]
type = "{agent}"
[distribution]
groups = {groups}
mode = "{mode}"
actor.num = 1
[population]
interval = 100
fraction = 0.5
resample = 0.0
perturb = {{ "training.learning_rate" = {{ low = 1e-5, high = 1e-1, log = true, factors = [2.0] }} }}
"""
_numbers = iter(range(10**6))


def config_of(place: Path, agent: str = "ppo", groups: int = 2, mode: str = "async") -> JobConfig:
    env = "Pendulum-v1" if agent == "sac" else "CartPole-v1"
    file = place / "config.toml"
    file.write_text(CONFIG.format(env=env, agent=agent, groups=groups, mode=mode))
    return load_config(str(file))


def embryo_of(config: JobConfig, seed: int) -> Embryo:
    name = config.training.type
    model_name, seen = ALGORITHMS[name]
    model = build_model(algorithms.load("model", model_name), seen, config.model.settings, seed)
    build_normalizer(model, seen, Normalization(observations=True, rewards=False, gamma=0.0))
    made: Embryo = algorithms.load("embryo", name)(seen, model, config.training.settings, seed)
    return made


def fill(embryo: Embryo, seed: int) -> None:
    """Let it know random numbers, everywhere, and have made so many steps."""
    rng = np.random.default_rng(seed)
    tensors, rest = embryo.state()
    for tensor in tensors.values():
        if tensor.is_floating_point():
            tensor.copy_(torch.from_numpy(rng.random(tensor.shape)).to(tensor.dtype))
    steps = {key: seed for key in rest if key.endswith("_steps")}
    embryo.load_state(tensors, rest | steps)


def known(embryo: Embryo) -> tuple[dict[str, list[Any]], dict[str, Any], list[float]]:
    tensors, rest = embryo.state()
    flat = np.zeros(embryo.model.parameter_count, np.float32)
    embryo.model.write_parameters(flat)
    return {name: tensor.tolist() for name, tensor in tensors.items()}, rest, flat.tolist()


class Played:
    """The episodes of a member."""

    def __init__(self, mean: float | None) -> None:
        self.own_mean = mean
        self.returns = np.full(0 if mean is None else 3, mean or 0.0)


class Line:
    """Members and the root of one job, in this process."""

    def __init__(self, config: JobConfig, place: Path) -> None:
        plan = make_plan(config)
        learners = {process.rank: process.group or 0 for process in plan.carrying("learner")}
        self.embryos = [embryo_of(config, seed) for seed in range(len(learners))]
        nbytes = member_layout(StateMemory(self.embryos[0]).nbytes).nbytes
        channels = [Channel(MEMBERS, 0, tuple(learners), nbytes)]
        channels += [Channel(TAKEOVERS, rank, (0,), nbytes) for rank in learners]
        wiring = Wiring(f"population-{next(_numbers)}", tuple(channels))
        self.root = InprocTransport(wiring, 0)
        self.lost: list[int] = []
        self.root.peer_lost = self.lost.append  # type: ignore[method-assign]  # Its endpoint here lives on.
        self.ends = [InprocTransport(wiring, rank) for rank in learners]
        self.told: list[tuple[int, Any]] = []
        self.events: list[str] = []
        first = members_of(config, None)
        ranks = {group: {p.rank for p in plan.trainers if p.group == group} for group in plan.groups}
        self.job = stub_job(
            plan,
            self.events,
            config=config,
            spec=SimpleNamespace(members=first),
            control=self,
            learners=learners,
            rejected=Rejected(),
            overview=SimpleNamespace(population=None),
            members=SimpleNamespace(registered=set().union(*ranks.values())),
            lost={},
            ranks_of=ranks.get,
        )
        self.standings = Standings(self.job, Lineage(place))
        self.comparison = Comparison(self.job, self.standings, self.root, JOB)
        self.members = [
            PopulationMember(
                end,
                embryo,
                job=JOB,
                group=group,
                interval=100,
                waits=config.distribution.mode == "sync",
                env_steps=0,
                hyperparameters=own,
                takeovers=(),
                settings_with=lambda found: config_with(config, found).training.settings,
            )
            for group, (end, embryo, own) in enumerate(zip(self.ends, self.embryos, first, strict=True))
        ]

    def send(self, rank: int, message: Any) -> None:
        """Be the control channel."""
        self.told.append((rank, message))

    def settle(self, group: int, env_steps: int, mean: float | None, version: int = 1) -> bool:
        return self.members[group].settle(env_steps, Played(mean), version)

    def turn(self) -> None:
        """Let the root work until nothing is left that it can do now."""
        for _ in range(4):
            self.comparison.on_turn()

    def lose(self, group: int) -> None:
        """Let a member's learner be dead."""
        rank = next(rank for rank, one in self.job.learners.items() if one == group)
        worker: Any = SimpleNamespace(rank=rank)
        self.job.members.registered -= self.job.ranks_of(group)
        self.standings.on_exit(worker)
        self.comparison.on_exit(worker)
        assert self.lost[-1] == rank

    def bring_back(self, group: int) -> None:
        """Let all processes of a member have registered again."""
        self.job.members.registered |= self.job.ranks_of(group)

    def close(self) -> None:
        for end in (self.root, *self.ends):
            end.close()


@pytest.fixture
def line(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Line]:
    asked: Mapping[str, Any] = getattr(request, "param", {})
    made = Line(config_of(tmp_path, **asked), tmp_path)
    yield made
    made.close()


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(1, 10**6))
@pytest.mark.parametrize("agent", ALGORITHMS)
def test_a_copy_knows_what_the_other_one_does_bit_by_bit(
    agent: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = config_of(tmp_path_factory.mktemp("member"), agent)
    better, worse = (embryo_of(config, number) for number in range(2))
    fill(better, seed)
    memory = np.zeros(StateMemory(better).nbytes, np.uint8)
    StateMemory(better).write(memory)
    expected = known(better)
    fill(better, seed + 1)
    assert known(better) != expected
    StateMemory(worse).read(memory)
    assert known(worse) == expected


@pytest.mark.parametrize("line", [{"agent": agent} for agent in ALGORITHMS], indirect=True)
def test_the_worse_member_takes_over_the_better_one_as_it_was_when_it_was_compared(line: Line) -> None:
    for group, embryo in enumerate(line.embryos):
        fill(embryo, group + 1)
    rates = [own["training.learning_rate"] for own in line.standings.hyperparameters]
    expected = known(line.embryos[1])
    assert line.settle(0, 100, 10.0)
    assert line.settle(1, 100, 20.0)
    fill(line.embryos[1], 99)
    line.turn()
    assert line.settle(0, 150, 11.0, version=5)
    taken = line.members[0].take_takeover()
    assert taken is not None
    assert taken.group == 1
    assert taken.returns.tolist() == [20.0] * 3
    assert known(line.embryos[0]) == expected
    rate = line.members[0].hyperparameters["training.learning_rate"]
    assert rate == min(2.0 * rates[1], 1e-1)
    line.embryos[0].schedule(0)
    settings_now: Any = line.embryos[0]
    assert settings_now.settings.learning_rate == settings_now._optimizer.learning_rate == rate
    assert line.settle(1, 150, 21.0)
    assert line.members[1].take_takeover() is None
    assert {message.hyperparameters["training.learning_rate"] for _, message in line.told} == {rate}
    assert sorted(rank for rank, _ in line.told) == [1, 2], "the learner's process and its actor"
    document = json.loads((line.standings._lineage._path).read_text())
    start, after = document["entries"]
    assert [one["from"] for one in after["members"]] == [1, None]
    assert [one["score"] for one in after["members"]] == [10.0, 20.0]
    assert start["metric"] == "mean_100"


def test_nobody_is_compared_before_all_have_come_an_interval_far(line: Line) -> None:
    assert line.settle(0, 99, 1.0)
    line.turn()
    assert line.settle(0, 100, 1.0)
    assert line.settle(0, 500, 1.0), "a member that is ahead trains on"
    line.turn()
    assert line.standings.rounds == 0
    assert line.settle(1, 100, 2.0)
    line.turn()
    assert line.standings.rounds == 1


@pytest.mark.parametrize("line", [{"mode": "sync"}], indirect=True)
def test_in_step_a_member_waits_for_what_comes_of_a_comparison(line: Line) -> None:
    assert line.settle(0, 99, 1.0)
    assert not line.settle(0, 100, 1.0)
    assert not line.settle(1, 100, 2.0)
    line.turn()
    assert line.settle(0, 100, 1.0)
    assert line.members[0].take_takeover() is not None
    assert line.settle(1, 100, 2.0)
    assert line.members[1].take_takeover() is None


def test_a_member_without_an_episode_is_neither_copied_nor_replaced(line: Line) -> None:
    line.settle(0, 100, None)
    line.settle(1, 100, 2.0)
    line.turn()
    assert line.standings.rounds == 1
    assert line.standings.standing().takeovers == 0


def test_the_rest_are_compared_when_a_member_has_died_and_it_comes_back_as_a_copy(line: Line) -> None:
    fill(line.embryos[1], 5)
    expected = known(line.embryos[1])
    line.settle(1, 100, 2.0)
    line.turn()
    line.lose(0)
    line.turn()
    assert line.standings.rounds == 1
    line.bring_back(0)
    line.turn()
    assert line.settle(0, 80, None, version=9)
    assert known(line.embryos[0]) == expected
    assert line.members[0].take_takeover() is not None
    assert "member 0 is there again: it goes on from member 1" in line.events[-1]
    assert line.members[0].takeovers[-1]["env_steps"] == 80
    # An interval is of its own env steps: those of the learner before it are none.
    line.settle(0, 170, 1.0)
    line.turn()


def kill(line: Line, group: int) -> None:
    """Lose a member, and have it there again."""
    line.lose(group)
    line.turn()
    line.bring_back(group)


def test_a_member_that_dies_before_anybody_has_shown_anything_begins_with_its_checkpoint(line: Line) -> None:
    kill(line, 0)
    line.turn()
    assert line.settle(0, 10, None)
    assert line.members[0].take_takeover() is None
    assert "member 0 is there again: it begins with its last checkpoint" in line.events[-1]


def test_a_member_comes_back_as_a_copy_of_one_that_has_no_score_yet(line: Line) -> None:
    fill(line.embryos[1], 5)
    expected = known(line.embryos[1])
    line.settle(1, 100, None)
    line.turn()
    kill(line, 0)
    line.turn()
    assert line.settle(0, 10, None)
    assert known(line.embryos[0]) == expected
    told = line.standings.hyperparameters[0]
    assert line.members[0].hyperparameters == told


@pytest.mark.parametrize("line", [{"mode": "sync"}], indirect=True)
def test_what_a_member_had_sent_before_it_died_is_of_no_round_of_its_successor(line: Line) -> None:
    assert not line.settle(0, 100, 1.0)
    kill(line, 0)
    line.members[0]._outstanding = False  # Its successor's is another one.
    line.turn()
    assert line.settle(0, 100, None)
    assert not line.settle(0, 200, 3.0)
    assert not line.settle(1, 100, 2.0)
    line.turn()
    assert line.job.rejected.count == 0
    assert line.standings.rounds == 1
    assert line.settle(0, 200, 3.0)
    assert line.settle(1, 100, 2.0)
    assert line.members[1].take_takeover() is not None


def test_a_state_that_changes_its_shape_is_refused_in_words(line: Line) -> None:
    embryo = line.embryos[0]
    memory = StateMemory(embryo)
    grown = {**embryo.state()[0], "more": torch.zeros(1)}
    embryo.state = lambda: (grown, {})  # type: ignore[method-assign]
    with pytest.raises(TakeoverError, match="has other tensors than before the first update"):
        memory.write(np.zeros(memory.nbytes, np.uint8))


def population(**keys: Any) -> Population:
    rate: Hyperparameters = {"training.learning_rate": {"low": 1e-5, "high": 1e-1}}
    return Population.model_validate({"interval": 1, "perturb": rate} | keys)


scores_of_many = st.dictionaries(st.integers(0, 20), st.floats(-100, 100), max_size=12)


@given(scores=scores_of_many, seed=st.integers(0, 100), fraction=st.sampled_from([0.1, 0.25, 0.5]))
def test_the_worst_take_over_the_best_and_it_follows_from_seed_and_scores(
    scores: dict[int, float], seed: int, fraction: float
) -> None:
    asked = population(fraction=fraction)
    chosen = choose(scores, asked, np.random.default_rng(seed))
    assert chosen == choose(scores, asked, np.random.default_rng(seed))
    expected = min(max(1, round(fraction * len(scores))), len(scores) // 2)
    assert len(chosen) == expected
    assert not chosen.keys() & set(chosen.values())
    others = [score for group, score in scores.items() if group not in chosen]
    assert all(scores[group] <= score for group in chosen for score in others)
    assert all(scores[best] >= sorted(scores.values())[-expected] for best in chosen.values())


@given(scores=scores_of_many, seed=st.integers(0, 100))
def test_in_a_tournament_only_better_ones_are_taken_over(scores: dict[int, float], seed: int) -> None:
    asked = population(selection="tournament")
    chosen = choose(scores, asked, np.random.default_rng(seed))
    assert all(scores[other] > scores[group] for group, other in chosen.items())


def test_a_session_goes_on_counting_takeovers_of_the_members_that_it_has(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path)
    said = [{"group": group, "from": source, "hyperparameters": {}} for group, source in ((1, 0), (7, 1))]
    lineage.add(ROUND, round=1, members=said)
    config = config_of(tmp_path)
    spec = SimpleNamespace(members=members_of(config, None))
    standings = Standings(stub_job(make_plan(config), [], config=config, spec=spec), lineage)
    assert [(one.takeovers, one.parent) for one in standings.standing().members] == [(0, None), (1, 0)]
    assert standings.rounds == 1
