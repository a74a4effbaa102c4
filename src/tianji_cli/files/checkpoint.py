"""Checkpoints: tensors as safetensors, the rest as JSON, whole or not at all.

    checkpoints/<env steps>/   model.safetensors  training.safetensors  state.json  SHA256SUMS
    checkpoints/last           -> the newest of them
    checkpoints/best           -> best-<env steps>/ with the best mean return's model.safetensors, state.json
                               with nothing but the schema, SHA256SUMS; or -> evaluated/best, likewise, with
                               the best evaluation during training

A reader checks that files are as they were written, by their sums, and of the right schema, types and ranges.
A writer fills a directory under a temporary name and renames it; it replaces the links ``last`` and ``best``
in one step, so that a reader finds a whole checkpoint at any moment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from tianji_algos.core import Model
from tianji_cli.files.directories import LinkedDirectories, remove_directory
from tianji_cli.files.rundir import steps_name
from tianji_cli.files.saved import (
    BEST,
    EVALUATED,
    LAST,
    MODEL,
    SCHEMA,
    STATE,
    TRAINING,
    CheckpointError,
    best_evaluation,
    load_document,
    load_state,
    own_best,
    read_sealed,
    seal,
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TrainingState:
    """Contents of a checkpoint.

    Attributes:
        parameters: the policy, as ``Model.write_parameters`` writes it.
        best_parameters: the policy with the best mean return so far; None before there is one.
        tensors: the embryo's tensors (optimiser, statistics).
        rest: the embryo's other state, as JSON values.
        progress: the learner's counters.
        episodes: best mean and crossed thresholds.
        member: hyperparameters and takeovers of a member of a population; empty without one.
    """

    parameters: Floats
    best_parameters: Floats | None
    tensors: Mapping[str, torch.Tensor]
    rest: Mapping[str, Any]
    progress: Mapping[str, Any]
    episodes: Mapping[str, Any]
    member: Mapping[str, Any] = field(default_factory=dict)


class CheckpointWriter:
    """Writes checkpoints of one run: a model's parameters, each under its own name.

    Args:
        keep: number of checkpoints to keep under their env steps.
        has_best: whether this writer keeps the best policy, too; else a ``BestWriter`` does.
    """

    def __init__(self, directory: Path, model: Model, keep: int, *, has_best: bool = True) -> None:
        self._directory = directory
        self._model = model
        self._keep = keep
        self._has_best = has_best
        self._places = LinkedDirectories(directory, (LAST, BEST))

    def write(self, state: TrainingState) -> None:
        """Write a checkpoint under its number of env steps, and link ``last`` and ``best`` to it.

        Raises:
            CheckpointError: the disk does not take it, or a number is not finite; older checkpoints are
                untouched.
        """
        name = steps_name(state.progress["env_steps"])
        for tensors in (named_tensors(self._model, state.parameters), state.tensors):
            if (broken := not_finite(tensors)) is not None:
                updates = state.progress["updates"]
                why = "training has diverged; a smaller learning_rate, or smaller rewards, would be right"
                raise CheckpointError(
                    f"checkpoint {name} is not written: after {updates} updates {broken!r} has numbers that "
                    f"are not finite: {why if updates else 'the network begins with them'}"
                )
        try:
            with self._places.fill(LAST, name) as place:
                save_file(named_tensors(self._model, state.parameters), place / MODEL)
                save_file(_contiguous(state.tensors), place / TRAINING)
                document = {
                    "schema": SCHEMA,
                    "embryo": state.rest,
                    "progress": state.progress,
                    "episodes": state.episodes,
                } | ({"member": state.member} if state.member else {})
                _write_state(place, document)
                seal(place, (MODEL, TRAINING, STATE))
            if self._has_best:
                best = state.parameters if state.best_parameters is None else state.best_parameters
                with self._places.fill(BEST, f"best-{name}") as place:
                    save_file(named_tensors(self._model, best), place / MODEL)
                    _write_state(place, {"schema": SCHEMA})
                    seal(place, (MODEL, STATE))
            self._remove_old()
        except (OSError, SafetensorError) as cause:
            raise CheckpointError(f"cannot write checkpoint {self._directory / name}: {cause}") from cause

    def best_parameters(self) -> Floats | None:
        """Read the policy that ``best`` leads to; None if there is none, or if a ``BestWriter`` keeps it.

        Raises:
            CheckpointError: see ``load_parameters``.
        """
        place = own_best(self._directory)
        return load_parameters(place, self._model) if self._has_best and os.path.lexists(place) else None

    def _remove_old(self) -> None:
        numbered = sorted(path for path in self._directory.iterdir() if path.name.isdecimal())
        in_use = self._places.targets()
        for path in (*numbered[: max(0, len(numbered) - self._keep)], *self._directory.glob("best-*")):
            if path.name not in in_use:
                remove_directory(path)


class BestWriter:
    """Keeps the policy with the best evaluation; ``link_best_to_best_evaluated`` links ``best`` to it.

    It is the only writer of ``checkpoints/evaluated``, and writes nowhere else.

    Args:
        anew: ignore the present best policy, which was judged by other rules.

    Attributes:
        mean: mean return of the best policy; None before there is one.
    """

    def __init__(self, checkpoints: Path, model: Model, *, anew: bool = False) -> None:
        self._model = model
        self._directory = checkpoints / EVALUATED
        self._places = LinkedDirectories(self._directory, (BEST,))
        self.mean = None if anew else best_evaluation(checkpoints)

    def write(self, parameters: Floats, mean: float, env_steps: int, version: int) -> None:
        """Keep a policy in place of the best so far.

        Raises:
            CheckpointError: the disk does not take it; the best so far is untouched.
        """
        name = steps_name(env_steps)
        evaluation = {"mean": mean, "env_steps": env_steps, "version": version}
        try:
            with self._places.fill(BEST, name) as place:
                save_file(named_tensors(self._model, parameters), place / MODEL)
                _write_state(place, {"schema": SCHEMA, "evaluation": evaluation})
                seal(place, (MODEL, STATE))
            for path in self._directory.iterdir():
                if path.name != BEST and path.name not in self._places.targets():
                    remove_directory(path)
        except (OSError, SafetensorError) as cause:
            raise CheckpointError(f"cannot write checkpoint {self._directory / name}: {cause}") from cause
        self.mean = mean


def load_training(directory: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read the data that a resumed run needs besides the policy: the embryo's tensors, and ``state.json``.

    Raises:
        CheckpointError: a file is missing, damaged, or of another schema.
    """
    return _tensors(directory, TRAINING), load_state(directory)


