"""Model, Embryo and Agent: the parts of an algorithm (paper, appendix B).

A *Model* is the network, an *Embryo* holds the update rule, an *Agent* is how a policy meets an
environment. All three see arrays and know no processes: they run in one script as over a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from tianji_algos.batch import Batch, SequenceBatch, UnrollBatch
from tianji_algos.errors import AlgorithmError, NotExportableError, UnsuitableModelError
from tianji_algos.fields import FieldSpec
from tianji_algos.models.settings import ImageLayout
from tianji_algos.rules import ActionRule

Fields = Mapping[str, npt.NDArray[Any]]
"""The fields of one fragment by name, ``[rows, N, ...]`` each; ``FieldSpec`` counts the rows."""


@dataclass(frozen=True)
class Spaces:
    """Observation and action space of one environment (not of a vector), as a policy sees them.

    Attributes:
        observation: as a policy sees it; with ``stack`` above 1 its first axis is the stack, oldest first.
        stack: S, number of successive observations that a policy sees as one. Fragments hold each of them
            once, with S - 1 rows of history; observations from before the episode are seen as zeros.
        image_layout: which observations are images, and where their channels are: see ``models/images.py``.
    """

    observation: gym.Space[Any]
    action: gym.Space[Any]
    stack: int = 1
    image_layout: ImageLayout = "auto"


class Executor(ABC):
    """Runs a model's forward pass for acting, with parameters from one flat array."""

    normalizes: ClassVar[bool] = False
    """Whether it takes observations as they come and shows the network normalised ones itself."""

    @abstractmethod
    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        """Copy new parameters in; ``parameters`` is the flat array of ``Model.write_parameters``."""

    @abstractmethod
    def __call__(self, observation: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], ...]:
        """Run the network on ``[N, ...]`` observations; the arrays returned are reused by the next call.

        A recurrent network moves on by one step.
        """

    def preview(self, observation: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], ...]:
        """Run the network as a call would, without moving on."""
        return self(observation)

    def record(self, fields: Fields) -> None:  # noqa: B027 - most networks remember nothing
        """Write the network's state into the fields that ``Model.recorded`` declares."""

    def resume(self, fields: Fields) -> None:  # noqa: B027 - most networks remember nothing
        """Go on from the state in the fields that ``record`` writes, of any number of environments."""

    def note(self, action: npt.NDArray[Any]) -> None:  # noqa: B027 - most networks remember nothing
        """Remember the actions ``[N, ...]`` that were taken after the last call."""

    def forget(self, where: npt.NDArray[np.bool_]) -> None:  # noqa: B027 - most networks remember nothing
        """Clear the state of the environments ``where [N]``: their next observation begins an episode."""


