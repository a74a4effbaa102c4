"""Puts a model's parameters where actors find them, without keeping its training waiting."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Model
from tianji_algos.device import Snapshot
from tianji_cli.wire import published
from tianji_cli.wire.published import PublishedPolicy
from tianji_transports.core import Transport


class Publisher:
    """Publishes one version after another, each as the parameters were when it was begun.

    On a CPU that is done at once. Parameters on a GPU are still on their way for a while, which training
    may go on through: whoever trains asks ``is_due`` and calls ``finish``.

    Args:
        model: whose parameters.
        transport: the endpoint of this process.
        slot: the latest-value slot for parameters.
    """

    def __init__(self, model: Model, transport: Transport, slot: str) -> None:
        self._transport = transport
        self._slot = slot
        self._snapshot = Snapshot(model, published.nbytes(0))
        self._published = PublishedPolicy(self._snapshot.memory)
        self._begun: int | None = None

    @property
    def parameters(self) -> npt.NDArray[np.float32]:
        """Parameters ``[parameter_count]`` as last published, until the next are begun."""
        self.finish()
        return self._published.parameters

    def begin(self, version: int, env_steps: int) -> None:
        """Begin to publish the parameters as they are.

        Args:
            version: their number.
            env_steps: of the whole job, which actors schedule by.
        """
        self.finish()
        self._published.env_steps[...] = env_steps
        self._snapshot.take()
        self._begun = version
        if self._snapshot.is_there:
            self.finish()

    def is_due(self) -> bool:
        """A version was begun, and its parameters are there."""
        return self._begun is not None and self._snapshot.is_there

    def finish(self) -> bool:
        """Publish the version that was begun, after a wait if need be; False if there is none."""
        if self._begun is None:
            return False
        self._snapshot.wait()
        self._transport.publish(self._slot, self._published.memory, self._begun)
        self._begun = None
        return True
