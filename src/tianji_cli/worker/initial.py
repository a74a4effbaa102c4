"""Initial tensors: those of another run that fit a new model by name and shape, and frozen parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import filter as matching
from pathlib import Path
from typing import Any

import torch

from tianji_algos.core import Embryo, Model
from tianji_algos.errors import AlgorithmError
from tianji_cli.config.schema import Init
from tianji_cli.errors import TianjiError, UsageError, describe
from tianji_cli.files.checkpoint import load_training, read_tensors
from tianji_cli.files.regular import read_regular
from tianji_cli.files.saved import MODEL, read_sealed

STATISTICS = "normalizer."
"""Prefix of the names of a model's running statistics."""
NETWORKS = ("model.", "target")
"""Prefixes of the names of networks in an update rule's state; the rest is optimizer state."""


@dataclass(frozen=True)
class Initial:
    """Tensors that a new run begins with.

    Attributes:
        place: directory of a checkpoint, or a file.
        saved: tensors in that place, by name.
        report: description of the tensors taken, as JSON values.
    """

    place: Path
    saved: Mapping[str, torch.Tensor]
    report: dict[str, Any]

    @classmethod
    def fill(cls, place: Path, model: Model, init: Init) -> Initial:
        """Copy the tensors that fit into a model; targets that are built from it afterwards start equal.

        Raises:
            TianjiError: the tensors are damaged, none fits, or a frozen parameter does not fit.
        """
        content = (
            read_sealed(place, MODEL)
            if place.is_dir()
            else read_regular(place.resolve(), place.stat().st_size)
        )
        saved, parameters = read_tensors(content, place), dict(model.named_parameters())
        own = parameters | dict(model.named_buffers())
        for name in own.keys() - saved.keys():
            if name.startswith(STATISTICS) and (mean := name.removesuffix("_rest")) in saved:
                saved[name] = torch.zeros_like(saved[mean])  # Earlier runs saved 32-bit means without a rest.
        new = _unfit(own, saved, statistics=init.statistics)
        if parameters.keys() <= new.keys():
            there, here = (
                ", ".join(f"{name} {list(some[name].shape)}" for name in sorted(some, key=_later)[:3])
                for some in (saved, own)
            )
            raise UsageError(
                f"nothing of {place} fits the model: there are {there}, ..., and here {here}, ..."
            )
        frozen = frozen_names(model, init.freeze)
        for name in parameters if init.optimizer else frozen:
            if name in new:
                key = "optimizer: it" if init.optimizer else "freeze: what is frozen"
                raise UsageError(f"experiment.init.{key} has to fit, and {name} begins anew: {new[name]}")
        taken = [name for name in own if name not in new]
        with torch.no_grad():
            for name in taken:
                own[name].copy_(saved[name])
        report = {"sha256": hashlib.sha256(content).hexdigest(), "taken": taken, "new": new}
        report |= {"unused": sorted(saved.keys() - set(taken)), "frozen": frozen, **init.model_dump()}
        return cls(place, saved, report)

    def restore(self, embryo: Embryo) -> None:
        """Restore the taken tensors in an update rule and, if configured, the other run's optimizer state.

        Raises:
            UsageError: there is no optimizer state, or it is of another algorithm.
        """
        tensors, rest = embryo.state()
        for name in self.report["taken"]:
            if f"model.{name}" in tensors:  # SAC sets an initial temperature of its own.
                tensors[f"model.{name}"] = self.saved[name]
        try:
            if self.report["optimizer"]:
                moments, state = load_training(self.place)
                tensors |= {name: one for name, one in moments.items() if not name.startswith(NETWORKS)}
                rest |= {key: value for key, value in state["embryo"].items() if key != "rng"}
            embryo.load_state(tensors, rest)
        except (TianjiError, AlgorithmError, KeyError) as cause:
            raise UsageError(
                f"experiment.init.optimizer: {describe(cause)}; RUN:last of a run that trained by the same "
                "rule has what is wanted"
            ) from cause


def _later(name: str) -> tuple[bool, str]:
    """Sort key of names: statistics come last."""
    return name.startswith(STATISTICS), name


def _unfit(
    own: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor], *, statistics: bool
) -> dict[str, str]:
    """Return the tensors that do not fit, with the reason; related statistics fit together or not at all."""
    new: dict[str, str] = {}
    for name, tensor in own.items():
        found = saved.get(name)
        if name.startswith(STATISTICS) and not statistics:
            new[name] = f"{list(tensor.shape)}, statistics = false"
        elif found is None or found.shape != tensor.shape or not found.is_floating_point():
            new[name] = f"{list(tensor.shape)}, {'not' if found is None else list(found.shape)} there"
    apart = {name.rpartition(".")[0] for name in new if name.startswith(STATISTICS)}
    for name in own:
        if name.startswith(STATISTICS) and name.rpartition(".")[0] in apart:
            new.setdefault(name, "as the others of its kind")
    return new


def frozen_names(model: Model, patterns: Sequence[str]) -> list[str]:
    """List the frozen parameters, by patterns in which ``*`` matches anything.

    Raises:
        UsageError: a pattern matches no parameter, or the patterns together match all.
    """
    names = [name for name, _ in model.named_parameters()]
    found = {pattern: matching(names, pattern) for pattern in patterns}
    frozen = sorted(set().union(*found.values()), key=names.index)
    wrong = [repr(pattern) + " matches no parameter" for pattern in found if not found[pattern]]
    if wrong or len(frozen) == len(names):
        what = wrong[0] if wrong else "nothing is left to be trained"
        raise UsageError(f"experiment.init.freeze: {what}; there are {', '.join(names)}")
    return frozen
