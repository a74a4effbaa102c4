"""Learners of a group over real endpoints and connections: what they learn together, and what parts them."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.learner.learner_crew import BATCH, DQN, Crew

from tianji_cli.config.edges import HEADERS, SHARDS
from tianji_cli.files.checkpoint import load_parameters
from tianji_cli.roles.learner.parallel import all_reduce as lockstep_module
from tianji_cli.roles.learner.parallel.all_reduce import DivergedLearnersError, LostPeerError

engines = pytest.mark.parametrize("engine", ["shm", "zmq"])


def check_same(crew: Crew) -> None:
    """All learners have the same bits."""
    moments = torch.cat(list(crew.embryos[0].averaged_state())).numpy()
    for followed in crew.followed.values():
        np.testing.assert_array_equal(followed.parameters, crew.parameters(0))
        np.testing.assert_array_equal(followed.moments, moments)


def train(crew: Crew, updates: int = 6) -> Crew:
    crew.run(lambda crew: crew.lead(updates))
    return crew


@engines
@pytest.mark.parametrize("learners", [2, 3])
def test_learners_on_shares_of_rollouts_learn_what_one_would_from_all(
    tmp_path: Path, engine: str, learners: int
) -> None:
    alone = train(Crew("ppo", 1, tmp_path / "alone", engine="shm"))
    together = train(Crew("ppo", learners, tmp_path / "together", engine=engine))
    assert len(together.followed) == learners - 1
    check_same(together)
    assert (together.progress.consumed, together.progress.updates) == (
        alone.progress.consumed,
        alone.progress.updates,
    )
    np.testing.assert_allclose(together.parameters(0), alone.parameters(0), rtol=1e-3, atol=1e-4)


@engines
@pytest.mark.parametrize("sampler", ["uniform", "prioritised"])
def test_learners_on_shards_of_batches_learn_what_one_would_from_all(
    tmp_path: Path, engine: str, sampler: str
) -> None:
    buffer = {"sampler": sampler} | ({"priority_updates": "sync"} if sampler == "prioritised" else {})
    alone = train(Crew("dqn", 1, tmp_path / "alone", engine="shm", **buffer), 12)
    together = train(Crew("dqn", 2, tmp_path / "together", engine=engine, **buffer), 12)
    check_same(together)
    assert together.progress.consumed == BATCH * together.progress.updates
    # Elsewhere a fragment may arrive while the learner waits, and change what is drawn.
    if (engine, sampler) == ("shm", "uniform"):
        assert together.progress.updates == alone.progress.updates
        np.testing.assert_allclose(together.parameters(0), alone.parameters(0), rtol=1e-3, atol=1e-4)
    assert together.followed[1].report.updates == together.progress.updates
    assert together.followed[1].report.version == together.progress.version


def test_the_learner_alone_refuses_a_rollout_and_its_followers_go_on_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = Crew("ppo", 2, tmp_path)
    asked = itertools.count()
    monkeypatch.setattr(crew.embryos[0], "ready", lambda _rollout: next(asked) % 2 == 1)
    train(crew, 8)
    check_same(crew)
    assert crew.learner.own_report().refused
    assert 0 < crew.progress.updates == crew.followed[1].report.updates < crew.progress.version


def test_a_learner_that_winds_down_leaves_in_the_middle_of_a_round_and_its_followers_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockstep_module, "PEER_NOTICE_LIMIT_S", 0.0)
    crew = Crew("ppo", 3, tmp_path)

    def lead(crew: Crew) -> None:
        crew.work(lambda: crew.progress.updates == 1)
        assert not crew.learner.round_is_done()
        crew.stop()
        assert crew.progress.updates == 1

    def follow(crew: Crew) -> None:
        crew.follower.wind_down()
        while crew.all_reduce.lost is None:
            crew.follower.turn()
        assert not crew.follower.turn()

    crew.run(lead, follow)
    assert [followed.report.updates for followed in crew.followed.values()] == [1, 1]
    check_same(crew)
    saved = load_parameters(tmp_path / "checkpoints/last", crew.embryos[0].model)
    np.testing.assert_array_equal(saved, crew.parameters(0))


@pytest.mark.parametrize("rule", ["ppo", "dqn"])
def test_a_lost_follower_ends_updates_and_nothing_else_until_nobody_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    crew = Crew(rule, 2, tmp_path)

    def lead(crew: Crew) -> None:
        crew.work(lambda: crew.all_reduce.lost is not None)
        updates, received = crew.progress.updates, crew.progress.env_steps
        parameters = crew.parameters(0)
        for _ in range(20):
            crew.send()
            crew.buffer.turn()
            for trigger in crew.learner.triggers:
                if trigger.when():
                    assert not trigger.do()
            crew.learner.turn()
        assert crew.progress.updates == updates >= 2
        np.testing.assert_array_equal(crew.parameters(0), parameters)
        monkeypatch.setattr(lockstep_module, "PEER_NOTICE_LIMIT_S", 0.0)
        with pytest.raises(LostPeerError, match="learner 0 of the group has lost another"):
            crew.learner.turn()
        crew.stop()
        assert crew.progress.env_steps >= received

    def follow(crew: Crew) -> None:
        follower = crew.follower
        while follower.report().updates < 2:
            follower.turn()
        follower.close()

    crew.run(lead, follow)
    assert (tmp_path / "checkpoints/last/model.safetensors").is_file()


def test_a_learner_that_fails_leaves_followers_that_wait_to_be_told(tmp_path: Path) -> None:
    crew = Crew("ppo", 3, tmp_path)

    def lead(crew: Crew) -> None:
        crew.work(lambda: crew.progress.updates == 2)
        crew.learner.close()
        crew.done.wait(0.2)

    def follow(crew: Crew) -> None:
        while not crew.done.is_set():
            crew.follower.turn()
        assert not crew.follower.turn()

    crew.run(lead, follow)


def test_a_follower_with_other_parameters_is_found_out_at_the_next_version(tmp_path: Path) -> None:
    crew = Crew("ppo", 2, tmp_path)

    def follow(crew: Crew) -> None:
        follower = crew.follower
        while follower.report().version < 2:
            follower.turn()
        with torch.no_grad():
            next(crew.embryos[1].model.parameters()).view(-1)[0] += 1e-6
        with pytest.raises(DivergedLearnersError) as raised:
            crew.follow()
        assert "learner 1 of 2" in str(raised.value)

    with pytest.raises(DivergedLearnersError, match=r"after version 3 of .* learner 1 of 2 not those of"):
        crew.run(lambda crew: crew.lead(100), follow)


def test_a_follower_that_begins_with_other_parameters_is_found_out_at_once(tmp_path: Path) -> None:
    crew = Crew("dqn", 2, tmp_path)
    with torch.no_grad():
        next(crew.embryos[1].model.parameters()).view(-1)[0] += 1.0
    with pytest.raises(DivergedLearnersError, match="after version 0"):
        train(crew)
    assert crew.progress.updates == 0


class MovingAverage:
    """An average over groups that comes at the second version, and makes the learner wait for the fourth."""

    def __init__(self) -> None:
        self.crew: Crew
        self.calls: list[int] = []
        self._adopted = False

    def settle(self, updates: int, _consumed: int) -> bool:
        self.calls.append(updates)
        if updates == 2:
            with torch.no_grad():
                for parameter in self.crew.embryos[0].model.parameters():
                    parameter.add_(0.5)
            self.crew.embryos[0].averaged_state()[0].fill_(0.25)
            self._adopted = True
        return updates != 4 or self.calls.count(4) > 3

    def take_adopted(self) -> bool:
        adopted, self._adopted = self._adopted, False
        return adopted


def test_followers_take_over_what_the_learner_has_adopted_from_other_groups(tmp_path: Path) -> None:
    average = MovingAverage()
    crew = average.crew = Crew("ppo", 3, tmp_path, average=average)
    train(crew, 6)
    check_same(crew)
    assert average.calls.count(4) == 4, "no update was made while it had to wait"
    without = train(Crew("ppo", 3, tmp_path / "without"))
    assert abs(crew.parameters(0) - without.parameters(0)).mean() > 0.2


@pytest.mark.parametrize(("rule", "channel"), [("ppo", HEADERS), ("dqn", SHARDS), ("dqn", HEADERS)])
def test_what_is_no_header_or_shard_is_refused_and_nothing_else_happens(
    tmp_path: Path, rule: str, channel: str
) -> None:
    crew = Crew(rule, 2, tmp_path)

    def lead(crew: Crew) -> None:
        crew.push(channel, bytes(16))
        crew.lead(3)

    crew.run(lead)
    check_same(crew)
    count, why = crew.followed[1].report.rejected["shards"]
    assert count == 1
    assert "16 bytes" in why


def test_every_shard_is_new_to_its_learner(tmp_path: Path) -> None:
    """No learner is sent what another learns from, and nothing is left out."""
    crew = Crew("ppo", 3, tmp_path)
    seen: list[float] = []
    for embryo in crew.embryos:
        original = embryo.minibatches  # type: ignore[attr-defined]

        def minibatches(fragments: Any, original: Any = original) -> Any:
            seen.extend(float(fragment["observation"][0, 0, 0]) for fragment in fragments)
            return original(fragments)

        embryo.minibatches = minibatches  # type: ignore[attr-defined]

    def follow(crew: Crew) -> list[float]:
        crew.follow()
        return seen

    crew.run(lambda crew: crew.lead(4), follow)
    everywhere = [*seen, *crew.followed[1].value, *crew.followed[2].value]
    assert len(everywhere) == len(set(everywhere)) == 6 * crew.progress.updates


def test_the_ratio_of_uses_is_that_of_one_learner(tmp_path: Path) -> None:
    crew = train(Crew("dqn", 2, tmp_path), 30)
    steps = crew.progress.env_steps - 64
    assert abs(crew.progress.consumed / DQN.replay_ratio - steps) <= 64
