"""Environments that other packages register with gymnasium: their ids are found, or say what finds them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tianji_envs import gym as other_packages
from tianji_envs import registry
from tianji_envs.errors import UnknownEnvironmentError

REGISTERS = """
import gymnasium

gymnasium.register(
    id="FarGrid-Empty-v0",
    entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
)
"""


@pytest.fixture
def far_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed package that registers an environment when it is imported."""
    (tmp_path / "far_grid").mkdir()
    (tmp_path / "far_grid/__init__.py").write_text(REGISTERS)
    info = tmp_path / "far_grid-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: far-grid\nVersion: 1.0\nRequires-Dist: gymnasium>=1.0\n")
    (info / "RECORD").write_text("far_grid/__init__.py,,\nfar_grid/gone.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "far_grid", raising=False)
    yield "far_grid"
    gymnasium.registry.pop("FarGrid-Empty-v0", None)
    sys.modules.pop("far_grid", None)


def message_about(env_id: str) -> str:
    with pytest.raises(UnknownEnvironmentError) as caught:
        registry.find("gym").check_id(env_id)
    return str(caught.value)


def test_the_installed_package_that_registers_an_id_is_named_and_not_imported(far_grid: str) -> None:
    message = message_about("FarGrid-Empty-v0")
    assert message == (
        "gymnasium has no environment 'FarGrid-Empty-v0'; far_grid is installed and has it: "
        'id = "far_grid:FarGrid-Empty-v0" imports it'
    )
    assert far_grid not in sys.modules


@pytest.mark.usefixtures("far_grid")
def test_with_its_module_in_front_an_id_is_found(roll: Callable[..., Any]) -> None:
    factory = registry.find("gym")
    factory.check_id("far_grid:FarGrid-Empty-v0")
    roll(factory.make("far_grid:FarGrid-Empty-v0", 2), 3)
    assert "; did you mean far_grid:FarGrid-Empty-v0" in message_about("far_grid:FarGrid-Empt-v0")


@pytest.mark.parametrize("env_id", ["FarGrid-Other-v0", "FarGrid-Empty", ""])
@pytest.mark.usefixtures("far_grid")
def test_no_package_is_named_for_an_id_that_none_registers(env_id: str) -> None:
    assert "far_grid" not in message_about(env_id)


def test_a_well_known_package_is_named_whether_it_is_installed_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for env_id in ("MiniGrid-Empty-5x5-v0", "BabyAI-BossLevel-v0"):  # Another test may have used them.
        monkeypatch.delitem(gymnasium.registry, env_id, raising=False)
    monkeypatch.setattr(other_packages.importlib.util, "find_spec", lambda _module: None)
    assert message_about("MiniGrid-Empty-5x5-v0").endswith(
        'minigrid has such ones: pip install minigrid, then id = "minigrid:MiniGrid-Empty-5x5-v0"'
    )
    monkeypatch.setattr(other_packages.importlib.util, "find_spec", lambda _module: object())
    assert message_about("BabyAI-BossLevel-v0").endswith(
        'minigrid is installed and has such ones: id = "minigrid:BabyAI-BossLevel-v0" imports it'
    )


def test_a_module_that_is_not_there_is_answered_with_the_pip_command_if_it_is_known() -> None:
    assert message_about("metaworld:Meta-World/MT1").endswith("pip install metaworld")
    assert "pip" not in message_about("no_such_module:Some-v0")
