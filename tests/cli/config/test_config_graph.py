"""``[graph]``: channels and slots between roles of one's own, good ones and bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tianji_cli.config import graph
from tianji_cli.config.loader import dump_config, load_config, parse_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError
from tianji_cli.plan import graph as built_in
from tianji_cli.plan.plan import Host, make_plan

MODULE = """
from tianji_cli.roles.user_role import UserRole

class Any(UserRole):
    def turn(self):
        return False

class Pair:
    @classmethod
    def fields(cls, spaces, config):
        return ()
"""
ROLES = "".join(f'[roles.{name}]\ntype = "graph_roles:Any"\n' for name in ("maker", "changer", "taker"))
BASE = 'extends = "configs/ppo_cartpole.toml"\n'


def written(place: Path, tables: str, roles: str = ROLES) -> str:
    (place / "graph_roles.py").write_text(MODULE)
    path = place / "mine.toml"
    path.write_text(BASE + roles + tables)
    return str(path)


def channel(name: str = "pairs", **keys: Any) -> str:
    values = {"path": '["maker", "taker"]', "record": '"graph_roles:Pair"'} | keys
    return f"[graph.channels.{name}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())


def fragments(between: str, **keys: Any) -> str:
    return channel("fragments", **({"path": f'["actor", {between}, "buffer"]', "record": '""'} | keys))


def slot(name: str = "newest", **keys: Any) -> str:
    values = {"writer": '"maker"', "readers": '["taker"]', "record": '"graph_roles:Pair"'} | keys
    return f"[graph.slots.{name}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())


def edges(config: JobConfig) -> dict[str, set[tuple[tuple[int, ...], int]]]:
    """Senders and receiver of each of the config's own channels, by ranks."""
    plan = make_plan(config, [Host("here")])
    names = [edge.name for edge in plan.channels] + [edge.name for edge in plan.slots]
    sizes = dict.fromkeys(names, built_in.ChannelSize(8))
    wiring = plan.wiring("job", sizes, dict.fromkeys(names, 8))
    own = config.graph.channels
    found: dict[str, set[tuple[tuple[int, ...], int]]] = {name: set() for name in own}
    for one in wiring.channels:
        if (name := one.name.partition("-")[0]) in own:
            found[name].add((one.senders, one.receiver))
    return found


def test_a_graph_survives_being_written_and_read(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, channel(window="5") + slot()))
    assert config.graph.channels["pairs"].window == 5
    assert parse_config(dump_config(config)) == config


def test_a_config_without_a_graph_is_written_without_one() -> None:
    assert "graph" not in dump_config(load_config("configs/ppo_cartpole.toml"))


