from tianji_transports.testing import TransportContract


class TestInproc(TransportContract):
    engine = "inproc"
