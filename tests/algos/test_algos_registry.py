from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from algos.team_episodes import team_spaces

from tianji_algos import registry
from tianji_algos.core import Spaces, build_model
from tianji_algos.errors import BrokenExtensionError, UnknownNameError, UnsuitableModelError
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
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "my_extension"
    for name in ("my_extension", "broken_extension"):
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


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    for ask in (registry.load, registry.settings_type):
        with pytest.raises(UnknownNameError, match="did you mean 'ppo'"):
            ask("agent", "pp0")  # type: ignore[operator]


def test_packages_bring_each_kind_by_a_group_of_its_own() -> None:
    groups = {kind: plugins.group for kind, plugins in registry.PLUGINS.items()}
    assert groups == {"agent": "tianji.agents", "embryo": "tianji.embryos", "model": "tianji.models"}


def test_a_class_in_a_users_module_is_found(module: str) -> None:
    embryo = registry.load("embryo", f"{module}:Mine")
    assert embryo.__name__ == "Mine"
    assert registry.settings_type("embryo", f"{module}:Mine")().model_dump() == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_extension:Stranger", "not a subclass of tianji_algos.core.Embryo"),
        ("my_extension:Unset", "settings_type"),
        ("broken_extension:Mine", "half-written"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_mistake_in_an_extension_is_named(name: str, message: str) -> None:
    with pytest.raises(BrokenExtensionError, match=message):
        registry.load("embryo", name)


def test_a_models_name_is_no_embryos() -> None:
    assert registry.settings_type("embryo", "ppo") is PPOSettings
    with pytest.raises(UnknownNameError, match="no embryo is named 'mlp_actor_critic'"):
        registry.load("embryo", "mlp_actor_critic")


@pytest.mark.parametrize("name", registry.names("agent"))
def test_a_model_of_another_kind_is_refused_by_agent_and_embryo(name: str, cartpole_spaces: Spaces) -> None:
    contract, default = registry.contract("agent", name), registry.agent_defaults(name).model
    wrong = "mlp_actor_critic" if contract == "QNetwork" else "mlp_q"
    settings = registry.settings_type("model", wrong)()
    model = build_model(registry.load("model", wrong), cartpole_spaces, settings, 0)
    spaces = team_spaces() if registry.plays_in_team(name) else cartpole_spaces
    complaint = f"is no {contract}, which {name.upper()} works with; the model '{default}' would be right"
    kinds: tuple[registry.Kind, ...] = ("agent", "embryo")
    for kind in kinds:
        seeds = (4, 0) if kind == "agent" else (0,)
        with pytest.raises(UnsuitableModelError, match=complaint):
            registry.load(kind, name)(spaces, model, registry.settings_type(kind, name)(), *seeds)
