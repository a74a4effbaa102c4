from tianji_transports.testing import LivingTransportContract


class TestMpi(LivingTransportContract):
    engine = "mpi"
