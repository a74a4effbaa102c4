"""The minutes-long part of the contract, for every engine. Run by `nox -s soak`."""

import pytest

from tianji_transports.testing.soak import DeathSoakContract, SoakContract

pytestmark = pytest.mark.soak


class TestShm(SoakContract, DeathSoakContract):
    engine = "shm"


class TestZmq(SoakContract, DeathSoakContract):
    engine = "zmq"


class TestUcx(SoakContract, DeathSoakContract):
    engine = "ucx"


class TestMpi(SoakContract):
    engine = "mpi"


class TestHostsOfTwo(SoakContract, DeathSoakContract):
    engine = "tianji_transports.testing.job:HostsOfTwo"
