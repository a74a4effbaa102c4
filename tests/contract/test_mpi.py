from tianji_transports.testing import LivingTransportContract


class TestMpi(LivingTransportContract):
    engine = "mpi"
    most_idle = 0.05  # it has nothing to sleep on
