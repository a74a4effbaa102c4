import pytest

from tianji_transports.testing import LivingTransportContract


@pytest.mark.alone  # Its ranks never sleep.
class TestMpi(LivingTransportContract):
    engine = "mpi"
    most_idle = 0.05  # it has nothing to sleep on
