"""``[graph]``: channels and slots between roles of one's own, good ones and bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tianji_cli.config import edges as named
from tianji_cli.config.checks import fragments_held_between
from tianji_cli.config.loader import dump_config, load_config, parse_config
from tianji_cli.config.schema import JobConfig, rows_of
from tianji_cli.errors import ConfigError
from tianji_cli.plan import graph as built_in
from tianji_cli.plan.plan import Host, make_plan

MODULE = """
from tianji_cli.roles.user_role import UserRole

class Any(UserRole):
    def turn(self):
        return False

class Gatherer(Any):
    holds = 3

class Countless(Any):
    holds = "many"

class Pair:
    @classmethod
    def fields(cls, spaces, config):
        return ()
"""
ROLES = "".join(
    f'[roles.{name}]\ntype = "graph_roles:Any"\nreads = ["policy"]\n'
    for name in ("maker", "changer", "taker")
)
GATHERS = 'roles.maker.type="graph_roles:Gatherer"'
POPULATION = "[population]\ninterval = 1000\nperturb.learning_rate = { low = 1e-5, high = 1e-2 }\n"
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


def test_a_role_of_the_job_is_there_once_and_hears_of_all_groups(tmp_path: Path) -> None:
    tables = channel() + slot(writer='"taker"', readers='["maker"]')
    one = (
        "distribution.actor.num=1",
        "distribution.groups=2",
        'roles.taker.per="job"',
        "roles.taker.reads=[]",
    )
    config = load_config(written(tmp_path, tables), one)
    # Ranks 1 to 5: buffer and learner, maker, changer, taker, actor; then those of group 1 without a taker.
    assert edges(config) == {"pairs": {((2, 7), 4)}}
    plan = make_plan(config, [Host("here")])
    sizes = {edge.name: built_in.ChannelSize(8) for edge in plan.channels}
    wiring = plan.wiring("job", sizes, {edge.name: 8 for edge in plan.slots})
    (newest,) = (one for one in wiring.slots if one.name.startswith("newest"))
    assert (newest.name, newest.writer, newest.readers) == ("newest", 4, (2, 7))
    copies = load_config(written(tmp_path, ""), (*one, 'roles.taker.receives=["fragments"]'))
    assert edges(copies) == {}
    (copied,) = (
        edge for edge in make_plan(copies, [Host("here")]).channels if edge.name == "fragments-taker"
    )
    assert copied.receivers == ("taker",)


@pytest.mark.parametrize(
    ("tables", "settings", "why"),
    [
        ("", ('distribution.transport="inproc"',), "all roles of a group in one process"),
        ("", ('roles.taker.reads=["policy"]', "distribution.groups=2"), "2 policies"),
        (fragments('"taker"'), (), "stay in their group"),
        (channel(path='["maker", ["taker", "changer"]]'), (), "some are of a group and some of the job"),
        (slot(), ("distribution.groups=2",), "a slot of it"),
        (POPULATION, ("distribution.groups=2",), "may be replaced"),
    ],
)
def test_a_role_of_the_job_has_no_part_in_a_group(
    tmp_path: Path, tables: str, settings: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        load_config(written(tmp_path, tables), ('roles.taker.per="job"', *settings))


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
            {"pairs": {((2,), 6), ((3, 4), 7)}},
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
        (fragments('"maker"', route='"credit"'), (), "graph.channels.fragments.route", "in their order"),
        (channel(route='"credit"'), (), "graph.channels.pairs.route", "'taker' needs its records in order"),
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
        (
            fragments('"maker"'),
            (GATHERS, 'distribution.mode="sync"', "distribution.actor.send_size=32"),
            "distribution.mode",
            "maker may hold 3 fragments until others come, and actors make 2 for a version",
        ),
        ("", ('roles.maker.type="graph_roles:Countless"',), "roles.maker.type", "says holds = 'many'"),
        (channel(path='["maker"]'), (), "graph.channels.pairs.path", "at least 2"),
        (channel(path='["maker", "maker"]'), (), "graph.channels.pairs.path", "is named twice"),
        (channel(name="arrivals"), (), "graph.channels.arrivals", "is built in"),
        (slot(name="batches"), (), "graph.slots.batches", "is built in"),
        (channel(name="batches", record='""'), (), "graph.channels.batches", "makes minibatches"),
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


@pytest.mark.parametrize(("mode", "send_size"), [("sync", 16), ("async", 32)])
def test_a_role_may_hold_less_than_a_version_in_step_and_counts_with_what_is_under_way(
    tmp_path: Path, mode: str, send_size: int
) -> None:
    settings = (GATHERS, f"distribution.mode={mode}", f"distribution.actor.send_size={send_size}")
    config = load_config(written(tmp_path, fragments('"maker"')), settings)
    assert fragments_held_between(config.graph, config.roles, window=2) == 2 + 1 + 3


def test_several_processes_of_a_role_need_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which has one of each"):
        load_config(written(tmp_path, ""), ["roles.maker.num=2", "distribution.transport=inproc"])


def test_a_path_back_by_a_slot_is_no_circle(tmp_path: Path) -> None:
    load_config(written(tmp_path, channel() + slot(writer='"taker"', readers='["maker"]')))


def test_the_names_of_built_in_channels_and_slots_are_reserved() -> None:
    names = {value for name, value in vars(named).items() if name.isupper() and isinstance(value, str)}
    assert names == set(named.RESERVED)


DEMONSTRATIONS = """
extends = "configs/dqn_cartpole.toml"

