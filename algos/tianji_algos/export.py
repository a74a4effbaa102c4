"""A policy in one torch module, from observations as the environment gives them to actions as it takes them.

A file that acts without tianji holds an ``ExportedPolicy``: normaliser, network, action mask and the agent's
rule. ``trace`` traces it rather than compiling it: a recurrent network may read on the host where episodes
begin (``RecurrentModel.unroll``), which only tracing follows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.action_mask import FORBIDDEN, MaskReader
from tianji_algos.core import Model, Spaces
from tianji_algos.device import RecordParts, torch_type
from tianji_algos.errors import NotExportableError
from tianji_algos.models.recurrent import RecurrentModel
from tianji_algos.models.teams.q_network import NO_ACTION, TeamQ
from tianji_algos.models.torch_backend import MixedPrecision
from tianji_algos.normalizable import MOST
from tianji_algos.normalization import normalizer_of
from tianji_algos.rules import SAMPLED, ActionRule, Port

Array = npt.NDArray[Any]

OBSERVATION: Final = "observation"
AVAILABLE: Final = "available"
STATE: Final = "state"
NEXT_STATE: Final = "next_state"
LAST_ACTION: Final = "last_action"
NOISE: Final = "noise"
OF_A_TEAM: Final = {
    OBSERVATION: "what each agent sees; zeros where it is not alive",
    AVAILABLE: "which actions each agent may choose",
}
"""Parts of a team's records that its policies act by; the others are for training."""
_WITHIN: Final = "; it is normalised within"
BATCHES: Final = (2, 3)
"""Numbers of observations to trace a policy with, and to try the trace with."""
CLOSE: Final = 1e-4