class Model(torch.nn.Module, ABC):
    """A network whose parameters travel as one flat float32 array.

    Built as ``ModelType(spaces, settings)``; see ``build_model``.
    """

    settings_type: ClassVar[type[BaseModel]]
    """Settings of the config's ``[model]`` section: all but ``type``."""

    @classmethod
    def recorded(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:  # noqa: ARG003 - most: nothing
        """Fields that this network adds to a fragment: the state of a recurrent network, by default none."""
        return ()

    @property
    def parameter_count(self) -> int:
        """Number of float32 values in the flat array: all parameters, then all buffers."""
        return sum(p.numel() for p in self._tensors())

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self.parameters()
        yield from self.buffers()

    def flat_parameters(self) -> torch.Tensor:
        """Copy all parameters, then all buffers, into one tensor ``[parameter_count]`` where they are."""
        with torch.no_grad():
            return torch.cat([tensor.reshape(-1).float() for tensor in self._tensors()])

    def write_parameters(self, into: npt.NDArray[np.float32]) -> None:
        """Write all parameters, then all buffers, into ``into [parameter_count]``."""
        flat = torch.from_numpy(into)
        if not next(self._tensors()).is_cpu:
            flat.copy_(self.flat_parameters())  # A large copy from a device costs as much as a small one.
            return
        start = 0
        for tensor in self._tensors():
            flat[start : start + tensor.numel()].copy_(tensor.detach().reshape(-1))
            start += tensor.numel()

    def read_parameters(self, flat: npt.NDArray[np.float32]) -> None:
        """Take all parameters and buffers from ``flat [parameter_count]``."""
        # Torch knows no read-only memory, which is what a transport lends.
        writable = flat if flat.flags.writeable else flat.copy()
        source = torch.from_numpy(writable).to(next(self._tensors()).device)
        start = 0
        with torch.no_grad():
            for tensor in self._tensors():
                tensor.copy_(source[start : start + tensor.numel()].view_as(tensor))
                start += tensor.numel()

    @abstractmethod
    def executor(self, batch_size: int) -> Executor:
        """Build the executor that actors run; acting needs no gradients, so it may avoid torch."""


class UpdateResult(NamedTuple):
    """Samples that one gradient update used. ``consumed += update(batch)`` counts the uses.

    Attributes:
        uses: samples that the update used, over all learners.
        priorities: absolute TD error of each of this learner's samples, ``[B]``, valid until the next update;
            None if the update rule computes none: a replay can then only draw uniformly.
    """

    uses: int
    priorities: npt.NDArray[np.float32] | None = None

    def __radd__(self, consumed: int) -> int:
        """Count the uses."""
        return consumed + self.uses


class Embryo(ABC):
    """An update rule around a model; the field's learner.

    Built as ``EmbryoType(spaces, model, settings, seed)``; the model is on its final device by then. Derive
    from ``RolloutEmbryo``, ``ReplayEmbryo``, ``SequenceEmbryo`` or ``UnrollEmbryo``, which say where the
    batches come from.
    """

    settings_type: ClassVar[type[BaseModel]]
    """Settings of the config's ``[training]`` section: all but ``type``."""

    normalizes: ClassVar[bool] = False
    """Whether it keeps the statistics of ``normalize_observations`` and ``normalize_rewards``, and learns
    from normalised numbers; see ``normalization``."""

    model: Model

    prioritised: bool = True
    """Whether the replay needs priorities; if not, an update need not copy them to the host."""

    def join(self, learners: AllReduce) -> None:  # noqa: ARG002 - for those who can
        """Make every update from now on together with other learners, each on its own share of the batch.

        All learners begin with the same parameters and get the same bits from every update: they add up
        their gradients before the step.

        Raises:
            AlgorithmError: this update rule works with one learner only.
        """
        raise AlgorithmError(
            f"{type(self).__name__} does not average gradients over several learners (it has no join()); "
            "one learner a group would be right"
        )

    def freeze(self, names: Sequence[str]) -> None:  # noqa: ARG002 - for those who can
        """Leave parameters of the model, by their names, as they are in every update from now on.

        Raises:
            AlgorithmError: this update rule cannot freeze parameters.
        """
        raise AlgorithmError(f"{type(self).__name__} does not freeze parameters: it has no freeze()")

    def averaged_state(self) -> Sequence[torch.Tensor]:
        """Return the optimizer's tensors, in place, that groups may average beside the parameters."""
        return ()

    @abstractmethod
    def update(self, batch: Any) -> UpdateResult:
        """Make one gradient update; see ``complete_results`` for rules that return the uses alone."""

    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint is to be written after this update, besides those that the config asks for."""
        return False

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Means of the losses and diagnostics since the last call."""

    @abstractmethod
    def schedule(self, env_steps: int) -> None:
        """Set the scheduled hyperparameters (learning rate, clip range) for so many env steps seen."""

    def adopt_settings(self, settings: Any) -> None:
        """Train by these settings from now on; ``schedule`` is called right after it.

        The settings differ from the last ones only in the keys that ``adjustable`` names.
        """
        self.settings = settings

    @abstractmethod
    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return everything a resumed run needs: tensors, and the rest as JSON values.

        Settings and scheduled values are no part of it: a run may be resumed with other settings.
        """

    @abstractmethod
    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned.

        Raises:
            ValueError: the state belongs to another model or algorithm; says which tensor does not fit.
        """


class RolloutEmbryo(Embryo):
    """Learns on-policy: each rollout is cut into minibatches, used a few times and forgotten.

    Its settings have ``rollout_steps``.

    Attributes:
        uses_per_sample: number of uses of each sample (the serial replay ratio ``rho``).
    """

    uses_per_sample: float

    def ready(self, rollout: Sequence[Fields]) -> bool:  # noqa: ARG002 - most learn from every rollout
        """Whether to learn from a rollout: all its fragments, valid during the call.

        A refused rollout is counted. Its samples are not used, unless the buffer keeps several rollouts
        (``distribution.buffer.rollouts``) and draws them again.
        """
        return True

    @abstractmethod
    def minibatches(self, fragments: Sequence[Fields]) -> Iterator[Any]:
        """Prepare a rollout and yield one minibatch per gradient update.

        With several learners, each gets fragments of its own and yields its share of every minibatch; all
        learners yield equally many.

        The caller may release ``fragments`` once it has the first minibatch: all data are copied by then.
        """


class ReplayEmbryo(Embryo):
    """Learns off-policy from batches that a replay draws.

    Its settings have ``batch_size``, ``replay_ratio``, ``warmup_steps``, ``publish_every``, ``n_step`` and
    ``gamma``: the replay prepares n-step transitions.
    """

    @abstractmethod
    def update(self, batch: Batch) -> UpdateResult:
        """Make one gradient update; a prioritised replay takes the priorities of its result."""


class SequenceEmbryo(Embryo):
    """Learns off-policy from whole episodes that a replay draws, uniformly.

    Its settings have ``batch_size`` (episodes), ``sequence_steps`` (L: longer episodes are cut),
    ``replay_ratio``, ``warmup_steps`` and ``publish_every``.
    """

    @abstractmethod
    def update(self, batch: SequenceBatch) -> UpdateResult:
        """Make one gradient update; each step of a sequence is a use."""


class UnrollEmbryo(Embryo):
    """Learns off-policy, with a recurrent network, from successive steps that a replay draws.

    Its settings have ``batch_size`` (unrolls), ``burn_in`` and ``unroll_steps``, multiples of the actors'
    ``send_size``, ``replay_ratio``, ``warmup_steps`` and ``publish_every``.
    """

    @abstractmethod
    def update(self, batch: UnrollBatch) -> UpdateResult:
        """Make one gradient update; each step of experience after the burn-in is a use."""


def complete_results(embryo: Embryo, *, prioritised: bool) -> Embryo:
    """Set ``prioritised`` of an update rule, and let its ``update`` always return an ``UpdateResult``.

    A user's ``update`` may return the number of uses alone.

    Args:
        embryo: any update rule. If ``update`` returns a number, the attribute ``priorities`` has the last
            priorities.
        prioritised: its samples have priorities; only then the attribute is read.
    """
    embryo.prioritised = prioritised
    update: Callable[[Any], UpdateResult | int] = embryo.update

    def complete(batch: Any) -> UpdateResult:
        result = update(batch)
        if not isinstance(result, UpdateResult):
            result = UpdateResult(result, embryo.priorities if prioritised else None)  # type: ignore[attr-defined]
        if prioritised and result.priorities is None:
            what = f"{type(embryo).__name__} gives its samples no priorities"
            raise AlgorithmError(f'{what}; distribution.buffer.sampler = "uniform" would be right')
        return result

    embryo.update = complete  # type: ignore[method-assign]
    return embryo


class Agent(ABC):
    """Acts by a policy: chooses actions, explores, and records the fields that training needs.

    Built as ``AgentType(spaces, model, settings, num_envs, seed)``:

    - spaces: observation and action space of one environment.
    - model: the network as this agent's type asks for it.
    - settings: an instance of ``settings_type``.
    - num_envs: N, number of environments that ``act`` serves at once.
    - seed: seed of the exploration.
    """

    settings_type: ClassVar[type[BaseModel]]
    """Settings of the config's ``[agent]`` section: all but ``type``."""

    default_model: ClassVar[str]
    """Name of the model to use if the config names none."""

    default_embryo: ClassVar[str]
    """Name of the embryo that trains for this agent if the config names none."""

    plays_in_team: ClassVar[bool] = False
    """Whether it acts for all agents of a team, by their records (see ``team``)."""

    @classmethod
    @abstractmethod
    def fields(cls, spaces: Spaces, settings: Any) -> tuple[FieldSpec, ...]:
        """Fields this agent adds to a fragment beside ``COMMON_FIELDS``; ``action`` is one of them."""

    @classmethod
    def rule(cls, spaces: Spaces, settings: Any) -> ActionRule:  # noqa: ARG003 - for subclasses
        """Describe in torch how the agent acts, for files that act without tianji.

        Raises:
            NotExportableError: the agent defines no rule.
        """
        raise NotExportableError(
            f"{cls.__name__} does not say how it acts: it has no rule(); an agent that derives from one of "
            "tianji's that has would be right, or one with a tianji_algos.rules.ActionRule of its own"
        )

    @abstractmethod
    def act(self, observation: npt.NDArray[Any], into: Fields) -> npt.NDArray[Any]:
        """Choose exploring actions for ``observation [N, ...]``, stacked where ``Spaces.stack`` says so.

        Args:
            into: one time step of this agent's fields, ``[N, ...]`` each, to be written in place.

        Returns:
            The actions in the environment's own form, ``[N, ...]``; reused by the next call.
        """

    def observe(self, step: Fields) -> None:  # noqa: B027 - most learn nothing from a step
        """Look at one step after it was made: all its fields, ``[N, ...]`` each, with reward and ends.

        A bonus added to ``step["reward"]``, which must stay 0 where ``mask`` is False, goes to the learner
        alone: returns of episodes are the environment's own.
        """

    def begin(self, fields: Fields) -> None:  # noqa: B027 - most record nothing
        """Write the fields that are recorded once a fragment, in place, before its first step."""

    def begin_episodes(self, where: npt.NDArray[np.bool_]) -> None:  # noqa: B027 - most remember nothing
        """Record that the next observation of those environments, ``[N]``, is the first of an episode."""

    def finish(self, fields: Fields, observation: npt.NDArray[Any]) -> None:  # noqa: B027 - most record nothing
        """Complete a full fragment, in place, before it is sent.

        Args:
            fields: all fields; row T of a field with ``bootstrap`` belongs to the observation that the last
                step led to.
            observation: the one that the last step led to, ``[N, ...]``, as ``act`` will see it next.
        """

    def schedule(self, env_steps: int) -> None:  # noqa: B027 - most explore alike from start to end
        """Set scheduled values, such as epsilon, for about so many env steps of the whole job."""

    def adopt_settings(self, settings: Any) -> None:
        """Act by these settings from now on; they differ from the last ones only in ``adjustable`` keys."""
        self.settings = settings

    def explore_as(self, first: int, of: int) -> None:  # noqa: B027 - most explore alike everywhere
        """Serve the environments from number ``first`` on, of the ``of`` that the job trains in."""

    @abstractmethod
    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Choose actions without exploration, for evaluation."""

    @abstractmethod
    def adopt(self, parameters: npt.NDArray[np.float32]) -> None:
        """Act with these parameters from now on."""


def build_model(model_type: type[Model], spaces: Spaces, settings: BaseModel, seed: int) -> Model:
    """Build a model from ``seed`` alone; torch's global random streams are left as they were."""
    own, drew = torch.initial_seed(), torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if drew else ()):
        torch.manual_seed(seed)
        model = model_type(spaces, settings)
    if not drew:  # The GPU's stream is unused so far: it begins with the process's seed.
        torch.cuda.manual_seed_all(own)
    return model


