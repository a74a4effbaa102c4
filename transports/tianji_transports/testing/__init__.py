"""The contract of a transport as tests, to run over any engine, a third party's included.

    from tianji_transports.testing import TransportContract

    class TestMyEngine(TransportContract):
        engine = "my_module:MyTransport"

Peers are real processes (threads, for an engine whose capabilities confine it to one process). An engine
whose peers cannot die and come back one by one says so in its capabilities, and derives from
``LivingTransportContract``. Needs pytest.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("channels", "close", "deaths", "slots", "verbs", "waiting"))
)

from tianji_transports.registry import load  # noqa: E402
from tianji_transports.testing import verbs  # noqa: E402 - after the rewriting was asked for
from tianji_transports.testing.channels import ChannelContract  # noqa: E402
from tianji_transports.testing.close import CloseContract  # noqa: E402
from tianji_transports.testing.deaths import DeathContract  # noqa: E402
from tianji_transports.testing.job import Job, Peer  # noqa: E402
from tianji_transports.testing.slots import SlotContract  # noqa: E402
from tianji_transports.testing.waiting import WaitContract  # noqa: E402

__all__ = ["Job", "LivingTransportContract", "Peer", "TransportContract", "verbs"]


class LivingTransportContract(ChannelContract, SlotContract, WaitContract, CloseContract):
    """The contract but for deaths; set ``engine`` to the name of an engine."""

    def test_deaths_are_tested_where_the_capabilities_promise_to_survive_them(self) -> None:
        """No engine escapes the tests of what it says it can do."""
        can = load(self.engine).capabilities
        assert isinstance(self, DeathContract) == (can.cross_process and can.peer_restart)


class TransportContract(LivingTransportContract, DeathContract):
    """The whole contract; set ``engine`` to the name of an engine."""
