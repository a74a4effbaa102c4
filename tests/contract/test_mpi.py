import pytest

from tianji_transports.testing import LivingTransportContract


@pytest.mark.alone  # Its ranks never sleep.
class TestMpi(LivingTransportContract):
    engine = "mpi"
    most_idle = 0.05  # it has nothing to sleep on
    left_unclaimed = 31  # MPICH lets 64 lie unread at a process before it sends nothing more to any other
