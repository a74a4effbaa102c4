"""A group contributes at most once a round, adopts what comes of it, and keeps what it learned meanwhile."""

import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cli.root.averaging_line import JOB, AveragingLine
from gymnasium import spaces

from tianji_algos import registry as algorithms
from tianji_algos.core import Embryo, Spaces, build_model
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.normalization import Normalization, build_normalizer, normalizer_of
from tianji_algos.ppo.settings import PPOSettings
from tianji_cli.roles.learner.parallel.group_average import AverageError, GroupAverage
from tianji_cli.root.observers.averaging import ParameterAveraging
from tianji_cli.wire.parameters import Average, average_layout
from tianji_transports.core import FULL

INTERVAL = 10
WAIT_S = 1000.0
SPACES = Spaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))


def embryo(hidden: int = 8, asked: Normalization | None = None) -> Embryo:
    settings = MLPActorCriticSettings(hidden=(hidden,))
    model = build_model(algorithms.load("model", "mlp_actor_critic"), SPACES, settings, 1)
    build_normalizer(model, SPACES, asked)
    made: Embryo = algorithms.load("embryo", "ppo")(SPACES, model, PPOSettings(), 2)
    return made


class Group:
    """The learner of one group: its embryo, its part in averaging, and how far it is."""

    def __init__(
        self, line: AveragingLine, number: int, own: Embryo, *, waits: bool = False, moments: bool = False
    ) -> None:
        self.embryo = own
        self.average = GroupAverage(
            line.learners[number],
            self.embryo,
            job=JOB,
            group=number,
            interval=INTERVAL,
            waits=waits,
            wait_s=WAIT_S,
            moments=moments,
        )
        self.updates = 0
        self.consumed = 0

    def settle(self, updates: int = 0, uses: int = 64) -> bool:
        """Make so many updates that use ``uses`` samples each, and end a round."""
        self.updates += updates
        self.consumed += updates * uses
        return self.average.settle(self.updates, self.consumed)

    @property
    def parameters(self) -> npt.NDArray[np.float32]:
        flat = np.zeros(self.embryo.model.parameter_count, np.float32)
        self.embryo.model.write_parameters(flat)
        return flat

    @parameters.setter
    def parameters(self, value: float | npt.NDArray[np.float32]) -> None:
        flat = np.empty(self.embryo.model.parameter_count, np.float32)
        flat[...] = value
        self.embryo.model.read_parameters(flat)


class Pair:
    """Two groups and the root between them."""

    def __init__(
        self,
        *,
        waits: bool = False,
        moments: bool = False,
        hidden: int = 8,
        asked: Normalization | None = None,
    ) -> None:
        sample = embryo(hidden, asked)
        values = sample.model.parameter_count
        if moments:
            values += sum(moment.numel() for moment in sample.averaged_state())
        self.line = AveragingLine(2, values)
        self.groups = [
            Group(self.line, i, embryo(hidden, asked), waits=waits, moments=moments) for i in range(2)
        ]

    @property
    def root(self) -> ParameterAveraging:
        return self.line.averaging


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(**getattr(request, "param", {}))
    yield made
    made.line.close()


in_step = pytest.mark.parametrize("pair", [{"waits": True}], indirect=True)


def test_groups_that_contribute_adopt_the_mean_weighted_by_the_samples_they_used(pair: Pair) -> None:
    one, other = pair.groups
    one.parameters, other.parameters = 0.0, 4.0
    assert one.settle(INTERVAL, uses=300)
    assert other.settle(INTERVAL, uses=100)
    pair.root.on_turn()
    for group in pair.groups:
        assert group.settle(1)
        assert group.average.take_adopted()
        assert not group.average.take_adopted()
        assert group.parameters == pytest.approx(1.0)
        assert (group.average.contributed, group.average.adoptions) == (1, 1)


def test_nothing_is_due_before_the_interval_is_over(pair: Pair) -> None:
    one, _ = pair.groups
    assert one.settle(INTERVAL - 1)
    pair.root.on_turn()
    assert pair.line.latest() is None
    one.settle(1)
    pair.root.on_turn()
    assert pair.line.latest() is not None


def test_what_a_group_learns_while_its_average_is_made_is_kept(pair: Pair) -> None:
    one, other = pair.groups
    one.parameters, other.parameters = 0.0, 4.0
    one.settle(INTERVAL)
    other.settle(INTERVAL)
    learned = np.linspace(-1, 1, len(one.parameters)).astype(np.float32)
    one.parameters = one.parameters + learned
    pair.root.on_turn()
    one.settle(1)
    assert one.parameters == pytest.approx(2.0 + learned)


