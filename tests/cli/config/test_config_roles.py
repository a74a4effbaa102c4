"""``[roles.NAME]``: which roles of the user's own a job has, and what is said against others."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import tianji_plugins
from tianji_cli.commands.list import list_things
from tianji_cli.config.loader import dump_config, load_config, parse_config
from tianji_cli.config.schema import ROLES, JobConfig
from tianji_cli.errors import ConfigError
from tianji_cli.launch.extensions import collect_files
from tianji_cli.roles.user_role import find_user_role

ROLE = """
from pydantic import BaseModel
from tianji_algos.settings import Settings
from tianji_cli.roles.user_role import UserRole

class TapeSettings(Settings):
    max_mb: int = 10
    names: tuple[str, ...] = ()

class Tape(UserRole):
    settings_type = TapeSettings
    def turn(self):
        return False

class Plain(UserRole):
    def turn(self):
        return False

class Careless(BaseModel):
    speed: float = 1.0

class Lax(Plain):
    settings_type = Careless

class Clash(Plain):
    settings_type = type("Clashing", (Settings,), {"__annotations__": {"cores": int}})

class Broken(Plain):
    settings_type = 5

class Other:
    settings_type = TapeSettings
"""

CONFIG = """
extends = "configs/dqn_cartpole.toml"
[experiment]
name = "mine"
"""


@pytest.fixture(autouse=True)
def path_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One module for all tests of this file: Python imports a name once."""
    directory = tmp_path_factory.mktemp("mine")
    (directory / "tape_roles.py").write_text(ROLE)
    (directory / "broken_roles.py").write_text("1 / 0\n")
    (directory / "thirsty_roles.py").write_text("import no_such_library_here\n")
    return directory


def write(place: Path, roles: str, name: str = "mine.toml", base: str = CONFIG) -> Path:
    path = place / name
    path.write_text(base + roles)
    return path


def loaded(place: Path, roles: str, *overrides: str) -> JobConfig:
    return load_config(str(write(place, roles)), overrides)


TAPE = '[roles.tape]\ntype = "tape_roles:Tape"\nreceives = ["fragments"]\n'


def test_a_role_has_settings_of_its_own_class_beside_what_every_role_has(place: Path) -> None:
    config = loaded(place, TAPE + 'max_mb = 3\nnames = ["a"]\ncores = 2\nreads = ["policy"]\n')
    role = config.roles["tape"]
    assert (role.receives, role.reads, role.cores) == (("fragments",), ("policy",), 2)
    assert role.settings.model_dump() == {"max_mb": 3, "names": ("a",)}
    assert type(role.settings) is find_user_role("tape_roles:Tape").settings_type


def test_a_role_that_says_nothing_of_settings_takes_none(place: Path) -> None:
    plain = '[roles.plain]\ntype = "tape_roles:Plain"\nreads = ["policy"]'
    assert loaded(place, plain).roles["plain"].cores == 0
    with pytest.raises(ConfigError, match=r"roles\.plain\.max_mb: unknown key"):
        loaded(place, '[roles.plain]\ntype = "tape_roles:Plain"\nmax_mb = 5')


def test_a_role_that_nothing_connects_is_refused(place: Path) -> None:
    with pytest.raises(ConfigError, match=r"roles\.plain: it is connected with no other role"):
        loaded(place, '[roles.plain]\ntype = "tape_roles:Plain"')


def test_set_reaches_into_a_role_and_may_add_one(place: Path) -> None:
    config = loaded(
        place,
        TAPE,
        "roles.tape.max_mb=5",
        "roles.other.type=tape_roles:Plain",
        'roles.other.reads=["policy"]',
    )
    assert config.roles["tape"].settings.model_dump()["max_mb"] == 5
    assert config.roles["other"].reads == ("policy",)


def test_keys_of_a_role_are_inherited_one_by_one_and_another_type_begins_anew(place: Path) -> None:
    write(place, TAPE + 'max_mb = 7\nnames = ["base"]\n', "base.toml")
    child = 'extends = "base.toml"\n[roles.tape]\n'
    inherited = load_config(str(write(place, "names = []\n", "child.toml", child))).roles["tape"]
    assert inherited.receives == ("fragments",)
    assert inherited.settings.model_dump() == {"max_mb": 7, "names": ()}
    changed = 'type = "tape_roles:Plain"\nreads = ["policy"]\n'
    other = load_config(str(write(place, changed, "child.toml", child))).roles["tape"]
    assert (other.type, other.receives) == ("tape_roles:Plain", ())


