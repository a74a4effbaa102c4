from tianji_transports.testing import OneProcessContract


class TestInproc(OneProcessContract):
    engine = "inproc"
