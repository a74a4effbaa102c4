"""The learner: updates the policy on one batch a turn, publishes it, saves checkpoints, counts episodes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Real
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Embryo, Model
from tianji_algos.device import Snapshot
from tianji_algos.errors import AlgorithmError, DivergedError
from tianji_cli.config.schema import Stop
from tianji_cli.files.checkpoint import CheckpointWriter, TrainingState, named_tensors, not_finite
from tianji_cli.files.saved import Progress
from tianji_cli.roles.learner.data_source import DataSource
from tianji_cli.roles.learner.parallel.all_reduce import LostPeerError
from tianji_cli.roles.learner.parallel.group_average import GroupAverage
from tianji_cli.roles.learner.parallel.member import PopulationMember
from tianji_cli.roles.learner.parallel.scatter import Leader
from tianji_cli.roles.role import Role, Trigger
from tianji_cli.wire.fragment import FragmentStats
from tianji_cli.wire.parameters import POLICY_HEADER_BYTES, PublishedPolicy, are_finite
from tianji_cli.wire.reports import LearnerReport
from tianji_transports.core import Transport


class Publisher:
    """Publishes versions of the policy, each with the parameters at the time of ``begin``.

    On a CPU it publishes at once. Parameters on a GPU take a while to arrive, and training goes on meanwhile:
    the learner checks ``is_due`` and calls ``finish``.
    """

    def __init__(self, model: Model, transport: Transport, slot: str) -> None:
        self._model = model
        self._transport = transport
        self._slot = slot
        self._snapshot = Snapshot(model, POLICY_HEADER_BYTES)
        self._published = PublishedPolicy(self._snapshot.memory)
        self._begun: int | None = None

    @property
    def parameters(self) -> npt.NDArray[np.float32]:
        """Last published parameters ``[parameter_count]``, valid until the next ``begin``."""
        self.finish()
        return self._published.parameters

    def begin(self, version: int, env_steps: int) -> None:
        """Begin to publish the present parameters; actors schedule by the whole job's ``env_steps``."""
        self.finish()
        self._published.header["env_steps"] = env_steps
        self._snapshot.take()
        self._begun = version
        if self._snapshot.is_there:
            self.finish()

    def is_due(self) -> bool:
        """Whether a version was begun and its parameters have arrived."""
        return self._begun is not None and self._snapshot.is_there

    def finish(self) -> bool:
        """Publish the version that was begun, after a wait if necessary; return False if there is none.

        Raises:
            DivergedError: a parameter is not finite; nothing is published.
        """
        if self._begun is None:
            return False
        self._snapshot.wait()
        if not are_finite(self._published.parameters):
            broken = not_finite(named_tensors(self._model, self._published.parameters))
            raise DivergedError(
                f"{broken!r} of version {self._begun} of the policy has numbers that are not finite: "
                "training has diverged; a smaller learning_rate, or smaller rewards, would be right"
            )
        self._transport.publish(self._slot, self._published.memory, self._begun)
        self._begun = None
        return True


