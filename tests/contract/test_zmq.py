from tianji_transports.testing import TransportContract


class TestZmq(TransportContract):
    engine = "zmq"
