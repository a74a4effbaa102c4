from pathlib import Path

import pytest

from tianji_transports import registry
from tianji_transports.core import Transport
from tianji_transports.errors import BrokenEngineError, MissingExtraError, UnknownTransportError
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Wiring


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_engine_is_found_by_its_name() -> None:
    assert registry.load("inproc") is InprocTransport
    assert {"inproc", "shm", "zmq"} <= set(registry.names())


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownTransportError, match="did you mean 'inproc'"):
        registry.load("inprok")


def test_a_missing_library_is_answered_with_the_pip_command(folder: Path) -> None:
    (folder / "engine_m.py").write_text("raise ModuleNotFoundError('no', name='mpi4py.MPI')\n")
    with pytest.raises(MissingExtraError, match=r"pip install 'tianji\[mpi\]'"):
        registry.load("engine_m:Engine")


def test_a_users_engine_with_a_missing_library_says_what_to_install(folder: Path) -> None:
    (folder / "engine_a.py").write_text("import fabric_that_is_not_there.verbs\n")
    with pytest.raises(MissingExtraError, match="pip install 'fabric_that_is_not_there'"):
        registry.load("engine_a:Engine")


def test_what_is_no_engine_is_broken(folder: Path) -> None:
    (folder / "engine_c.py").write_text("Engine = 3\n")
    with pytest.raises(BrokenEngineError, match="not a subclass of Transport"):
        registry.load("engine_c:Engine")


def test_a_users_engine_is_named_by_module_and_class(folder: Path) -> None:
    (folder / "engine_d.py").write_text(
        "from tianji_transports.inproc import InprocTransport\nclass Mine(InprocTransport):\n    pass\n"
    )
    endpoint = registry.create("engine_d:Mine", Wiring("users"), 0)
    with endpoint:
        assert isinstance(endpoint, Transport)
        assert type(endpoint).__name__ == "Mine"


def test_available_tells_capabilities_or_the_error_of_every_engine() -> None:
    rows = {row.name: row for row in registry.available()}
    for name in ("inproc", "shm", "zmq"):
        assert rows[name].capabilities == registry.load(name).capabilities
        assert rows[name].error is None
    assert rows["zmq"].capabilities is not None
    assert rows["zmq"].capabilities.cross_host
