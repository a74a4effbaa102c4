"""A Ray cluster on this machine whose nodes, real raylets, come and go."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ray.cluster_utils import Cluster

FAST_HEALTH_CHECKS: Final = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
}
"""Health checks that notice a lost node in seconds, in place of ten."""


class Raylets:
    """A cluster with a head and further nodes of one CPU each; enter it to have it, leave it to end it all.

    Attributes:
        address: as ``ray.init`` takes it.
    """

    def __init__(self) -> None:
        # A short path: sockets lie below it.
        self._place = Path(tempfile.mkdtemp(prefix="raylets-", dir="/tmp"))

    def __enter__(self) -> Self:
        os.environ["RAY_TMPDIR"] = str(self._place)
        (self._place / "ray").mkdir()
        head = {
            "num_cpus": 1,
            "include_dashboard": False,
            "object_store_memory": 80 << 20,
            "_system_config": FAST_HEALTH_CHECKS,
        }
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self._cluster.address)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.shutdown()
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(self._place, ignore_errors=True)

    def add_node(self) -> Any:
        """Add a node of one CPU."""
        return self._cluster.add_node(num_cpus=1, object_store_memory=80 << 20)

    def lose(self, node: Any) -> None:
        """Kill a node and all that runs on it."""
        self._cluster.remove_node(node, allow_graceful=False)