[roles.maker]
type = "graph_roles:Any"

[graph.channels.fragments]
path = [["actor", "maker"], "buffer"]

[distribution.buffer.tables.maker]
share = 0.25
"""


GRADED = """
extends = "configs/dqn_cartpole.toml"

[roles.maker]
type = "graph_roles:Any"

[graph.channels.batches]
path = ["buffer", "maker", "learner"]
"""


def test_batches_may_pass_a_role_before_the_learner(tmp_path: Path) -> None:
    apart = ("distribution.buffer.colocate=false", "distribution.actor.num=1")
    assert edges(load_config(with_a_source(tmp_path, GRADED), apart)) == {"batches": {((1,), 3), ((3,), 2)}}


@pytest.mark.parametrize(
    ("path", "settings", "why"),
    [
        ('["buffer", "maker", "learner"]', (), "colocate = false would be right"),
        ('["actor", "maker", "learner"]', ("distribution.buffer.colocate=false",), "from the buffer to"),
        ('["buffer", "maker"]', ("distribution.buffer.colocate=false",), "from the buffer to the learner"),
        ('["buffer", "makr", "learner"]', ("distribution.buffer.colocate=false",), "did you mean 'maker'"),
    ],
)
def test_batches_that_come_to_no_learner_are_refused(
    tmp_path: Path, path: str, settings: tuple[str, ...], why: str
) -> None:
    text = GRADED.replace('["buffer", "maker", "learner"]', path)
    with pytest.raises(ConfigError, match=why):
        load_config(with_a_source(tmp_path, text), settings)


def with_a_source(place: Path, text: str = DEMONSTRATIONS) -> str:
    (place / "graph_roles.py").write_text(MODULE)
    path = place / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_source_sends_where_actors_do_and_its_table_survives_being_written(tmp_path: Path) -> None:
    config = load_config(with_a_source(tmp_path), ("distribution.actor.num=2", "roles.maker.num=2"))
    assert edges(config) == {"fragments": {((2, 3, 4, 5), 1)}}
    assert parse_config(dump_config(config)) == config
    assert "tables" not in dump_config(load_config("configs/dqn_cartpole.toml"))
    assert rows_of(512, config.distribution.buffer.tables) == (384, 128)


@pytest.mark.parametrize(
    ("makers", "actors", "shares"),
    [(2, 2, {((4, 6), 1), ((5, 7), 2)}), (3, 4, {((4, 7, 8), 1), ((5, 6, 9, 10), 2)})],
)
def test_several_buffers_share_out_the_processes_of_each_role(
    tmp_path: Path, makers: int, actors: int, shares: set[tuple[tuple[int, ...], int]]
) -> None:
    settings = (
        "distribution.buffer.colocate=false",
        "distribution.buffer.num=2",
        f"distribution.actor.num={actors}",
        f"roles.maker.num={makers}",
    )
    assert edges(load_config(with_a_source(tmp_path), settings)) == {"fragments": shares}


@pytest.mark.parametrize(
    ("text", "settings", "key", "why"),
    [
        (
            DEMONSTRATIONS.partition("[distribution")[0],
            (),
            "tables.maker",
            "makes fragments and has no table",
        ),
        (DEMONSTRATIONS.replace('[["actor", "maker"]', '["actor"'), (), "tables.maker", "makes no fragments"),
        (DEMONSTRATIONS + "capacity = 100", (), "tables.maker.capacity", "less than those that samples"),
        (DEMONSTRATIONS, ("training.batch_size=1",), "training.batch_size", "at least one of each"),
        (DEMONSTRATIONS, ('distribution.mode="sync"',), "distribution.mode", "depend on the moment"),
        (
            DEMONSTRATIONS,
            ("distribution.buffer.colocate=false", "distribution.buffer.num=2", "distribution.actor.num=2"),
            "distribution.buffer.num",
            "a table stays empty; roles.maker.num = 2 would be right",
        ),
        (DEMONSTRATIONS.replace("dqn", "ppo"), (), "fragments.path", "rollouts are made of actors' alone"),
        (DEMONSTRATIONS.replace("share = 0.25", "share = 1.0"), (), "tables.maker.share", "less than 1"),
        (
            DEMONSTRATIONS.replace('"maker"]', '"makr"]').replace("tables.maker", "tables.makr"),
            (),
            "graph.channels.fragments.path",
            "did you mean 'maker'?",
        ),
    ],
)
def test_a_source_that_cannot_work_is_refused(
    tmp_path: Path, text: str, settings: tuple[str, ...], key: str, why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(with_a_source(tmp_path, text), settings)
    assert key in str(refused.value)
    assert why in str(refused.value)