def require_model(model: object, contract: type[torch.nn.Module], algorithm: str, example: str) -> None:
    """Refuse a model that an algorithm cannot work with, before it fails somewhere else.

    Raises:
        UnsuitableModelError: the model does not derive from ``contract``.
    """
    if not isinstance(model, contract):
        what = f"{type(model).__name__} is no {contract.__name__}, which {algorithm} works with"
        raise UnsuitableModelError(f"{what}; the model {example!r} would be right")


class AllReduce(ABC):
    """Learners that all-reduce their gradients: all of them call the same methods, in the same order."""

    number: int
    index: int

    @abstractmethod
    def add_up(self, values: torch.Tensor) -> None:
        """Replace ``values``, in place, by their sum over all learners: the same bits for each of them."""

    def compare(self, own: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Exchange counts ``[K]`` with the other learners; returns all of them, ``[learners, K]``."""
        counts = np.zeros((self.number, len(own)), np.int64)
        counts[self.index] = own
        self.add_up(torch.from_numpy(counts))
        return counts

    def total(self, own: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Add up counts ``[K]`` of all learners, which keep their own."""
        sums: npt.NDArray[np.int64] = self.compare(own).sum(axis=0)
        return sums


class Alone(AllReduce):
    """One learner by itself."""

    number = 1
    index = 0

    def add_up(self, values: torch.Tensor) -> None:
        """Leave the values: there is nothing to add."""


ALONE: Final = Alone()