def load_parameters(directory: Path, model: Model) -> Floats:
    """Read a checkpoint's parameters as the flat array of ``Model.write_parameters``.

    Raises:
        CheckpointError: a file is missing, damaged, or of another schema or model; the message names the
            tensor that does not fit.
    """
    load_document(directory)
    path, saved = directory / MODEL, _tensors(directory, MODEL)
    flat = np.zeros(model.parameter_count, np.float32)
    places = named_tensors(model, flat)
    for name, place in places.items():
        found = saved.get(name)
        if found is None or found.shape != place.shape or found.dtype != place.dtype:
            what = "is not in it" if found is None else f"has shape {list(found.shape)} there"
            if found is not None and found.dtype != place.dtype:
                what = f"is {found.dtype} there and not {place.dtype}"
            raise CheckpointError(
                f"{path} is of another model: {name!r} {what}; the config's model has {list(place.shape)}"
            )
        place.copy_(found)
    if more := saved.keys() - places.keys():
        raise CheckpointError(f"{path} is of another model: the config's has no {min(more)!r}")
    return flat


def _tensors(directory: Path, name: str) -> dict[str, torch.Tensor]:
    return read_tensors(read_sealed(directory, name), directory / name)


def read_tensors(content: bytes, path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a file ``path``, whose numbers must all be finite.

    Raises:
        CheckpointError: it is damaged, or has numbers that are not finite.
    """
    try:
        tensors: dict[str, torch.Tensor] = load(content)
    except SafetensorError as cause:
        raise CheckpointError(f"cannot read {path}: {cause}") from cause
    if (broken := not_finite(tensors)) is not None:
        raise CheckpointError(f"{path} is of no use: {broken!r} has numbers that are not finite")
    return tensors


def not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Name a tensor with a number that is not finite; None if there is none."""
    of_floats = ((name, tensor) for name, tensor in tensors.items() if tensor.is_floating_point())
    return next((name for name, tensor in of_floats if not bool(torch.isfinite(tensor).all())), None)


def named_tensors(model: Model, flat: Floats) -> dict[str, torch.Tensor]:
    """View the flat array of ``Model.write_parameters`` as the model's tensors, by name."""
    views: dict[str, torch.Tensor] = {}
    memory, start = torch.from_numpy(flat), 0
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        views[name] = memory[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
    return views


def _write_state(place: Path, document: Mapping[str, Any]) -> None:
    (place / STATE).write_text(json.dumps(document, indent=1), encoding="utf-8")


def _contiguous(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
