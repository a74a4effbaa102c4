from tianji_transports.testing import LivingTransportContract


class TestInproc(LivingTransportContract):
    engine = "inproc"
