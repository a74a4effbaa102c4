from tianji_transports.testing import LivingTransportContract


class TestMpi(LivingTransportContract):
    engine = "mpi"
    most_idle = 0.10  # it has nothing to sleep on
