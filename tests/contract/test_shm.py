from tianji_transports.testing import TransportContract


class TestShm(TransportContract):
    engine = "shm"
