"""Tensors of another run that fit a new model by name and shape, and parameters that are not trained."""

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
"""Begins the names of a model's running statistics."""
NETWORKS = ("model.", "target")
"""Begin the names of networks in an update rule's state; the rest is what optimizers remember."""


@dataclass(frozen=True)
class Initial:
    """Tensors that a new run begins with.

    Attributes:
        place: directory of a checkpoint, or a file.
        saved: what is there, by name.
        report: what is taken, as JSON values.
    """

    place: Path
    saved: Mapping[str, torch.Tensor]
    report: dict[str, Any]

    @classmethod
    def fill(cls, place: Path, model: Model, init: Init) -> Initial:
        """Let a model begin with what fits it; targets that are built of it afterwards begin likewise.

        Raises:
            TianjiError: what is there is damaged, nothing fits, or what does not is to be frozen.
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
                saved[name] = torch.zeros_like(saved[mean])  # Earlier runs had means of 32 bits.
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
        """Let an update rule begin with what it has set in the model itself, and with its optimizers' state.

        Raises:
            UsageError: there is none, or of another algorithm.
        """
        tensors, rest = embryo.state()
        for name in self.report["taken"]:
            if f"model.{name}" in tensors:  # SAC begins with a temperature of its own.
                tensors[f"model.{name}"] = self.saved[name]
        try:
            if self.report["optimizer"]:
                moments, said = load_training(self.place)
                tensors |= {name: one for name, one in moments.items() if not name.startswith(NETWORKS)}
                rest |= {key: value for key, value in said["embryo"].items() if key != "rng"}
            embryo.load_state(tensors, rest)
        except (TianjiError, AlgorithmError, KeyError) as cause:
            raise UsageError(
                f"experiment.init.optimizer: {describe(cause)}; RUN:last of a run that trained by the same "
                "rule has what is wanted"
            ) from cause


def _later(name: str) -> tuple[bool, str]:
    """Order names: statistics come last."""
    return name.startswith(STATISTICS), name


def _unfit(
    own: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor], *, statistics: bool
) -> dict[str, str]:
    """Say which tensors do not fit, and why; of statistics that belong together all are taken, or none."""
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
    """List the parameters that are not trained, by patterns in which ``*`` stands for anything.

    Raises:
        UsageError: a pattern matches none, or together they match all.
    """
    names = [name for name, _ in model.named_parameters()]
    found = {pattern: matching(names, pattern) for pattern in patterns}
    frozen = sorted(set().union(*found.values()), key=names.index)
    wrong = [repr(pattern) + " matches no parameter" for pattern in found if not found[pattern]]
    if wrong or len(frozen) == len(names):
        what = wrong[0] if wrong else "nothing is left to be trained"
        raise UsageError(f"experiment.init.freeze: {what}; there are {', '.join(names)}")
    return frozen