def test_a_dump_with_roles_loads_as_the_same_config(place: Path, tmp_path: Path) -> None:
    tape = TAPE + 'names = ["x"]\ncores = "0-1"\nhosts = ["a"]\n'
    config = loaded(place, tape + '[roles.plain]\ntype = "tape_roles:Plain"\nreads = ["policy"]\n')
    (tmp_path / "config.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "config.toml")) == config
    assert list(config.roles) == ["tape", "plain"]
    assert (config.roles["tape"].core_list, config.roles["tape"].hosts) == ((0, 1), ("a",))


def test_a_config_without_roles_says_nothing_of_them(place: Path) -> None:
    assert "roles" not in dump_config(loaded(place, ""))


@pytest.mark.parametrize(
    ("roles", "key", "said"),
    [
        ("[roles]\ntape = 5", "roles.tape", r"5 is no role; write \[roles\.tape\]"),
        ("[roles.tape]\nmax_mb = 5", "roles.tape.type", "missing; for example"),
        ("[roles.tape]\ntype = 5", "roles.tape.type", "5 does not fit; it should be a string"),
        ('[roles.learner]\ntype = "tape_roles:Tape"', "roles.learner", "role of every job"),
        ('[roles.endpoint]\ntype = "tape_roles:Tape"', "roles.endpoint", "reports use for something else"),
        ('[roles."my-tape"]\ntype = "tape_roles:Tape"', "roles.my-tape", "letters, digits and '_'"),
        ('[roles."../x"]\ntype = "tape_roles:Tape"', "roles.../x", "letters, digits and '_'"),
        (TAPE + "max_m = 5", "roles.tape.max_m", "unknown key; did you mean 'max_mb'"),
        (TAPE + "core = 5", "roles.tape.core", "unknown key; did you mean 'cores'"),
        (
            TAPE + "zzz = 5",
            "roles.tape.zzz",
            "the keys here are: cores, hosts, max_mb, names, num, per, reads, receives, type",
        ),
        (TAPE + 'max_mb = "5"', "roles.tape.max_mb", r"it should be a whole number \(without quotes\)"),
        (TAPE + 'reads = ["polici"]', "roles.tape.reads[0]", "did you mean 'policy'"),
        (TAPE + "cores = -1", "roles.tape.cores", "-1 does not fit"),
        ('[roles.lax]\ntype = "tape_roles:Lax"\nspeet = 2.0', "roles.lax.speet", "did you mean 'speed'"),
        ('[roles.x]\ntype = "tape_roles:Tap"', "roles.x.type", "did you mean tape_roles:Tape"),
        ('[roles.x]\ntype = "tape_rolls:Tape"', "roles.x.type", "there is no module 'tape_rolls'"),
        ('[roles.x]\ntype = "tape_roles:Other"', "roles.x.type", "not a subclass of UserRole"),
        ('[roles.x]\ntype = "tape_roles:ROLE"', "roles.x.type", "has no 'ROLE'"),
        (
            '[roles.x]\ntype = "tape_roles:Clash"',
            "roles.x.type",
            "has a setting 'cores', which every role has",
        ),
        ('[roles.x]\ntype = "tape_roles:Broken"', "roles.x.type", "no `settings_type`"),
        ('[roles.x]\ntype = "broken_roles:Tape"', "roles.x.type", "ZeroDivisionError"),
        ('[roles.x]\ntype = "thirsty_roles:Tape"', "roles.x.type", "does not import: .*no_such_library_here"),
        ('[roles.x]\ntype = "tapes"', "roles.x.type", "no role is named 'tapes'; there are no roles"),
    ],
)
def test_a_role_that_cannot_be_is_refused_with_what_would_be_right(
    place: Path, roles: str, key: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        loaded(place, roles)
    assert [problem.key for problem in refused.value.problems] == [key]
    assert len(str(refused.value).splitlines()) == 1


def test_all_that_is_wrong_with_roles_is_said_at_once(place: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(place, TAPE + 'max_mb = "a"\ncores = 1.5\n[roles.actor]\ntype = "tape_roles:Plain"\n')
    keys = {problem.key for problem in refused.value.problems}
    assert keys == {"roles.tape.max_mb", "roles.tape.cores", "roles.actor"}


def test_a_problem_of_a_role_names_the_file_that_set_the_key(place: Path) -> None:
    write(place, TAPE + "max_mb = 7.5\n", "base.toml")
    child = write(place, "cores = -2\n", "child.toml", 'extends = "base.toml"\n[roles.tape]\n')
    with pytest.raises(ConfigError) as refused:
        load_config(str(child))
    where = {problem.key: Path(problem.where).name for problem in refused.value.problems}
    assert where == {"roles.tape.max_mb": "base.toml", "roles.tape.cores": "child.toml"}


def test_a_name_of_an_installed_package_is_a_type(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sys.path.append(str(place))
    point = EntryPoint("taper", "tape_roles:Tape", ROLES.group)
    before = tianji_plugins._brought
    monkeypatch.setattr(
        tianji_plugins, "_brought", lambda group: {"taper": point} if group == point.group else before(group)
    )
    config = loaded(place, '[roles.tape]\ntype = "taper"\nmax_mb = 4\nreads = ["policy"]')
    assert config.roles["tape"].settings.model_dump()["max_mb"] == 4
    assert find_user_role("taper") is find_user_role("tape_roles:Tape")
    with pytest.raises(ConfigError, match="no role is named 'tapper'; did you mean 'taper'"):
        loaded(place, '[roles.tape]\ntype = "tapper"')


def test_roles_of_installed_packages_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = EntryPoint("judge", "tianji_cli.roles.evaluator:Evaluator", ROLES.group)
    monkeypatch.setattr(
        "tianji_plugins._brought", lambda group: {"judge": point} if group == point.group else {}
    )
    assert list_things("roles", json_to="-") == 0
    (entry,) = json.loads(capsys.readouterr().out)["roles"]
    assert (entry["name"], entry["description"]) == (
        "judge",
        "Plays when its schedule says, one step of its environments a turn.",
    )


def test_a_role_s_module_is_found_beside_the_config_and_travels_to_other_hosts(place: Path) -> None:
    config = loaded(place, TAPE)
    assert config.experiment.extensions[0] == str(place)
    assert collect_files(config) == {"tape_roles.py": ROLE.encode()}
    assert parse_config(dump_config(config)).roles == config.roles


def test_checking_a_role_costs_no_torch(place: Path) -> None:
    path = write(place, TAPE)
    program = (
        f"import sys; from tianji_cli.config.loader import load_config; load_config({str(path)!r}); "
        "from tianji_cli.roles.user_role import UserRole; print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert output.strip() == "False"