@pytest.mark.parametrize(
    ("tables", "settings", "wanted"),
    [
        (channel(), (), {"pairs": {((2,), 4)}}),
        (channel(path='["maker", "changer", "taker"]'), (), {"pairs": {((2,), 3), ((3,), 4)}}),
        (channel(path='[["maker", "changer"], "taker"]'), (), {"pairs": {((2, 3), 4)}}),
        (channel(), ("roles.taker.num=2",), {"pairs": {((2,), 4), ((2,), 5)}}),
        (channel(), ("roles.maker.num=2",), {"pairs": {((2, 3), 5)}}),
        (
            channel(route='"share"'),
            ("roles.maker.num=3", "roles.taker.num=2"),
            {"pairs": {((2, 4), 6), ((3,), 7)}},
        ),
    ],
)
def test_paths_become_channels_between_ranks(
    tmp_path: Path, tables: str, settings: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    # Rank 1 is buffer and learner; then the roles in their order, then the actor.
    config = load_config(written(tmp_path, tables), ("distribution.actor.num=1", *settings))
    assert edges(config) == wanted


@pytest.mark.parametrize(
    ("tables", "settings", "key", "why"),
    [
        (channel(path='["maker", "takr"]'), (), "graph.channels.pairs.path", "did you mean 'taker'?"),
        (channel(path='["actor", "taker"]'), (), "graph.channels.pairs.path", "there is no [roles.actor]"),
        (channel(record='""'), (), "graph.channels.pairs.record", "missing"),
        (
            fragments('"maker"', record='"graph_roles:Pair"'),
            (),
            "graph.channels.fragments.record",
            "leave it",
        ),
        (fragments('"maker"', window="3"), (), "graph.channels.fragments.window", "actor.window bounds"),
        (fragments('"makr"'), (), "graph.channels.fragments.path", "did you mean 'maker'?"),
        (fragments('["maker", "taker"]'), (), "graph.channels.fragments.path", "one role after another"),
        (channel("fragments", record='""'), (), "graph.channels.fragments.path", "from actors to the buffer"),
        (
            fragments('"maker"'),
            ("distribution.actor.num=1", "roles.maker.num=2"),
            "roles.maker.num",
            "would get nothing",
        ),
        (
            fragments('"maker"'),
            ('roles.maker.receives=["fragments"]',),
            "roles.maker.receives",
            "gets every fragment of its actors by the path",
        ),
        (
            fragments('"maker"')
            + channel(path='["taker", "maker"]')
            + channel("on", path='["maker", "taker"]'),
            (),
            "graph.channels",
            "is a circle",
        ),
        (channel(path='["maker"]'), (), "graph.channels.pairs.path", "at least 2"),
        (channel(path='["maker", "maker"]'), (), "graph.channels.pairs.path", "is named twice"),
        (channel(name="batches"), (), "graph.channels.batches", "is built in"),
        (channel(name='"a-b"'), (), "graph.channels.a-b", "is not a valid name"),
        (channel(record='"graph_roles:Any"'), (), "graph.channels.pairs.record", "no class method `fields"),
        (channel(record='"graph_roles:Pears"'), (), "graph.channels.pairs.record", "Pears"),
        (channel(route='"shared"'), (), "graph.channels.pairs.route", "did you mean 'share'?"),
        (channel(windo="2"), (), "graph.channels.pairs.windo", "did you mean 'window'?"),
        (
            channel() + channel("back", path='["taker", "changer", "maker"]'),
            (),
            "graph.channels.pairs.path",
            "is a circle",
        ),
        (channel(route='"share"'), ("roles.taker.num=2",), "roles.taker.num", "would get nothing"),
        (slot(writer='"takr"'), (), "graph.slots.newest.writer", "did you mean 'taker'?"),
        (slot(readers="[]"), (), "graph.slots.newest.readers", "at least 1"),
        (slot(readers='["maker"]'), (), "graph.slots.newest.readers", "writes it"),
        (slot(name="policy"), (), "graph.slots.policy", "is built in"),
        (slot(), ("roles.maker.num=2",), "roles.maker.num", "one writes a slot"),
        (
            channel(),
            ("distribution.transport=inproc",),
            "distribution.transport",
            "in one process, which cannot wait for itself",
        ),
    ],
)
def test_what_could_never_work_is_refused_and_named(
    tmp_path: Path, tables: str, settings: tuple[str, ...], key: str, why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(written(tmp_path, tables), settings)
    text = str(refused.value)
    assert key in text
    assert why in text


def test_several_processes_of_a_role_need_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which has one of each"):
        load_config(written(tmp_path, ""), ["roles.maker.num=2", "distribution.transport=inproc"])


def test_a_path_back_by_a_slot_is_no_circle(tmp_path: Path) -> None:
    load_config(written(tmp_path, channel() + slot(writer='"taker"', readers='["maker"]')))


def test_the_names_of_built_in_channels_and_slots_are_reserved() -> None:
    names = {
        value
        for name, value in vars(built_in).items()
        if name.isupper() and isinstance(value, str) and name not in {"ROOT", "EXAMINER"}
    }
    assert names == set(graph.RESERVED)