class Learner(Role):
    """Updates the policy on the batches of its data source.

    Args:
        stop: stop rules; the root checks time, and the steps of several groups.
        progress: counters of earlier sessions.
        episodes: returns and thresholds.
        begins_best: the saved best policy was judged otherwise, and is replaced in the first turn.
        average: the group's part in parameter averaging; None with one group or with a population.
        member: the group's part in a population; None without one.
        leader: leads the followers; None without any.
        groups: number of groups.
        job_env_steps: env steps of all groups in earlier sessions.
    """

    name = "learner"

    def __init__(  # noqa: PLR0913 - what a learner trains with, and what it may have to do with others
        self,
        embryo: Embryo,
        source: DataSource,
        transport: Transport,
        publisher: Publisher,
        *,
        stop: Stop,
        checkpoints: CheckpointWriter,
        checkpoint_every_s: float,
        progress: Progress,
        episodes: Episodes,
        begins_best: bool = False,
        average: GroupAverage | None = None,
        member: PopulationMember | None = None,
        leader: Leader | None = None,
        groups: int = 1,
        job_env_steps: int | None = None,
    ) -> None:
        self._embryo = embryo
        self._source = source
        self._transport = transport
        self._stop = stop
        self._checkpoints = checkpoints
        self._checkpoint_every_s = checkpoint_every_s
        self._progress = progress
        self._episodes = episodes
        self._average = average
        self._member = member
        self._leader = leader
        self.meeting = leader.meeting if leader is not None else ""
        self._groups = groups
        earlier = progress.env_steps if job_env_steps is None else job_env_steps
        self._before = earlier - progress.env_steps * groups
        self._publisher = publisher
        self._present = np.empty(embryo.model.parameter_count, np.float32)
        earlier_best = None if episodes.best_mean is None else checkpoints.best_parameters()
        self._best_parameters: np.ndarray[Any, np.dtype[np.float32]] | None = earlier_best
        self._winding_down = False
        self._wants_checkpoint = False
        self._finished: str | None = None
        self._started_ns: int | None = None
        self._earlier_train_s = progress.train_s
        self._saved_at = -math.inf if begins_best else time.monotonic()
        self._session_consumed = -progress.consumed
        self._saved = self._reached
        if not progress.sessions:
            self.save()  # Later sessions begin with the saved state.
        self._publish()

    @property
    def triggers(self) -> Sequence[Trigger]:
        """Publish after each round of updates, once the parameters have arrived; save when it is time."""
        return (
            Trigger(when=self._publisher.is_due, do=self._publisher.finish),
            Trigger(when=self.round_is_done, do=self.publish_policy),
            Trigger(when=self.checkpoint_is_due, do=self.save),
        )

    @property
    def finished(self) -> str | None:
        """The stop rule that holds, once one does."""
        return self._finished

    def turn(self) -> bool:
        """Count arrivals, and make one gradient update."""
        # Without other work the learner waits for the parameters: nothing would wake this process for them.
        return self._work() or self._publisher.finish()

    def _work(self) -> bool:
        arrivals = self._source.arrivals()
        if arrivals:
            self._record(arrivals)
        if self._is_over:
            return bool(arrivals)
        if arrivals:
            env_steps = self._progress.env_steps if self._groups == 1 else None
            self._finished = self._episodes.rule_reached(self._stop, env_steps)
            if self._finished is not None:
                return True
            if self._leader is None:
                self._embryo.schedule(self._job_env_steps)
        return self._learn() or bool(arrivals)

    def round_is_done(self) -> bool:
        """Whether it is time to publish the policy."""
        return self._source.round_is_done

    def publish_policy(self) -> bool:
        """Publish the new policy to the actors, once other learners and groups are ready."""
        progress = self._progress
        # A refused rollout leaves followers and other groups out: there was no update to agree on.
        if not (self._winding_down or self._source.round_was_refused or self._agrees()):
            return False
        progress.version += 1
        self._publish()
        return True

    def checkpoint_is_due(self) -> bool:
        """Whether the update rule wants one, or ``checkpoint_every_s`` have passed since the last."""
        return self._wants_checkpoint or time.monotonic() - self._saved_at >= self._checkpoint_every_s

    def save(self) -> bool:
        """Write a checkpoint: the state that a resumed run needs, and the best policy so far."""
        tensors, rest = self._embryo.state()
        self._embryo.model.write_parameters(self._present)
        state = TrainingState(
            parameters=self._present,
            best_parameters=self._best_parameters,
            tensors=tensors,
            rest=rest,
            progress=asdict(self._progress),
            episodes=self._episodes.state(),
            member={} if self._member is None else self._member.state(),
        )
        with self._transport.undisturbed():
            self._checkpoints.write(state)
        self._saved_at = time.monotonic()
        self._saved = self._reached
        self._wants_checkpoint = False
        return True

    def meet(self, place: str) -> None:
        """Connect with the followers."""
        if self._leader is not None:
            self._leader.meet(place)

    def wind_down(self) -> None:
        """Make no more updates, but go on counting the episodes of later fragments.

        Followers in the middle of a round notice, because the connections to this learner close.
        """
        if not self._winding_down:
            if not self._is_over:
                self._note_time()
            self._winding_down = True
            self._source.wind_down()
            if self._leader is not None:
                self._leader.wind_down()

    def stop(self) -> None:
        """Publish the version that was begun, count the last arrivals, and save unless nothing is new."""
        self.wind_down()
        self._publisher.finish()
        self._record(self._source.arrivals())
        if self._saved != self._reached:
            self.save()

    def report(self) -> LearnerReport:
        """Report counters, returns, losses, and the measurements of the data source.

        Raises:
            AlgorithmError: names a metric of the update rule that cannot be sent.
        """
        return replace(self.own_report(), losses=_losses(self._embryo))

    def own_report(self) -> LearnerReport:
        """Report all but the losses."""
        progress, episodes = self._progress, self._episodes
        return replace(
            self._source.report(),
            env_steps=progress.env_steps,
            consumed=progress.consumed,
            session_consumed=self._session_consumed + progress.consumed,
            updates=progress.updates,
            version=progress.version,
            train_s=progress.train_s,
            session_train_s=progress.train_s - self._earlier_train_s,
            episodes=episodes.count,
            episodes_in_mean=episodes.in_mean,
            mean_100=episodes.mean,
            best_mean_100=episodes.best_mean,
            win_rate=episodes.win_rate,
            metrics=episodes.metrics,
            mean_length=episodes.mean_length,
            time_to=episodes.time_to,
        )

    def close(self) -> None:
        """Close the connections to the followers."""
        if self._leader is not None:
            self._leader.close()

    def _learn(self) -> bool:
        """Make an update if it is time for one."""
        leader = self._leader
        if leader is not None:
            leader.await_news()
        if self._source.round_is_done:
            return False  # The learner has to publish its last updates first.
        if leader is None:
            return self._update()
        try:
            return leader.begin_update(self._job_env_steps, self._progress.version) and self._update()
        except LostPeerError:
            return False

    def _update(self) -> bool:
        """Make one gradient update; return False if there is no batch."""
        batch = self._source.batch()
        if batch is None:
            return self._source.round_is_done
        result = self._embryo.update(batch)
        self._progress.consumed += result.uses
        self._progress.updates += 1
        self._wants_checkpoint |= self._embryo.wants_checkpoint()
        self._source.used(result)
        return True

    def _agrees(self) -> bool:
        """Compare with followers, and average or compare with other groups; return False if unfinished."""
        progress, leader = self._progress, self._leader
        if leader is not None and not leader.agrees(progress.version + 1):
            return False
        if self._average is not None:
            if not self._average.settle(progress.updates, progress.consumed):
                return False
            if self._average.take_adopted() and leader is not None:
                leader.synchronise = True
        return self._member is None or self._settles(self._member)

    def _settles(self, member: PopulationMember) -> bool:
        """Take part in the comparison of members; continue with another's state, if the root has sent it."""
        progress = self._progress
        if not member.settle(progress.env_steps, self._episodes, progress.version + 1):
            return False
        if (taken := member.take_takeover()) is not None:
            self._episodes.take_over(taken.returns)
            self._source.discard(progress.version + 1)
            self._embryo.schedule(self._job_env_steps)
        return True

    def _record(self, arrivals: Sequence[FragmentStats]) -> None:
        """Count steps and episodes in the order of the arrivals."""
        if not arrivals:
            return
        if self._started_ns is None:
            self._started_ns = min(arrival.started_ns for arrival in arrivals)
            self._note_time()
        elif not self._is_over:  # Later fragments were made before the end.
            self._note_time()
        for arrival in arrivals:
            self._progress.env_steps += arrival.samples
            episodes = arrival.returns, self._progress.train_s, arrival.wins, arrival.metrics
            if self._episodes.record(*episodes, arrival.lengths):
                self._best_parameters = self._publisher.parameters.copy()

    @property
    def _is_over(self) -> bool:
        """Whether the learner makes no more updates, though fragments still arrive."""
        return self._winding_down or self._finished is not None

    def _note_time(self) -> None:
        """Record the training time until now."""
        if self._started_ns is not None:
            self._progress.train_s = self._earlier_train_s + (time.monotonic_ns() - self._started_ns) / 1e9

    @property
    def _reached(self) -> tuple[int, int, int]:
        """Counters that change with anything worth saving; a version may be an average, without an update."""
        return self._progress.env_steps, self._progress.updates, self._progress.version

    @property
    def _job_env_steps(self) -> int:
        """Approximate env steps of all groups, which schedules run over."""
        return self._before + self._progress.env_steps * self._groups

    def _publish(self) -> None:
        self._publisher.begin(self._progress.version, self._job_env_steps)
        self._source.advance(self._progress.version)


