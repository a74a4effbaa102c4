"""The learner: takes rollouts, updates the policy one minibatch a turn, publishes, keeps checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tianji_algos.core import Embryo
from tianji_cli.data.checkpoint import CheckpointWriter, TrainingState
from tianji_cli.data.episodes import Episodes, ended_returns
from tianji_cli.data.progress import Progress, StopRule
from tianji_cli.data.rollout import RolloutStore, StoredFragment
from tianji_cli.data.staleness import Staleness
from tianji_cli.roles.role import Role, Trigger
from tianji_transports.core import Transport


@dataclass(frozen=True)
class LearnerDuties:
    """When a learner stops and when it saves.

    Attributes:
        stop: what ends training.
        checkpoint_every_s: seconds between two checkpoints.
    """

    stop: StopRule
    checkpoint_every_s: float


class Learner(Role):
    """Updates the policy on rollouts from the store beside it.

    Args:
        embryo: the update rule.
        store: where rollouts come from.
        transport: the endpoint of this process.
        slot: the latest-value slot for parameters.
        duties: when to stop and save.
        checkpoints: where to save.
        progress: what an earlier session had reached.
        episodes: returns and thresholds.
    """

    name = "learner"

    def __init__(
        self,
        embryo: Embryo,
        store: RolloutStore,
        transport: Transport,
        slot: str,
        *,
        duties: LearnerDuties,
        checkpoints: CheckpointWriter,
        progress: Progress,
        episodes: Episodes,
    ) -> None:
        self._embryo = embryo
        self._store = store
        self._transport = transport
        self._slot = slot
        self._duties = duties
        self._checkpoints = checkpoints
        self._progress = progress
        self._episodes = episodes
        self._staleness = Staleness()
        self._parameters = np.zeros(embryo.model.parameter_count, np.float32)
        earlier_best = None if episodes.best_mean is None else checkpoints.best_parameters()
        self._best_parameters: np.ndarray[Any, np.dtype[np.float32]] | None = earlier_best
        self._minibatches: Iterator[Any] | None = None
        self._rollout: list[StoredFragment] = []
        self._round_is_done = False
        self._winding_down = False
        self._finished: str | None = None
        self._started_ns: int | None = None
        self._earlier_train_s = progress.train_s
        self._saved_at = time.monotonic()
        self._session_consumed = -progress.consumed
        self.save()
        self._publish()

    @property
    def triggers(self) -> Sequence[Trigger]:
        """Publish after each round of updates; save when it is time."""
        return (
            Trigger(when=self.round_is_done, do=self.publish_policy),
            Trigger(when=self.checkpoint_is_due, do=self.save),
        )

    @property
    def finished(self) -> str | None:
        """The stop rule that holds, once one does."""
        return self._finished

    def turn(self) -> bool:
        """Make one gradient update; begin with the next rollout when the last is used up."""
        if self._winding_down:
            return self._count_remaining()
        if self._finished is not None:
            return False
        if self._minibatches is None and not self._begin_round():
            return False
        assert self._minibatches is not None
        minibatch = next(self._minibatches, None)
        self._release_rollout()
        if minibatch is None:
            self._minibatches = None
            self._round_is_done = True
            return True
        self._progress.consumed += self._embryo.update(minibatch)
        self._progress.updates += 1
        return True

    def round_is_done(self) -> bool:
        """All minibatches of a rollout were used."""
        return self._round_is_done

    def publish_policy(self) -> bool:
        """Replace the policy that actors find by the new one."""
        self._round_is_done = False
        self._progress.version += 1
        self._publish()
        return True

    def checkpoint_is_due(self) -> bool:
        """``checkpoint_every_s`` have passed since the last one."""
        return time.monotonic() - self._saved_at >= self._duties.checkpoint_every_s

    def save(self) -> bool:
        """Write a checkpoint: all that a resumed run needs, and the best policy so far."""
        tensors, rest = self._embryo.state()
        self._embryo.model.write_parameters(self._parameters)
        self._checkpoints.write(
            TrainingState(
                parameters=self._parameters,
                best_parameters=self._best_parameters,
                tensors=tensors,
                rest=rest,
                progress=asdict(self._progress),
                episodes=self._episodes.state(),
            )
        )
        self._saved_at = time.monotonic()
        return True

    def wind_down(self) -> None:
        """Make no more updates; the episodes in what is still received are counted."""
        self._winding_down = True
        self._minibatches = None
        self._release_rollout()

    def stop(self) -> None:
        """Count what was received last, and save."""
        self._count_remaining()
        self.save()

    def report(self) -> dict[str, Any]:
        """Counters, returns, lag and losses."""
        episodes, lag = self._episodes, self._staleness.summary()
        return {
            **asdict(self._progress),
            "session_train_s": self._progress.train_s - self._earlier_train_s,
            "session_consumed": self._session_consumed + self._progress.consumed,
            "rho": self._embryo.uses_per_sample,
            "episodes": episodes.count,
            "episodes_in_mean": episodes.in_mean,
            "mean_100": episodes.mean,
            "best_mean_100": episodes.best_mean,
            "time_to": [[threshold, seconds] for threshold, seconds in episodes.time_to.items()],
            "lag": None if lag is None else asdict(lag),
            "losses": self._embryo.metrics(),
        }

    def _begin_round(self) -> bool:
        rollout = self._store.rollout()
        if rollout is None:
            return False
        self._rollout = rollout
        self._record(rollout)
        self._finished = self._duties.stop.reached(self._progress, self._episodes)
        if self._finished is not None:
            self._release_rollout()
            return False
        self._embryo.schedule(self._progress.env_steps)
        for stored in rollout:
            self._staleness.record(self._progress.version - stored.version, stored.samples)
        self._minibatches = self._embryo.minibatches([stored.fields for stored in rollout])
        return True

    def _count_remaining(self) -> bool:
        remaining = self._store.remaining()
        self._record(remaining)
        self._store.release(remaining)
        return bool(remaining)

    def _release_rollout(self) -> None:
        """Once a first minibatch was made, everything needed of the fragments is copied."""
        if self._rollout:
            self._store.release(self._rollout)
            self._rollout = []

    def _record(self, rollout: Sequence[StoredFragment]) -> None:
        """Count steps and episodes in the order of the rollout, so that a run in step repeats itself."""
        if not rollout:
            return
        if self._started_ns is None:
            self._started_ns = min(stored.started_ns for stored in rollout)
        self._progress.train_s = self._earlier_train_s + (time.monotonic_ns() - self._started_ns) / 1e9
        for stored in rollout:
            fields = stored.fields
            self._progress.env_steps += stored.samples
            returns = ended_returns(fields["episode_return"], fields["terminated"], fields["truncated"])
            improved = self._episodes.record(returns, self._progress.train_s)
            if improved:
                self._best_parameters = self._parameters.copy()

    def _publish(self) -> None:
        self._embryo.model.write_parameters(self._parameters)
        self._transport.publish(self._slot, self._parameters.data.cast("B"), self._progress.version)
        self._store.advance(self._progress.version)
