from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tianji_algos import registry
from tianji_algos.errors import BrokenExtensionError, UnknownNameError
from tianji_algos.ppo.settings import PPOSettings


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module with an embryo of their own and some mistakes."""
    source = """
        from tianji_algos.core import Embryo
        from tianji_algos.settings import NoSettings
        class Mine(Embryo):
            settings_type = NoSettings
        class Unset(Embryo): ...
        class Stranger: ...
    """
    (tmp_path / "my_extension.py").write_text(textwrap.dedent(source))
    (tmp_path / "broken_extension.py").write_text("raise RuntimeError('half-written')")
    (tmp_path / "needy_extension.py").write_text("import a_library_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "my_extension"
    for name in ("my_extension", "broken_extension", "needy_extension"):
        sys.modules.pop(name, None)


def test_every_built_in_name_loads_and_declares_the_settings_the_table_says() -> None:
    kinds: tuple[registry.Kind, ...] = ("agent", "embryo", "model")
    for kind in kinds:
        for name in registry.names(kind):
            assert registry.load(kind, name).settings_type is registry.settings_type(kind, name)
    for name in registry.names("agent"):
        agent = registry.load("agent", name)
        defaults = registry.agent_defaults(name)
        assert (agent.default_model, agent.default_embryo) == (defaults.model, defaults.embryo)


def test_every_built_in_name_says_which_models_it_goes_with() -> None:
    for name in registry.names("model"):
        assert registry.contract("model", name) in {
            base.__name__ for base in registry.load("model", name).mro()
        }
    for name in registry.names("agent"):
        defaults, contract = registry.agent_defaults(name), registry.contract("agent", name)
        assert contract == registry.contract("embryo", defaults.embryo) is not None
        assert defaults.model in registry.built_in_names("model", contract)
        assert registry.plays_in_team(name) is registry.load("agent", name).plays_in_team
    assert registry.contract("model", "my_extension:Mine") is None
    assert registry.plays_in_team("my_extension:Mine") is None


def test_names_settings_and_defaults_need_no_torch() -> None:
    program = (
        "import sys; from tianji_algos import registry\n"
        "for kind in ('agent', 'embryo', 'model'):\n"
        "    for name in registry.names(kind): registry.settings_type(kind, name)()\n"
        "for name in registry.names('agent'): registry.agent_defaults(name)\n"
        "assert not {'torch', 'gymnasium'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("pp0", "did you mean 'ppo'"), ("zzzzz", "the agents are: dqn, impala, maddpg, mappo, ppo, qmix")],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(name: str, hint: str) -> None:
    for ask in (registry.check, registry.load, registry.settings_type):
        with pytest.raises(UnknownNameError, match=hint):
            ask("agent", name)  # type: ignore[operator]


def test_a_class_in_a_users_module_is_found(module: str) -> None:
    embryo = registry.load("embryo", f"{module}:Mine")
    assert embryo.__name__ == "Mine"
    assert registry.settings_type("embryo", f"{module}:Mine")().model_dump() == {}


def test_an_entry_point_is_found_by_its_name(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", f"{module}:Mine", "tianji.embryos")
    monkeypatch.setattr(
        "tianji_plugins._brought", lambda group: {"mine": point} if group == point.group else {}
    )
    assert registry.names("embryo") == ("dqn", "impala", "maddpg", "mappo", "mine", "ppo", "qmix")
    assert registry.load("embryo", "mine").__name__ == "Mine"
    with pytest.raises(UnknownNameError, match="did you mean 'mine'"):
        registry.check("embryo", "mien")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no_such_module:Mine", UnknownNameError, "no module 'no_such_module'"),
        ("my_extension:Mime", UnknownNameError, "did you mean my_extension:Mine"),
        ("my_extension:Stranger", BrokenExtensionError, "not a subclass of tianji_algos.core.Embryo"),
        ("my_extension:Unset", BrokenExtensionError, "settings_type"),
        ("broken_extension:Mine", BrokenExtensionError, "half-written"),
        ("needy_extension:Mine", BrokenExtensionError, "a_library_nobody_has"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_mistake_in_an_extension_is_named(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        registry.load("embryo", name)


def test_a_models_name_is_no_embryos() -> None:
    assert registry.settings_type("embryo", "ppo") is PPOSettings
    with pytest.raises(UnknownNameError, match="no embryo is named 'mlp_actor_critic'"):
        registry.load("embryo", "mlp_actor_critic")
