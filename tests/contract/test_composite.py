from tianji_transports.testing import TransportContract

ARRANGEMENTS = "tianji_transports.testing.job"


class TestManyHosts(TransportContract):
    engine = f"{ARRANGEMENTS}:ManyHosts"


class TestHostsOfTwo(TransportContract):
    engine = f"{ARRANGEMENTS}:HostsOfTwo"
