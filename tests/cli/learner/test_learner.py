import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cli.conftest import let_work

from tianji_algos import registry as algorithms
from tianji_algos.core import RolloutEmbryo
from tianji_algos.device import Snapshot
from tianji_algos.errors import AlgorithmError, DivergedError
from tianji_algos.ppo.settings import PPOSettings
from tianji_cli.config.schema import Stop
from tianji_cli.files.checkpoint import CheckpointWriter, load_parameters, load_training
from tianji_cli.files.saved import CheckpointError, Progress
from tianji_cli.roles.buffer.buffer import Buffer
from tianji_cli.roles.buffer.rollout import RolloutStore
from tianji_cli.roles.learner.data_source import RolloutSource
from tianji_cli.roles.learner.learner import Episodes, Learner, Publisher
from tianji_cli.roles.role import run_in_turns
from tianji_cli.root.accounting import reconcile
from tianji_cli.wire.fragment import FragmentStats
from tianji_cli.wire.parameters import PublishedPolicy

Work = Callable[..., bool]
PER_ROLLOUT, EPOCHS, MINIBATCH = 4, 2, 32
SETTINGS = PPOSettings(rollout_steps=128, minibatch_size=MINIBATCH, epochs=EPOCHS)


class Training:
    """A learner with its store and buffer, fed by the stage's actor."""

    def __init__(
        self,
        stage: Any,
        directory: Path,
        stop: Stop,
        *,
        checkpoint_every_s: float = 1e9,
        window: int = 2,
        in_step: bool = False,
        progress: Progress | None = None,
        episodes: Episodes | None = None,
    ) -> None:
        self.stage = stage
        self.embryo: RolloutEmbryo = algorithms.load("embryo", "ppo")(stage.spaces, stage.model, SETTINGS, 1)
        self.store = RolloutStore(
            stage.layout, 5, {1: (0,)}, per_rollout=PER_ROLLOUT, window=window, lends=True, in_step=in_step
        )
        self.buffer = Buffer(stage.receiver, "fragments", self.store)
        self.progress = progress or Progress()
        self.episodes = episodes or Episodes()
        self.checkpoints = directory / "checkpoints"
        self.learner = Learner(
            self.embryo,
            RolloutSource(self.embryo, self.store),
            stage.receiver,
            Publisher(stage.model, stage.receiver, "policy"),
            stop=stop,
            checkpoint_every_s=checkpoint_every_s,
            checkpoints=CheckpointWriter(self.checkpoints, stage.model, keep=2),
            progress=self.progress,
            episodes=self.episodes,
        )

    def published(self) -> tuple[int, npt.NDArray[np.float32]]:
        """The version and the parameters that actors find."""
        claim = self.stage.sender.latest("policy")
        version, parameters = claim.version, PublishedPolicy(claim.view()).parameters.copy()
        claim.release()
        return version, parameters

    def advance(self, actor_turns: int = 1, learner_turns: int = 1) -> None:
        """Let actor, buffer and learner work, one after the other."""
        let_work(self.stage.actor, actor_turns)
        let_work(self.buffer)
        let_work(self.learner, learner_turns)

    def run(self) -> None:
        """Let all roles take turns until the learner is done, then stop them in order."""
        roles = [self.stage.actor, self.buffer, self.learner]

        class UntilFinished:
            def handle(_) -> bool:  # noqa: N805 - the training is ``self``
                return self.learner.finished is None

        run_in_turns(roles, UntilFinished(), lambda _seconds: pytest.fail("all roles sleep"))
        for role in roles:
            role.wind_down()
        for role in roles:
            role.stop()


@pytest.fixture
def begin(stage: Callable[..., Any], tmp_path: Path) -> Callable[..., Training]:
    def begin_training(stop: Stop, window: int = 2, *, in_step: bool = False, **options: Any) -> Training:
        slots, share = RolloutStore.slots_needed(PER_ROLLOUT, window), PER_ROLLOUT if in_step else None
        one = stage(steps=8, num_envs=4, window=window, per_version=share, borrow=slots)
        return Training(one, tmp_path, stop, window=window, in_step=in_step, **options)

    return begin_training


def test_a_network_that_begins_with_numbers_that_are_not_finite_blames_no_training(
    stage: Callable[..., Any], tmp_path: Path
) -> None:
    one = stage(steps=8, window=2, borrow=RolloutStore.slots_needed(PER_ROLLOUT, 2))
    name, first = next(one.model.named_parameters())
    first.data.fill_(math.inf)
    with pytest.raises(CheckpointError, match=f"'{name}' has .* not finite: the network begins"):
        Training(one, tmp_path, Stop(env_steps=1))


