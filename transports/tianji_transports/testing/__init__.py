"""The contract of a transport as tests, to run over any engine, a third party's included.

    from tianji_transports.testing import TransportContract

    class TestMyEngine(TransportContract):
        engine = "my_module:MyTransport"

Peers are real processes. An engine whose peers cannot die and come back one by one says so in its
capabilities, and its tests derive from ``LivingTransportContract``; those of an engine that is confined to
one process (peers are threads there) from ``OneProcessContract``. Needs pytest.
"""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("channels", "close", "soak", "verbs")))

from tianji_transports.registry import load  # noqa: E402
from tianji_transports.testing import verbs  # noqa: E402 - after the rewriting was asked for
from tianji_transports.testing.channels import ChannelContract, SlotContract, WaitContract  # noqa: E402
from tianji_transports.testing.close import CloseContract, DeathContract, StopContract  # noqa: E402
from tianji_transports.testing.job import Job, Peer  # noqa: E402

__all__ = ["Job", "LivingTransportContract", "OneProcessContract", "Peer", "TransportContract", "verbs"]


class OneProcessContract(ChannelContract, SlotContract, WaitContract, CloseContract):
    """What holds within one process, too; set ``engine`` to the name of an engine."""

    def test_no_engine_escapes_the_tests_of_what_it_says_it_can_do(self) -> None:
        """Stops are tested where there are processes, deaths where they are to be survived."""
        can = load(self.engine).capabilities
        assert isinstance(self, StopContract) == can.cross_process
        assert isinstance(self, DeathContract) == (can.cross_process and can.peer_restart)


class LivingTransportContract(OneProcessContract, StopContract):
    """The contract but for deaths; set ``engine`` to the name of an engine."""


class TransportContract(LivingTransportContract, DeathContract):
    """The whole contract; set ``engine`` to the name of an engine."""
