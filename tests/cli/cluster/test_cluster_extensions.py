from pathlib import Path

import pytest

from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_cli.cluster.extensions import collect_modules, lay_down
from tianji_cli.config.schema import Component, JobConfig


def config(place: Path, environment: str) -> JobConfig:
    return JobConfig(
        experiment={"name": "x", "stop": {"env_steps": 10}, "extensions": [str(place)]},
        environment={"type": environment},
        agent=Component(type="ppo", settings=PPOAgentSettings()),
        model=Component(type="mlp_actor_critic", settings=MLPActorCriticSettings()),
        training=Component(type="ppo", settings=PPOSettings()),
    )


def test_a_module_goes_with_what_it_imports_from_the_same_directory(tmp_path: Path) -> None:
    (tmp_path / "maze.py").write_text("import json\nimport numpy\n\ndef late():\n    import rules\n")
    (tmp_path / "rules.py").write_text("from shapes.round import circle\n")
    (tmp_path / "unrelated.py").write_text("")
    package = tmp_path / "shapes"
    package.mkdir()
    for name in ("__init__", "round", "by_a_name_made_up_at_run_time"):
        (package / f"{name}.py").write_text(f"name = {name!r}\n")
    sources = collect_modules(config(tmp_path, "maze:Maze"))
    assert sorted(sources) == [
        "maze.py",
        "rules.py",
        "shapes/__init__.py",
        "shapes/by_a_name_made_up_at_run_time.py",
        "shapes/round.py",
    ]
    assert sources["rules.py"] == "from shapes.round import circle\n"


def test_an_installed_module_stays_where_it_is(tmp_path: Path) -> None:
    assert collect_modules(config(tmp_path, "numpy:ndarray")) == {}
    assert collect_modules(config(tmp_path, "gym")) == {}


def test_what_was_collected_is_laid_down_as_it_was(tmp_path: Path) -> None:
    sources = {"maze.py": "a = 1\n", "shapes/__init__.py": "", "shapes/round.py": "b = 'é'\n"}
    lay_down(sources, tmp_path)
    found = {
        str(path.relative_to(tmp_path / "extensions")): path.read_text(encoding="utf-8")
        for path in (tmp_path / "extensions").rglob("*.py")
    }
    assert found == sources


@pytest.mark.parametrize("path", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "evil.sh", ".bashrc"])
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="no path of a module"):
        lay_down({path: ""}, tmp_path / "host")
    assert not list(tmp_path.rglob("*evil*"))