class ExportedPolicy(nn.Module):
    """A policy that takes and gives tensors ``[N, ...]`` in the order of ``inputs`` and ``outputs``.

    Inputs are the observation, or each of its parts; the network's state; and noise, if the policy samples.
    Outputs are those of the rule, without a sampled action if the policy does not sample, and the network's
    next state.

    Args:
        model: trained model, on a CPU; it computes in float32 from now on.
        rule: the agent's rule.
        sampled: whether the policy also samples actions, with noise as an input.

    Raises:
        NotExportableError: the rule has nothing to sample from.
    """

    def __init__(self, spaces: Spaces, model: Model, rule: ActionRule, *, sampled: bool = False) -> None:
        super().__init__()
        if sampled and rule.noise is None:
            raise NotExportableError(
                f"{type(model).__name__} gives one action and draws none; without sampling it would be right"
            )
        for part in model.modules():
            if isinstance(part, MixedPrecision):
                part.compute_in_float32()
        self.model = model.eval().requires_grad_(False)
        self.rule = rule
        self._normalizer = normalizer_of(model)
        self._mask = MaskReader.of(spaces)
        self._space = spaces.observation
        self._parts = self._described(_parts_of(spaces.observation))
        seen = tuple(self._parts.values()) or (self._whole_observation(spaces.stack),)
        self.memory, next_state = _memory_of(model)
        self.noise = (rule.noise,) if rule.noise is not None and sampled else ()
        self.decided = tuple(port for port in rule.outputs if sampled or port.name != SAMPLED)
        self.inputs: tuple[Port, ...] = (*seen, *self.memory, *self.noise)
        self.outputs: tuple[Port, ...] = (*self.decided, *next_state)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute ``outputs`` of ``inputs``, one step."""
        given = self._named(inputs)
        seen = self._as_the_network_takes_it(given)
        if isinstance(self.model, RecurrentModel):
            nowhere = torch.zeros(1, given[STATE].shape[0], dtype=torch.bool)
            *found, state = self.model.unroll(seen.unsqueeze(0), nowhere, given[STATE])
            return (*self.decide(found, inputs), state)
        if isinstance(self.model, TeamQ):
            q, state = self.model.step(seen, given[LAST_ACTION], given[STATE])
            return (*self.decide([q], inputs), state)
        outputs = self.model(seen)
        return self.decide([outputs] if isinstance(outputs, torch.Tensor) else outputs, inputs)

    def decide(
        self, found: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Compute ``decided``, the rule's outputs, from the network's outputs for ``inputs``."""
        given, (scores, *others) = self._named(inputs), found
        if self._mask is not None:
            scores = self._mask.forbidding(scores, RecordParts(self._records_of(given)))
        elif AVAILABLE in given:
            scores = scores.masked_fill(~given[AVAILABLE].reshape(scores.shape), FORBIDDEN)
        noise = given.get(NOISE)
        if noise is None and self.rule.noise is not None:  # No output that is kept depends on it.
            noise = torch.zeros(inputs[0].shape[0], *self.rule.noise.shape)
        pairs = zip(self.rule.outputs, self.rule((scores, *others), noise), strict=True)
        return tuple(one for port, one in pairs if port in self.decided)

    def rows(self, observation: Array) -> list[Array]:
        """Split an agent's observations ``[N, ...]`` into the first of ``inputs``."""
        if not self._parts:
            return [observation]
        return [np.ascontiguousarray(observation[name]) for name in self._parts]

    def made_up(self, number: int, seed: int) -> list[Array]:
        """Make up ``inputs`` of N observations, alike for the same seed."""
        rng = np.random.default_rng(seed)
        if self._parts and not isinstance(self._space, gym.spaces.Dict):
            observations = np.ones(number, self._space.dtype)  # A team's space draws none; 1 is available.
        else:
            self._space.seed(seed)
            observations = np.stack([np.asarray(self._space.sample()) for _ in range(number)])
        memory = [rng.integers(0, 2, (number, *port.shape)).astype(port.dtype) for port in self.memory]
        noise = [self.rule.draw(rng, number) for _ in self.noise]
        seen = [_moderate(one) for one in self.rows(observations)]
        return [*seen, *memory, *noise]

    def _named(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(zip((port.name for port in self.inputs), inputs, strict=True))

    def _records_of(self, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: given[port.name] for name, port in self._parts.items()}

    def _as_the_network_takes_it(self, given: Mapping[str, torch.Tensor]) -> Any:
        if not self._parts:
            return self._as_seen(given[OBSERVATION])
        parts = self._records_of(given)
        if not isinstance(self._space, gym.spaces.Dict):  # A team's network also computes values.
            number = parts[OBSERVATION].shape[0]
            for name, part in _fields_of(self._space).items():
                if name not in parts:
                    parts[name] = torch.zeros(number, *part.shape, dtype=torch_type(part.base))
        return self._as_seen(RecordParts(parts))

    def _as_seen(self, observation: torch.Tensor | RecordParts) -> torch.Tensor | RecordParts:
        return observation if self._normalizer is None else self._normalizer.seen(observation)

    def _described(self, parts: dict[str, Port]) -> dict[str, Port]:
        """Add to the meaning of normalised parts that the policy normalises them."""
        numbers = None if self._normalizer is None else self._normalizer.numbers
        return {
            name: replace(port, meaning=port.meaning + _WITHIN)
            if numbers is not None and name in numbers.parts
            else port
            for name, port in parts.items()
        }

    def _whole_observation(self, stack: int) -> Port:
        meaning = _as_given(self._space)
        if stack > 1:
            meaning += f"; {stack} in a row, oldest first, zeros from before the episode"
        if self._normalizer is not None and self._normalizer.numbers is not None:
            meaning += _WITHIN
        return Port(OBSERVATION, np.dtype(self._space.dtype), tuple(self._space.shape or ()), meaning)


def trace(policy: ExportedPolicy) -> Any:
    """Trace a policy, for any number of observations, as a ``torch.jit.ScriptFunction``.

    Raises:
        NotExportableError: the network computes outside of torch, or for one number of observations only.
    """
    network = type(policy.model).__name__
    first, other = (
        tuple(torch.from_numpy(array) for array in policy.made_up(number, seed=number)) for number in BATCHES
    )

    def act(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the policy: tracing a function keeps only those tensors that it needs, as constants."""
        return policy.forward(*inputs)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The trial below covers what tracing warns of.
        try:
            wanted = policy(*other)
            traced = torch.jit.trace(act, first, check_trace=False)  # type: ignore[no-untyped-call]
        except Exception as cause:  # A network may be its user's own.
            raise NotExportableError(
                f"{network} cannot be exported: {type(cause).__name__}: {_last_line(cause)}; a network that "
                "computes in torch alone would be right; parts of Dict observations are read with "
                "part_of_records()"
            ) from cause
        try:
            found = traced(*other)
            differs = "" if _alike(found, wanted) else "what it gives is not what it gave"
        except RuntimeError as cause:
            differs = _last_line(cause)
    if differs:
        raise NotExportableError(
            f"{network} cannot be exported: traced with {BATCHES[0]} observations, it does not compute what "
            f"it does with {BATCHES[1]} others: {differs}; observation.shape[0] in place of len(observation) "
            "would be right, and no branch that depends on numbers"
        )
    return traced


def _parts_of(space: gym.Space[Any]) -> dict[str, Port]:
    """Describe the parts of records by their names; empty where observations are arrays."""
    if isinstance(space, gym.spaces.Dict):
        return {
            name: Port(f"{OBSERVATION}.{name}", np.dtype(one.dtype), tuple(one.shape or ()), _as_given(one))
            for name, one in space.spaces.items()
        }
    fields = _fields_of(space)
    kept = {name: fields[name] for name in OF_A_TEAM if name in fields}
    return {name: Port(name, part.base, part.shape, OF_A_TEAM[name]) for name, part in kept.items()}


def _fields_of(space: gym.Space[Any]) -> dict[str, np.dtype[Any]]:
    """Return the parts of records by their names; empty where observations are arrays."""
    fields = None if space.dtype is None else space.dtype.fields
    return {} if fields is None else {name: field[0] for name, field in fields.items()}


def _memory_of(model: Model) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Describe a network's state: inputs and outputs."""
    single = np.dtype(np.float32)
    if isinstance(model, RecurrentModel):
        shape: tuple[int, ...] = (model.state_size,)
    elif isinstance(model, TeamQ):
        shape = (model.team.agents, model.settings.width)
    else:
        return (), ()
    before = "what the network remembers: next_state of the step before; zeros where an episode begins"
    inputs = [Port(STATE, single, shape, before, initial=0)]
    if isinstance(model, TeamQ):
        done = f"what each agent did in the step before; {NO_ACTION} where an episode begins"
        inputs.append(Port(LAST_ACTION, np.dtype(np.int64), shape[:1], done, initial=NO_ACTION))
    return tuple(inputs), (Port(NEXT_STATE, single, shape, "what it remembers now: state of the next step"),)


def _moderate(array: Array) -> Array:
    """Clip floats to numbers near 0: some spaces are as large as their type."""
    return np.clip(array, -MOST, MOST) if array.dtype.kind == "f" else array


def _alike(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
    pairs = list(zip(found, wanted, strict=True))
    return all(a.shape == b.shape and torch.allclose(a.double(), b.double(), CLOSE, CLOSE) for a, b in pairs)


def _as_given(space: gym.Space[Any]) -> str:
    return " ".join(f"as the environment gives it, {space}".split())


def _last_line(cause: BaseException) -> str:
    return (str(cause).strip().splitlines() or [""])[-1]
