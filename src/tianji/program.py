"""``Program``: a job whose roles, channels and slots are Python objects, to train with or to simulate."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tianji.runs import Run, train
from tianji_cli.config.loader import dump_config, resolve
from tianji_cli.config.source import read
from tianji_cli.files.directories import temporary_directory
from tianji_cli.files.rundir import DEFAULT_OUT

if TYPE_CHECKING:
    from tianji.simulation import Simulation

Keys = Mapping[str, Any]


class Program:
    """A config with roles, channels and slots of one's own, as ``[roles]`` and ``[graph]`` have them.

    Classes have to be importable: each stands for its name, ``module:Class``.

    Args:
        config: a TOML file, or the name of a shipped one.
        roles: each a class, or a class and the keys of its section:
            ``{"player": (Player, {"num": 2, "reads": ["policy"]})}``.
        channels: each a path, or keys of its section, whose ``record`` may be a class.
        slots: keys of each section; ``record`` may be a class.
        sections: values in place of the config's, by section and key, as for ``tianji.train``.

    Attributes:
        config: the resolved config.

    Raises:
        TianjiError: the config cannot be run; lists every problem.
    """

    def __init__(
        self,
        config: str | os.PathLike[str],
        *,
        roles: Mapping[str, type | tuple[type, Keys]] | None = None,
        channels: Mapping[str, Sequence[Any] | Keys] | None = None,
        slots: Mapping[str, Keys] | None = None,
        **sections: Keys,
    ) -> None:
        self._directories: dict[str, None] = {}
        own = {
            "roles": self._sections(roles, "type"),
            "graph": {"channels": self._sections(channels, "path"), "slots": self._sections(slots, "record")},
        }
        tree = read(os.fspath(config))
        tree.merge({**sections, **own}, "tianji.Program")
        found = resolve(tree)
        places = dict.fromkeys([*found.experiment.extensions, *self._directories])
        experiment = found.experiment.model_copy(update={"extensions": tuple(places)})
        self.config = found.model_copy(update={"experiment": experiment})

    def train(self, *, out: str | os.PathLike[str] = DEFAULT_OUT, quiet: bool = True, **sections: Any) -> Run:
        """Train in processes, as ``tianji.train`` does: with any engine, on this host or with others.

        Args:
            out: directory of runs.
            quiet: show nothing; else show the command's output in this process's.
            sections: values in place of the program's, by section and key:
                ``distribution={"transport": "zmq"}``.

        Raises:
            UsageError: the config cannot be run; RunFailed: the training failed.
        """
        with temporary_directory() as place:
            config = place / "program.toml"
            config.write_text(dump_config(self.config), encoding="utf-8")
            return train(config, out=out, quiet=quiet, **sections)

    def simulate(
        self, seed: int = 0, *, moves: int = 1000, deaths: float = 0.0, order: str = ""
    ) -> Simulation:
        """Run all processes of the job in this thread, in an order that a seeded scheduler chooses.

        Roles, accounts, deaths and shutdown are those of a training. A process moves by one round of its
        roles; the engine is ``inproc``.

        Args:
            seed: of the scheduler, which chooses who moves and who dies; roles follow the config's seed.
            moves: rounds until training ends, unless it ends by itself before.
            deaths: probability that an actor, or a role that is ``restartable``, dies in its move.
            order: moves to make before any that the scheduler chooses, as ``Simulation.order`` has them.

        Raises:
            UsageError: the job has several groups or learners, which wait for one another.
        """
        from tianji.simulation import simulate  # noqa: PLC0415 - imports torch

        return simulate(self.config, seed, moves, deaths, order)

    def _sections(self, objects: Mapping[str, Any] | None, key: str) -> dict[str, Keys]:
        """Write each object as a section: it is the value of one key, or that and other keys, or all keys."""
        sections: dict[str, Keys] = {}
        for name, one in (objects or {}).items():
            value, more = one if isinstance(one, tuple) and isinstance(one[-1], Mapping) else (one, {})
            keys = value if isinstance(value, Mapping) else {key: value, **more}
            sections[name] = {k: self._name_of(v) if isinstance(v, type) else v for k, v in keys.items()}
        return sections

    def _name_of(self, named: type) -> str:
        """Name a class as a config does; its module's directory becomes one of ``experiment.extensions``."""
        module = named.__module__
        if file := getattr(sys.modules.get(module), "__file__", None):
            depth = module.count(".") + (Path(file).name == "__init__.py")
            self._directories[str(Path(file).resolve().parents[depth])] = None
        return f"{module}:{named.__qualname__}"
