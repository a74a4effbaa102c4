"""``load`` and ``Policy``: a run's trained policy, to act with in a program of one's own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tianji_cli.config.loader import load_run_config
from tianji_cli.errors import RunFailed, TianjiError, describe, errors_as
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory
from tianji_envs.errors import EnvironmentFailure

if TYPE_CHECKING:
    import gymnasium

    from tianji_algos.core import Agent
    from tianji_cli.worker.parts import SavedPolicy

Array = npt.NDArray[Any]


class ObservationError(TianjiError, ValueError):
    """The argument of ``Policy.act`` is no observation of the environment that the policy was trained in."""


class Policy:
    """A run's trained policy, built by ``load``: chooses actions for one observation, or for a batch.

    One policy plays in one environment, or in as many side by side as a batch has observations. A recurrent
    network has a state for each environment: call ``reset`` where an episode begins. Threads must not share a
    policy.

    Attributes:
        observation_space: space of observations for ``act``. It takes Dict and Tuple observations as the
            environment gives them; here their parts have names, such as ``arm.angles``. Where frames are
            stacked, an observation is the whole stack, oldest first.
        action_space: space of the actions that ``act`` returns.
    """

    def __init__(self, saved: SavedPolicy, seed: int) -> None:
        spaces = saved.parts.spaces
        self.observation_space: gymnasium.Space[Any] = spaces.observation
        self.action_space: gymnasium.Space[Any] = spaces.action
        self._saved = saved
        self._seed = seed
        self._build(1)

    def act(self, observation: Any, deterministic: bool = True) -> Any:
        """Choose an action for one observation, or actions for a batch of them.

        Args:
            observation: as the environment gives it, or N of them along a first axis, as gymnasium's vectors
                give them; N may differ from call to call, but a recurrent network begins anew then. For a
                team: each agent's observation by its name, as in PettingZoo; agents left out are not alive.
                Or records of ``observation_space``, where the environment has no names.
            deterministic: take the likeliest action, or the one of the highest value. Otherwise as in
                training: from the policy's distribution, or with the share of random actions at its end.

        Returns:
            An element of ``action_space``, or N of them ``[N, ...]``; a team's by name if observations are.
            The caller owns it.

        Raises:
            ObservationError: the observation does not fit ``observation_space``; says how.
        """
        team = self._saved.parts.translator
        if team is not None and isinstance(observation, Mapping):
            record = _fitting(team.record_of, observation, self.observation_space)
            return team.actions_of(self.act(record, deterministic), observation)
        rows, is_single = self._rows(observation)
        if len(rows) != self._number:
            self._build(len(rows))
        player = self._agent if deterministic else self._explorer
        actions = player.act_greedily(rows)
        return (actions[0] if is_single else actions).copy()

    def reset(self, where: npt.ArrayLike = True) -> None:
        """Clear the network's state: the next observation begins an episode.

        Args:
            where: environments of a batch to reset, ``[N]`` bool; all of them by default.

        Raises:
            ObservationError: ``where`` has another number of environments than the last observations.
        """
        flags = np.asarray(where, np.bool_)
        if flags.shape not in {(), (self._number,)}:
            raise ObservationError(
                f"reset() got flags of shape {flags.shape}, and the last observations were {self._number}; "
                f"({self._number},) would be right"
            )
        self._agent.begin_episodes(np.broadcast_to(flags, self._number))

    def _build(self, number: int) -> None:
        """Build the agents that act in so many environments."""
        from tianji_cli.roles.policies import ExploringPolicy  # noqa: PLC0415 - imports environments

        self._number = number
        self._agent: Agent = self._saved.agent(number, self._seed)
        self._agent.schedule(self._saved.env_steps)
        self._agent.begin_episodes(np.ones(number, np.bool_))
        self._explorer = ExploringPolicy(self._agent, self._saved.parts.agent_fields, number)

    def _rows(self, observation: Any) -> tuple[Array, bool]:
        """Return observations ``[N, ...]``, and whether the argument was a single one."""
        from tianji_envs.records import RecordSpace  # noqa: PLC0415 - imports gymnasium

        space = self.observation_space
        read: Callable[[Any], Array] = partial(_array, space)
        if isinstance(space, RecordSpace) and getattr(observation, "dtype", None) != space.dtype:
            read = space.pack
        array = _fitting(read, observation, space)
        shape = space.shape or ()
        if array.shape == shape:
            return array[np.newaxis], True
        if len(array.shape) == len(shape) + 1 and array.shape[1:] == shape and len(array):
            return array, False
        raise ObservationError(
            f"an observation of shape {array.shape} does not fit {space}; {shape} would be right, "
            f"or {('N', *shape)} for N of them".replace("'", "")
        )


def _fitting(read: Callable[[Any], Array], observation: Any, space: gymnasium.Space[Any]) -> Array:
    """Read an observation.

    Raises:
        ObservationError: the observation does not fit its space.
    """
    try:
        return read(observation)
    except (TypeError, ValueError, KeyError, IndexError, EnvironmentFailure) as cause:
        raise ObservationError(f"an observation does not fit {space}: {describe(cause)}") from cause


def _array(space: gymnasium.Space[Any], observation: Any) -> Array:
    """Return an observation, or a batch, in the dtype of its space.

    Raises:
        ValueError: the space does not hold its numbers.
    """
    import gymnasium  # noqa: PLC0415 - slow to import

    from tianji_envs.core import fits  # noqa: PLC0415 - imports gymnasium

    array = np.asarray(observation)
    if space.dtype is None or not fits(array, space.dtype):
        raise ValueError(f"an array of {array.dtype}; {space.dtype} is wanted")
    if (
        isinstance(space, gymnasium.spaces.Discrete)
        and not space.start <= array.min() <= array.max() < space.start + space.n
    ):
        raise ValueError(f"{observation!r} is not in it")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("not all numbers are finite")
    return np.ascontiguousarray(array, space.dtype).reshape(array.shape)


def load(
    run: str | os.PathLike[str],
    checkpoint: str | int = "best",
    *,
    seed: int = 0,
    out: str | os.PathLike[str] = DEFAULT_OUT,
) -> Policy:
    """Load a run's trained policy.

        policy = tianji.load("ppo_cartpole")          # of the newest run of that name
        policy = tianji.load("experiments/ppo_cartpole/3", checkpoint="last")

    This builds the environment once, for its spaces, and imports modules of your own that the run's config
    names; it starts no process.

    Args:
        run: a ``Run``, a path, ``name/n``, or ``name`` for its newest run.
        checkpoint: ``"best"``, ``"last"``, or the env steps of a kept checkpoint.
        seed: seed of random actions, where the policy does not act deterministically.
        out: directory in which to look for runs by name.

    Raises:
        TianjiError: there is no such run or checkpoint, or the policy cannot be loaded here.
    """
    directory = RunDirectory.find(os.fspath(run), Path(out))
    for warning in directory.check():  # The config names modules that will run.
        warnings.warn(warning, stacklevel=2)
    config = load_run_config(str(directory.config))
    name = directory.checkpoint(str(checkpoint))
    from tianji_cli.worker.parts import Parts, SavedPolicy  # noqa: PLC0415 - imports torch

    # A user's environment, model or agent may raise anything.
    with errors_as(RunFailed, f"cannot load {directory.path}", Exception, SystemExit):
        return Policy(SavedPolicy(Parts(config), directory.checkpoints / name), seed)