def test_a_version_that_is_not_finite_names_what_is_not(stage: Callable[..., Any]) -> None:
    one = stage()
    model = one.build(1)
    model.register_buffer("window", torch.tensor([-math.inf, 0.0]))
    with pytest.raises(DivergedError, match="'window' of version 3 of the policy has numbers"):
        Publisher(model, one.receiver, "policy").begin(3, 0)


@pytest.mark.parametrize("in_step", [False, True], ids=["async", "sync"])
def test_training_ends_when_the_stop_rule_holds_and_every_sample_is_accounted_for(
    begin: Callable[..., Training], in_step: bool
) -> None:
    one = begin(Stop(env_steps=3000), in_step=in_step)
    one.run()
    assert one.learner.finished is not None
    assert one.learner.finished.endswith("environment steps")
    account = reconcile({(0, 0): one.stage.file.read(0)}, one.store.validator.receptions, set())
    assert account.unaccounted == 0
    assert account.received == one.progress.env_steps >= 3000
    assert (account.lost, account.in_flight) == (0, 0)
    assert one.progress.consumed % EPOCHS == 0
    assert one.progress.consumed < EPOCHS * account.received


@pytest.mark.parametrize("in_step", [False, True], ids=["async", "sync"])
def test_a_rollout_that_the_update_rule_refuses_is_counted_and_holds_up_no_one(
    begin: Callable[..., Training], monkeypatch: pytest.MonkeyPatch, in_step: bool
) -> None:
    one = begin(Stop(env_steps=3000), in_step=in_step)
    assert one.learner.own_report().refused is None
    asked: list[int] = []

    def ready(rollout: Any) -> bool:
        asked.append(sum(int(np.count_nonzero(fields["mask"])) for fields in rollout))
        return len(asked) % 2 == 0

    monkeypatch.setattr(one.embryo, "ready", ready)
    one.run()
    account = reconcile({(0, 0): one.stage.file.read(0)}, one.store.validator.receptions, set())
    assert account.unaccounted == 0
    assert account.received == one.progress.env_steps >= 3000
    refused = sum(asked[::2])
    assert one.learner.own_report().refused == refused > 0
    assert one.progress.consumed <= EPOCHS * (account.received - refused)
    assert one.progress.updates > 0
    assert one.progress.version >= len(asked) - 2