def _losses(embryo: Embryo) -> dict[str, float]:
    """Convert an update rule's metrics to floats: any kind of number, and NaN for None.

    Raises:
        AlgorithmError: a metric is no number.
    """
    metrics: Mapping[str, object] = embryo.metrics()
    losses = {}
    for name, value in metrics.items():
        if not isinstance(value, Real | None):
            raise AlgorithmError(
                f"{type(embryo).__name__}.metrics() says {name!r} as {type(value).__name__}, and a number is "
                "wanted; float() or .item() makes one"
            )
        losses[name] = math.nan if value is None else float(value)
    return losses


WINDOW: Final = 100
"""Episodes of ``mean_100``, the field's usual measure of training returns."""


class Episodes:
    """Keeps the returns of the last hundred training episodes, and the times their mean crossed thresholds.

    Args:
        metrics: names of further numbers of each episode.
    """

    def __init__(self, thresholds: Sequence[float] = (), metrics: Sequence[str] = ()) -> None:
        self.count = 0
        self._recorded = 0
        """Episodes since the last ``take_over``, and those taken over; means are over the last ``WINDOW``."""
        self._own = 0
        """The recorded episodes without those taken over."""
        self.best_mean: float | None = None
        self.best_win_rate: float | None = None
        self.time_to: dict[float, float | None] = dict.fromkeys(thresholds)
        self._recent = np.zeros(WINDOW, np.float64)
        self._sum = 0.0
        self._won = np.zeros(WINDOW, np.bool_)
        self._judged = 0
        self._names = metrics
        self._metrics = np.zeros((WINDOW, len(metrics)), np.float64)
        self._measured = 0
        self._lengths = np.full(WINDOW, np.nan)

    @property
    def in_mean(self) -> int:
        """Number of episodes in ``mean``: all of them until there are a hundred."""
        return min(self._recorded, WINDOW)

    @property
    def full(self) -> bool:
        """Whether ``mean`` is over a full hundred episodes."""
        return self._recorded >= WINDOW

    @property
    def mean(self) -> float | None:
        """Mean return of the last hundred episodes; None before one has ended."""
        return self._sum / self.in_mean if self._recorded else None

    @property
    def win_rate(self) -> float | None:
        """Share of wins in the last hundred episodes; None before one has ended, or without wins to count."""
        judged = min(self._judged, WINDOW)
        return float(self._won[:judged].mean()) if judged else None

    @property
    def metrics(self) -> dict[str, float] | None:
        """Mean of each metric over the last hundred episodes; None before one ended, or without metrics."""
        measured = min(self._measured, WINDOW)
        if not measured:
            return None
        return dict(zip(self._names, self._metrics[:measured].mean(axis=0).tolist(), strict=True))

    @property
    def mean_length(self) -> float | None:
        """Mean length of the last hundred episodes, in env steps; None before one has ended."""
        known = self._lengths[np.isfinite(self._lengths)]
        return float(known.mean()) if known.size else None

    def record(
        self,
        returns: Iterable[float],
        train_s: float,
        wins: Iterable[bool] = (),
        metrics: Iterable[Sequence[float]] = (),
        lengths: Sequence[int] = (),
    ) -> bool:
        """Add episodes in the order they ended, ``train_s`` seconds after the first environment step.

        Args:
            wins: whether each was won; empty if episodes cannot be won.
            metrics: metrics of each; empty if there are none.
            lengths: env steps of each; empty if they are not known.

        Returns:
            True if the mean of a hundred episodes is better than ever before.
        """
        for won in wins:
            self._won[self._judged % WINDOW] = won
            self._judged += 1
        for values in metrics:
            self._metrics[self._measured % WINDOW] = values
            self._measured += 1
        for number, length in enumerate(lengths, self._recorded):
            self._lengths[number % WINDOW] = length
        improved = False
        for value in returns:
            place = self._recorded % WINDOW
            self._sum += value - float(self._recent[place])
            self._recent[place] = value
            self.count += 1
            self._recorded += 1
            self._own += 1
            if self.full:
                improved |= self._note_mean(self._sum / WINDOW, train_s)
        win_rate = self.win_rate
        if self.full and win_rate is not None:
            self.best_win_rate = max(win_rate, self.best_win_rate or 0.0)
        # A running sum drifts by rounding; the exact one is cheap once a batch of episodes.
        self._sum = float(self._recent[: self.in_mean].sum())
        return improved

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """Returns in ``mean``, the oldest first, ``[in_mean]``."""
        return np.roll(self._recent, -(self._recorded % WINDOW) if self.full else 0)[: self.in_mean]

    @property
    def own_mean(self) -> float | None:
        """Mean return of the episodes since ``take_over`` alone; None before one has ended."""
        own = min(self._own, WINDOW)
        return float(self.returns[-own:].mean()) if own else None

    def take_over(self, returns: npt.NDArray[np.float64]) -> None:
        """Go on with another member's policy and its last ``returns``; best and counts stay."""
        self._recorded, self._own, self._judged, self._measured = len(returns), 0, 0, 0
        self._recent[:], self._lengths[:] = 0.0, np.nan
        self._recent[: len(returns)] = returns
        self._sum = float(returns.sum())

    def rule_reached(self, stop: Stop, env_steps: int | None) -> str | None:
        """Return the stop rule that holds now, or None; without ``env_steps`` the root checks those."""
        values = {
            "mean_return": self.mean if self.full else None,
            "win_rate": self.win_rate if self.full else None,
            "env_steps": env_steps,
        }
        return next(iter(stop.reached(values).values()), None)

    def state(self) -> dict[str, Any]:
        """Return the state for a resumed run, without recent returns, since episodes begin anew."""
        return {
            "best_mean": self.best_mean,
            "best_win_rate": self.best_win_rate,
            "time_to": list(self.time_to.items()),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved ``state``; thresholds added since then start unmet."""
        self.best_mean = state["best_mean"]
        self.best_win_rate = state.get("best_win_rate")  # Checkpoints of earlier versions lack it.
        for threshold, seconds in state["time_to"]:
            if threshold in self.time_to:
                self.time_to[threshold] = seconds

    def _note_mean(self, mean: float, train_s: float) -> bool:
        if not math.isfinite(mean) or (self.best_mean is not None and mean <= self.best_mean):
            return False
        self.best_mean = mean
        for threshold, crossed in self.time_to.items():
            if crossed is None and mean >= threshold:
                self.time_to[threshold] = train_s
        return True
