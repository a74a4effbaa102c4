"""The contract of a transport as tests, to run over any engine, a third party's included.

    from tianji_transports.testing import TransportContract

    class TestMyEngine(TransportContract):
        engine = "my_module:MyTransport"

Peers are real processes (threads, for an engine whose capabilities confine it to one process). What an
engine cannot do is read from its capabilities. Needs pytest.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("channels", "close", "deaths", "slots", "verbs", "waiting"))
)

from tianji_transports.testing import verbs  # noqa: E402 - after the rewriting was asked for
from tianji_transports.testing.channels import ChannelContract  # noqa: E402
from tianji_transports.testing.close import CloseContract  # noqa: E402
from tianji_transports.testing.deaths import DeathContract  # noqa: E402
from tianji_transports.testing.job import Job, Peer  # noqa: E402
from tianji_transports.testing.slots import SlotContract  # noqa: E402
from tianji_transports.testing.waiting import WaitContract  # noqa: E402

__all__ = ["Job", "Peer", "TransportContract", "verbs"]


class TransportContract(ChannelContract, SlotContract, WaitContract, DeathContract, CloseContract):
    """The whole contract; set ``engine`` to the name of an engine."""