def test_an_update_rule_that_wants_a_checkpoint_gets_one_after_that_update(
    begin: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = begin(Stop(env_steps=3000))
    written: list[int] = []
    save = one.learner.save

    def noted() -> bool:
        written.append(one.progress.updates)
        return save()

    monkeypatch.setattr(one.learner, "save", noted)
    monkeypatch.setattr(one.embryo, "wants_checkpoint", lambda: one.progress.updates in {3, 7})
    one.run()
    assert written == [3, 7, one.progress.updates]


def test_every_round_of_updates_publishes_the_next_version(begin: Callable[..., Training]) -> None:
    one = begin(Stop(env_steps=10**9))
    assert one.published()[0] == 0
    seen = [one.published()]
    while len(seen) < 6:
        one.advance()
        now = one.published()
        if now[0] != seen[-1][0]:
            seen.append(now)
    assert [version for version, _ in seen] == list(range(6))
    for (_, before), (_, after) in itertools.pairwise(seen):
        assert not np.array_equal(before, after)
    assert one.progress.version == 5
    assert one.stage.receiver.counters.publishes == 6


def test_a_turn_is_one_minibatch(begin: Callable[..., Training], work: Work) -> None:
    one = begin(Stop(env_steps=10**9), window=PER_ROLLOUT)
    work(one.stage.actor, 100)
    work(one.buffer)
    samples = one.store.validator.receptions[0, 0].samples
    minibatches = EPOCHS * round(samples / MINIBATCH)
    for update in range(minibatches):
        assert one.learner.turn()
        assert one.progress.updates == update + 1
        assert abs(one.progress.consumed - (update + 1) * MINIBATCH) <= 2 * (update + 1)
    assert not one.learner.round_is_done()
    assert one.learner.turn()
    assert one.learner.round_is_done()
    assert (one.progress.updates, one.progress.consumed) == (minibatches, EPOCHS * samples)
    assert not work(one.learner, 2)


def test_fragments_are_released_once_a_round_has_begun(begin: Callable[..., Training]) -> None:
    one = begin(Stop(env_steps=10**9), window=PER_ROLLOUT)
    for _ in range(20):
        one.advance(100, 30)
    assert one.progress.version > 10, "a claim kept back would have used the loans up"


@pytest.mark.parametrize("rule", [Stop(env_steps=10**9), Stop(env_steps=200)], ids=["wound down", "reached"])
def test_fragments_that_come_after_the_end_add_no_time_of_training(
    begin: Callable[..., Training], rule: Stop
) -> None:
    one = begin(rule, window=PER_ROLLOUT)

    def train() -> tuple[int, float]:
        one.advance(100, 30)
        return one.progress.env_steps, one.progress.train_s

    first, trained = train(), train()
    one.buffer.wind_down()
    one.learner.wind_down()
    ended_s = one.progress.train_s
    received = train()
    assert (ended_s == trained[1]) == (one.learner.finished is not None) == (rule.env_steps == 200)
    assert 0 < first[0] < trained[0] < received[0]
    assert 0 < first[1] < trained[1] <= ended_s == received[1]


def test_winding_down_counts_whatever_still_comes_and_updates_no_more(begin: Callable[..., Training]) -> None:
    one = begin(Stop(env_steps=10**9))
    one.buffer.wind_down()
    one.learner.wind_down()
    for _ in range(30):
        one.advance(8)
    for role in (one.stage.actor, one.buffer, one.learner):
        role.stop()
    account = reconcile({(0, 0): one.stage.file.read(0)}, one.store.validator.receptions, set())
    assert account.received == one.progress.env_steps == account.produced - account.dropped > 500
    assert account.unaccounted == 0
    assert one.episodes.count > 0
    assert (one.progress.updates, one.progress.version) == (0, 0)


def test_lag_is_counted_in_versions_when_samples_are_used(begin: Callable[..., Training], work: Work) -> None:
    one = begin(Stop(env_steps=10**9), window=2 * PER_ROLLOUT)
    assert one.learner.report().lag is None
    work(one.stage.actor, 8 * 2 * PER_ROLLOUT + 10)
    counts = []
    for _ in range(2):
        received = one.progress.env_steps
        while not one.learner.round_is_done():
            work(one.buffer)
            one.learner.turn()
        one.learner.publish_policy()
        counts.append(one.progress.env_steps - received)
    lag = one.learner.report().lag
    assert lag.mean == pytest.approx(counts[1] / sum(counts))
    assert lag.max == 1.0


def test_in_step_nothing_is_ever_stale(begin: Callable[..., Training]) -> None:
    one = begin(Stop(env_steps=1500), in_step=True)
    one.run()
    assert one.learner.report().lag.max == 0.0


def test_the_policy_with_the_best_mean_is_kept(begin: Callable[..., Training]) -> None:
    one = begin(Stop(env_steps=10**9))
    best = None
    while one.progress.version < 60 or best is None:
        before = one.episodes.best_mean
        _, parameters = one.published()
        one.advance()
        if one.episodes.best_mean != before:
            best = parameters
    for role in (one.stage.actor, one.learner):
        role.stop()
    saved = load_parameters(one.checkpoints / "best", one.stage.model)
    np.testing.assert_array_equal(saved, best)
    last = load_parameters(one.checkpoints / "last", one.stage.model)
    assert not np.array_equal(saved, last)


def test_a_resumed_run_keeps_the_best_policy_of_the_session_before(begin: Callable[..., Training]) -> None:
    first = begin(Stop(env_steps=1))
    best = np.full_like(first.published()[1], 7)
    first.episodes.best_mean = 400.0
    first.learner._best_parameters = best
    first.learner.save()
    _, document = load_training(first.checkpoints / "last")
    episodes = Episodes()
    episodes.load_state(document["episodes"])
    resumed = begin(Stop(env_steps=1), progress=Progress(**document["progress"]), episodes=episodes)
    resumed.learner.stop()
    np.testing.assert_array_equal(load_parameters(resumed.checkpoints / "best", resumed.stage.model), best)
    assert not np.array_equal(load_parameters(resumed.checkpoints / "last", resumed.stage.model), best)


def test_the_best_policy_is_one_that_was_published_even_if_a_checkpoint_came_between(
    begin: Callable[..., Training], work: Work
) -> None:
    one = begin(Stop(env_steps=10**9))
    while not one.progress.updates:
        work(one.stage.actor)
        work(one.buffer)
        one.learner.turn()
    one.learner.save()
    one.learner._record([FragmentStats(samples=100, started_ns=0, returns=[500.0] * 100)])
    one.learner.save()
    saved = load_parameters(one.checkpoints / "best", one.stage.model)
    np.testing.assert_array_equal(saved, one.published()[1])
    assert saved.tolist() != _parameters_of(one)


def test_a_version_that_was_published_after_the_last_checkpoint_is_saved_when_the_learner_stops(
    begin: Callable[..., Training], work: Work
) -> None:
    one = begin(Stop(env_steps=10**9), window=PER_ROLLOUT)
    work(one.stage.actor, 100)
    work(one.buffer)
    while not one.learner.round_is_done():
        one.learner.turn()
    one.learner.save()
    env_steps = one.progress.env_steps
    one.learner.publish_policy()
    one.learner.stop()
    assert one.progress.env_steps == env_steps, "nothing else was new"
    assert load_training(one.checkpoints / "last")[1]["progress"]["version"] == 1


def test_metrics_of_an_update_rule_are_sent_as_floats(
    begin: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = begin(Stop(env_steps=100))
    metrics = {"loss": np.float32(0.5), "clipped": 3, "entropy": None}
    monkeypatch.setattr(one.embryo, "metrics", lambda: metrics)
    losses = one.learner.report().losses
    assert {name: type(loss) for name, loss in losses.items()} == dict.fromkeys(metrics, float)
    assert (losses["loss"], losses["clipped"]) == (0.5, 3.0)
    assert math.isnan(losses["entropy"])


@pytest.mark.parametrize("loss", ["0.5", torch.zeros(1), [0.5]], ids=["text", "tensor", "list"])
def test_a_metric_that_is_no_number_is_an_error_that_names_update_rule_and_metric(
    begin: Callable[..., Training], monkeypatch: pytest.MonkeyPatch, loss: Any
) -> None:
    one = begin(Stop(env_steps=100))
    monkeypatch.setattr(one.embryo, "metrics", lambda: {"entropy": 0.1, "loss": loss})
    with pytest.raises(AlgorithmError, match=r"PPOEmbryo\.metrics\(\) says 'loss' as .* a number is wanted"):
        one.learner.checked_report()
    assert one.learner.own_report().version == 0


class SlowSnapshot(Snapshot):
    """Parameters that are on their way until they are waited for, as from a GPU."""

    taken: torch.Tensor | None = None

    def take(self) -> None:
        self.taken = self._model.flat_parameters()

    @property
    def is_there(self) -> bool:
        return self.taken is None

    def wait(self) -> None:
        if self.taken is not None:
            self._parameters.copy_(self.taken)
            self.taken = None


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tianji_cli.roles.learner.learner.Snapshot", SlowSnapshot)


def _parameters_of(one: Training) -> list[float]:
    own: list[float] = one.stage.model.flat_parameters().tolist()
    return own


@pytest.mark.usefixtures("slowly")
def test_training_goes_on_while_parameters_are_on_their_way(
    begin: Callable[..., Training], work: Work
) -> None:
    one = begin(Stop(env_steps=10**9), window=2 * PER_ROLLOUT)
    assert not work(one.learner, 2), "nothing to do, and nothing under way"
    assert one.published()[0] == 0
    work(one.stage.actor, 8 * 2 * PER_ROLLOUT + 10)
    while not one.learner.round_is_done():
        work(one.buffer)
        one.learner.turn()
    at_the_end_of_the_round = _parameters_of(one)
    one.learner.publish_policy()
    updates = one.progress.updates
    while one.progress.updates < updates + 3:
        work(one.buffer)
        one.learner._work()  # As a turn, but for the wait that an idle one ends with.
    assert _parameters_of(one) != at_the_end_of_the_round
    one.learner.save()
    last = load_parameters(one.checkpoints / "last", one.stage.model)
    assert last.tolist() == _parameters_of(one)
    assert one.published()[0] == 0
    assert not one.learner._publisher.is_due()
    one.learner._publisher._snapshot.wait()
    assert one.learner._publisher.is_due()
    assert one.learner._publisher.finish()
    version, parameters = one.published()
    assert version == 1
    assert parameters.tolist() == at_the_end_of_the_round


@pytest.mark.usefixtures("slowly")
def test_versions_that_are_slow_to_come_are_published_in_order_and_none_is_left_out(
    begin: Callable[..., Training],
) -> None:
    one = begin(Stop(env_steps=10**9), window=2 * PER_ROLLOUT)
    seen: dict[int, list[float]] = {}
    while one.progress.version < 5:
        one.advance()
        version, parameters = one.published()
        seen.setdefault(version, parameters.tolist())
    one.learner.stop()
    version, parameters = one.published()
    seen.setdefault(version, parameters.tolist())
    assert list(seen) == list(range(6)), "the last is published when the learner stops"
    assert one.stage.receiver.counters.publishes == 6
    np.testing.assert_array_equal(
        load_parameters(one.checkpoints / "last", one.stage.model), _parameters_of(one)
    )


@pytest.mark.usefixtures("slowly")
def test_in_step_nobody_waits_for_parameters_for_ever(begin: Callable[..., Training]) -> None:
    one = begin(Stop(env_steps=1500), in_step=True)
    one.run()
    assert one.learner.report().lag.max == 0.0
    assert one.published()[0] == one.progress.version > 5