def test_statistics_are_merged_by_counts_and_what_is_seen_meanwhile_too() -> None:
    asked = Normalization(observations=True, rewards=False, gamma=0.9, values=True)
    pair = Pair(asked=asked)
    try:
        moments = [normalizer_of(group.embryo.model).observations for group in pair.groups]
        values = [normalizer_of(group.embryo.model).values for group in pair.groups]
        for mean, own in zip((9_999.0, 10_001.0), values, strict=True):
            own.merge(100, np.array([mean]), np.array([50.0]))
        rng = np.random.default_rng(0)
        first = [rng.normal(center, 10.0, (number, 4)) for center, number in ((-1.0, 400), (1.0, 1200))]
        for group, own, seen in zip(pair.groups, moments, first, strict=True):
            own.merge(len(seen), seen.mean(axis=0), seen.var(axis=0) * len(seen))
            group.settle(INTERVAL)
        # Less spread than before: as a difference it would leave a variance below 0.
        later = rng.normal(0.0, 0.1, (10**5, 4))
        moments[0].merge(len(later), later.mean(axis=0), later.var(axis=0) * len(later))
        pair.root.on_turn()
        for group in pair.groups:
            group.settle(1)
        mean, variance = np.concatenate(first).mean(axis=0), np.concatenate(first).var(axis=0)
        np.testing.assert_allclose(moments[1].mean, mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(moments[1].variance, variance, rtol=1e-4)
        assert [own.variance.item() for own in values] == [pytest.approx(1.5, abs=1e-3)] * 2
        total = 400 + len(later)
        merged = (400 * mean + later.sum(axis=0)) / total
        second = (400 * (variance + mean**2) + np.square(later).sum(axis=0)) / total
        assert int(moments[0].count) == total
        np.testing.assert_allclose(moments[0].mean, merged, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(moments[0].variance, second - merged**2, rtol=1e-3)
    finally:
        pair.line.close()


def test_a_group_contributes_once_in_a_round_however_far_it_gets(pair: Pair) -> None:
    one, other = pair.groups
    for _ in range(5):
        assert one.settle(INTERVAL)
        pair.root.on_turn()
    assert one.average.contributed == 1
    other.settle(INTERVAL)
    pair.root.on_turn()
    one.settle(0)
    assert (one.average.contributed, one.average.adoptions) == (2, 1)
    assert pair.line.rejected.count == 0


def test_a_round_that_another_group_has_begun_is_joined_before_the_interval_is_over(pair: Pair) -> None:
    one, other = pair.groups
    one.parameters, other.parameters = 0.0, 4.0
    one.settle(INTERVAL)
    pair.root.on_turn()
    other.settle(2)
    pair.root.on_turn()
    one.settle(1)
    assert pair.root.rounds == 1
    assert one.parameters == pytest.approx(4.0 * 2 / 12)
    other.settle(1)
    assert (other.average.contributed, other.average.adoptions) == (1, 1)


def test_a_group_that_has_used_nothing_since_has_nothing_to_contribute(pair: Pair) -> None:
    one, other = pair.groups
    one.settle(INTERVAL)
    pair.root.on_turn()
    other.settle(0)
    pair.root.on_turn()
    assert other.average.contributed == 0
    assert pair.line.rejected.count == 0


@in_step
def test_in_step_a_group_waits_for_its_average_and_contributes_by_the_interval_alone(pair: Pair) -> None:
    one, other = pair.groups
    assert not one.settle(INTERVAL)
    pair.root.on_turn()
    assert other.settle(INTERVAL - 1)
    assert not one.settle(0)
    assert not other.settle(1)
    pair.root.on_turn()
    assert one.settle(0)
    assert other.settle(0)
    assert one.parameters.tobytes() == other.parameters.tobytes()


@in_step
def test_in_step_a_group_waits_so_long_and_trains_on_until_its_average_comes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 500.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    one, other = pair.groups
    one.parameters, other.parameters = 0.0, 4.0
    assert not one.settle(INTERVAL)
    now += WAIT_S - 1
    assert not one.settle(0)
    now += 1
    assert one.settle(0)
    pair.root.on_turn()
    one.parameters = 1.0
    assert one.settle(INTERVAL), "what it has contributed is still on its way, and it has waited for that"
    assert not other.settle(INTERVAL)
    pair.root.on_turn()
    assert not one.settle(0), "what is due now is waited for anew"
    assert (one.average.contributed, one.average.adoptions) == (2, 1)
    assert one.parameters == pytest.approx(3.0), "the average, and what was learned meanwhile"
    assert other.settle(0)
    assert other.parameters == pytest.approx(2.0)


@in_step
def test_in_step_a_group_that_cannot_contribute_waits_no_longer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 500.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    one, _ = pair.groups
    monkeypatch.setattr(pair.line.learners[0], "loan", lambda *_: FULL)
    assert not one.settle(INTERVAL)
    now += WAIT_S
    assert one.settle(0)
    assert one.average.contributed == 0


def test_where_nothing_was_learned_meanwhile_the_average_is_adopted_bit_by_bit(pair: Pair) -> None:
    rng = np.random.default_rng(3)
    for group in pair.groups:
        group.parameters = rng.standard_normal(len(group.parameters)).astype(np.float32)
        group.settle(INTERVAL)
    pair.root.on_turn()
    average = pair.line.latest()
    assert average is not None
    pair.groups[0].settle(0)
    assert pair.groups[0].parameters.tobytes() == average.values.tobytes()


def test_a_late_group_adopts_the_newest_average_that_it_is_part_of(pair: Pair) -> None:
    one, other = pair.groups
    one.parameters, other.parameters = 0.0, 4.0
    one.settle(INTERVAL)
    other.settle(INTERVAL)
    pair.root.on_turn()
    one.settle(0)
    one.parameters = 8.0
    one.settle(INTERVAL)
    pair.root.on_turn()
    other.settle(0)
    assert other.parameters == pytest.approx(2.0), "the last average, though a further round is open"


@pytest.mark.parametrize("pair", [{"moments": True}], indirect=True)
def test_moments_are_replaced_by_their_average_and_stay_where_the_optimizer_has_them(pair: Pair) -> None:
    for group, value in zip(pair.groups, (1.0, 3.0), strict=True):
        for moment in group.embryo.averaged_state():
            moment.fill_(value)
        group.settle(INTERVAL)
    for moment in pair.groups[0].embryo.averaged_state():
        moment.fill_(50.0)
    pair.root.on_turn()
    for group in pair.groups:
        group.settle(1)
        for moment in group.embryo.averaged_state():
            assert torch.equal(moment, torch.full_like(moment, 2.0))


def test_moments_stay_a_groups_own_unless_they_are_averaged(pair: Pair) -> None:
    one, other = pair.groups
    for moment in one.embryo.averaged_state():
        moment.fill_(5.0)
    one.settle(INTERVAL)
    other.settle(INTERVAL)
    pair.root.on_turn()
    one.settle(1)
    assert all(torch.equal(moment, torch.full_like(moment, 5.0)) for moment in one.embryo.averaged_state())


def test_parameters_that_are_not_finite_spoil_no_other_group(pair: Pair) -> None:
    one, other = pair.groups
    one.parameters, other.parameters = float("nan"), 4.0
    one.settle(INTERVAL)
    pair.root.on_turn()
    other.settle(INTERVAL)
    pair.root.on_turn()
    assert len(pair.line.events) == 1
    one.settle(0)
    assert one.average.adoptions == 0
    one.parameters = 2.0
    one.settle(INTERVAL)
    pair.root.on_turn()
    for group in pair.groups:
        group.settle(0)
        assert group.parameters == pytest.approx(3.0)


def test_an_average_of_another_job_is_an_error(pair: Pair) -> None:
    line = pair.line
    average = Average(memoryview(bytearray(average_layout(line.values, 2).nbytes)), 2)
    average.fill_header(JOB + 1, 1, 2, is_open=False, taken=[1, 1])
    line.root.publish("average", average.memory, 1)
    with pytest.raises(AverageError, match="its job is"):
        pair.groups[0].settle(1)


@pytest.mark.parametrize("pair", [{"hidden": 100_000}], indirect=True)
def test_a_round_takes_no_memory_of_the_size_of_the_parameters(pair: Pair) -> None:
    count = pair.groups[0].embryo.model.parameter_count
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        for group in pair.groups:
            group.settle(INTERVAL)
        pair.root.on_turn()
        for group in pair.groups:
            group.settle(1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < count
    assert pair.groups[0].average.adoptions == 3
