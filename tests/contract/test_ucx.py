from tianji_transports.testing import TransportContract


class TestUcx(TransportContract):
    engine = "ucx"
