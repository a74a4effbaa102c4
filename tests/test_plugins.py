"""All registries find the names of a config in one way, or raise an error that says why not."""

import importlib
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import tianji_plugins
from tianji_plugins import Plugins

MODULES = {
    "widgets": "class Mine: ...\n",
    "widgets_half_written": "raise RuntimeError('half-written')\n",
    "widgets_unparsed": "class\n",
    "widgets_needy": "import a_library_nobody_has.verbs\n",
}
BUILT_IN = {"near": "widgets:Mine", "far": "nowhere:Far"}
BROUGHT = tianji_plugins._brought
WIDGETS = Plugins("widget", "tianji.widgets", LookupError, RuntimeError, BUILT_IN)


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of a user on the Python path, and an installed package that brings ``brought``."""
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    point = EntryPoint("brought", "widgets:Mine", WIDGETS.group)
    monkeypatch.setattr(
        "tianji_plugins._brought", lambda group: {"brought": point} if group == point.group else {}
    )


@pytest.mark.parametrize("name", ["near", "brought", "widgets:Mine"])
def test_a_name_is_built_in_or_brought_by_a_package_or_in_a_module_of_the_user(name: str) -> None:
    assert getattr(WIDGETS.load(name), "__name__", None) == "Mine"


def test_names_are_listed_with_where_they_come_from_and_nothing_is_imported() -> None:
    assert [(name, WIDGETS.source(name)) for name in WIDGETS.names()] == [
        *(("brought", "widgets"), ("far", "tianji"), ("near", "tianji"))
    ]
    assert WIDGETS.target("far") == "nowhere:Far"


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("neer", LookupError, "no widget is named 'neer'; did you mean 'near'?"),
        ("brouhgt", LookupError, "did you mean 'brought'?"),
        ("zzzzz", LookupError, "the widgets are: brought, far, near"),
        ("no_such_module:Mine", LookupError, "no module 'no_such_module'"),
        ("widgets:Mime", LookupError, "has no 'Mime'; did you mean widgets:Mine?"),
        ("__main__:Mine", LookupError, "'__main__' is another program in each process"),
        ("widgets_half_written:Mine", RuntimeError, "RuntimeError: half-written"),
        ("widgets_unparsed:Mine", RuntimeError, "SyntaxError"),
        ("widgets_needy:Mine", RuntimeError, "a_library_nobody_has"),
    ],
)
def test_a_mistake_is_named_with_its_cause(name: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        WIDGETS.load(name)
    assert said in str(raised.value)
    assert (raised.value.__cause__ is not None) is (
        ":" in name and name not in {"widgets:Mime", "__main__:Mine"}
    )


def test_what_two_packages_contain_is_refused_and_of_two_plug_ins_of_a_name_the_last_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, near in (("widgets-alone", "Mine"), ("widgets-whole", "Theirs")):
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[tianji.shared]\nboth = widgets:Mine\nnear = widgets:{near}\n"
        )
    shared = Plugins("widget", "tianji.shared", LookupError, RuntimeError)
    monkeypatch.setattr("tianji_plugins._brought", BROUGHT)
    with pytest.raises(
        RuntimeError, match=r"'both' is in two packages, .*pip uninstall widgets-\w+ widgets-\w+"
    ):
        shared.load("both")
    assert shared.target("near") in {"widgets:Mine", "widgets:Theirs"}


def test_a_missing_library_may_have_an_error_of_its_own() -> None:
    needy = Plugins("widget", "tianji.widgets", LookupError, RuntimeError, library=OSError)
    with pytest.raises(OSError, match="a_library_nobody_has") as raised:
        needy.load("widgets_needy:Mine")
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("package", "code", "absent"),
    [
        ("transports", "registry.names()", "iceoryx2 zmq tianji_transports.inproc"),
        ("envs", "registry.names()", "gymnasium numpy torch"),
        (
            "algos",
            "[registry.settings_type(kind, name)() for kind in ('agent', 'embryo', 'model')"
            " for name in registry.names(kind)]; list(map(registry.agent_defaults, registry.names('agent')))",
            "gymnasium torch",
        ),
    ],
)
def test_a_registry_lists_its_names_without_what_is_slow(package: str, code: str, absent: str) -> None:
    program = f"import sys; from tianji_{package} import registry; {code}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(absent.split()) & set(run.stdout.split())
