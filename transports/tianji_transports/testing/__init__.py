"""The contract of a transport as tests for any engine, a third party's included.

    from tianji_transports.testing import TransportContract

    class TestMyEngine(TransportContract):
        engine = "my_module:MyTransport"

So does ``python -m tianji_transports.testing my_module:MyTransport``. Peers are real processes. The tests
of an engine whose capabilities exclude restarts of single peers derive from ``LivingTransportContract``;
those of an engine that is confined to one process (peers are threads there) from ``OneProcessContract``.
Needs pytest.
"""

try:
    import pytest
except ModuleNotFoundError as cause:  # With this name, `python -m` prints the message alone.
    raise ImportError("the contract needs pytest: pip install pytest", name=__name__) from cause

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("channels", "close", "soak", "verbs")))

from tianji_transports.registry import load  # noqa: E402
from tianji_transports.testing import verbs  # noqa: E402 - the rewriting is registered first
from tianji_transports.testing.channels import ChannelContract, SlotContract, WaitContract  # noqa: E402
from tianji_transports.testing.close import CloseContract, DeathContract, StopContract  # noqa: E402
from tianji_transports.testing.job import Job, Peer  # noqa: E402

__all__ = ["Job", "LivingTransportContract", "OneProcessContract", "Peer", "TransportContract", "verbs"]


class OneProcessContract(ChannelContract, SlotContract, WaitContract, CloseContract):
    """Part of the contract that holds within one process, too; set ``engine`` to the name of an engine."""

    def test_no_engine_escapes_the_tests_of_what_it_says_it_can_do(self) -> None:
        """An engine with processes has tests of stops, and one that survives deaths has tests of deaths."""
        can = load(self.engine).capabilities
        assert isinstance(self, StopContract) == can.cross_process
        assert isinstance(self, DeathContract) == (can.cross_process and can.peer_restart)


class LivingTransportContract(OneProcessContract, StopContract):
    """The contract without deaths; set ``engine`` to the name of an engine."""


class TransportContract(LivingTransportContract, DeathContract):
    """The whole contract; set ``engine`` to the name of an engine."""
