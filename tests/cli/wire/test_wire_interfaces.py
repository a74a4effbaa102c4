import socket

import pytest

from tianji_cli.errors import UsageError
from tianji_cli.wire.address import address_towards, is_loopback, own_address, parse_address, resolve


def test_an_address_is_taken_apart() -> None:
    assert parse_address("tcp://n1.cluster:5555") == ("n1.cluster", 5555)


@pytest.mark.parametrize("address", ["", "n1:5555", "tcp://n1", "tcp://n1:0", "tcp://n1:70000", "tcp:// n:5"])
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(UsageError, match=r"write tcp://HOST:PORT"):
        parse_address(address)


@pytest.mark.parametrize("host", ["*", "0.0.0.0"])
def test_an_address_that_says_nothing_to_others_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="name the address that they reach"):
        parse_address(f"tcp://{host}:5555")


def test_a_host_that_is_nowhere_is_named() -> None:
    with pytest.raises(UsageError, match=r"no address for host 'nowhere\.invalid'"):
        resolve("nowhere.invalid")


def test_the_way_to_this_host_begins_at_loopback() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert is_loopback(resolve("localhost"))


def test_this_host_s_own_address_can_be_listened_on() -> None:
    with socket.create_server((own_address(), 0)) as server:
        assert server.getsockname()[1] > 0
