"""Settings that are right one by one and would deadlock or never fill a batch are refused together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tianji_cli.config.loader import dump_config, load_config, parse_config
from tianji_cli.errors import ConfigError
from tianji_cli.runs.campaign import Campaign

CONFIG = """
[experiment]
stop = {{ env_steps = {env_steps} }}
[environment]
type = "gym"
id = "CartPole-v1"
num_envs = {num_envs}
[agent]
type = "ppo"
[training]
rollout_steps = {rollout_steps}
minibatch_size = {minibatch_size}
[distribution]
mode = "{mode}"
transport = "{transport}"
[distribution.actor]
num = {actors}
send_size = {send_size}
"""

FITTING = {
    "env_steps": 100_000,
    "num_envs": 16,
    "rollout_steps": 1024,
    "minibatch_size": 256,
    "mode": "async",
    "transport": "inproc",
    "actors": 1,
    "send_size": 32,
}

GOOD: list[dict[str, object]] = [
    {},
    {"rollout_steps": 512},
    {"rollout_steps": 512, "minibatch_size": 512},
    {"actors": 3},  # Nobody waits for anybody: whoever is first fills the rollout.
    {"mode": "sync", "actors": 2},
    {"mode": "sync", "actors": 3, "rollout_steps": 1536},
    {"mode": "sync", "transport": "shm", "actors": 2},
    {"send_size": 1, "num_envs": 1},
    {"send_size": 64, "num_envs": 16},
    {"env_steps": 1025},
]

BAD: list[tuple[dict[str, object], str, list[str]]] = [
    ({"rollout_steps": 1000}, "training.rollout_steps", ["512", "1024"]),
    ({"rollout_steps": 511}, "training.rollout_steps", ["512"]),
    ({"num_envs": 48}, "training.rollout_steps", ["1536"]),
    ({"send_size": 100}, "training.rollout_steps", ["1600"]),
    ({"mode": "sync", "actors": 3}, "training.rollout_steps", ["1536"]),
    ({"mode": "sync", "actors": 3, "rollout_steps": 2048}, "training.rollout_steps", ["1536", "3072"]),
    ({"mode": "sync", "actors": 4, "rollout_steps": 1024}, "training.rollout_steps", ["2048"]),
    ({"rollout_steps": 512, "minibatch_size": 513}, "training.minibatch_size", ["512"]),
    ({"env_steps": 1023}, "experiment.stop.env_steps", ["1024"]),
]


def write(path: Path, changes: dict[str, object]) -> str:
    path.write_text(CONFIG.format(**(FITTING | changes)))
    return str(path)


@pytest.mark.parametrize("changes", GOOD, ids=str)
def test_settings_that_fit_are_accepted(tmp_path: Path, changes: dict[str, object]) -> None:
    config = load_config(write(tmp_path / "good.toml", changes))
    assert config.fragments_per_rollout * config.fragment_steps == (FITTING | changes)["rollout_steps"]


@pytest.mark.parametrize(("changes", "key", "right"), BAD, ids=str)
def test_settings_that_never_fill_a_batch_are_refused_with_the_nearest_that_do(
    tmp_path: Path, changes: dict[str, object], key: str, right: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path / "bad.toml", changes))
    (problem,) = refused.value.problems
    assert problem.key == key
    assert all(value in str(problem) for value in right)


@pytest.mark.parametrize(("changes", "key", "right"), BAD[:7], ids=str)
def test_the_rollout_that_a_refusal_names_is_accepted(
    tmp_path: Path, changes: dict[str, object], key: str, right: list[str]
) -> None:
    for steps in right:
        config = load_config(write(tmp_path / "good.toml", changes | {"rollout_steps": int(steps)}))
        assert (
            config.fragments_per_rollout
            % (config.distribution.actor.num.max if config.distribution.mode == "sync" else 1)
            == 0
        )


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("environment.num_envs=48", "environment.num_envs"),
        ("distribution.actor.send_size=100", "distribution.actor.send_size"),
        ("training.rollout_steps=1000", "training.rollout_steps"),
    ],
)
def test_of_settings_that_do_not_fit_the_one_that_was_set_last_is_named(
    tmp_path: Path, override: str, key: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path / "good.toml", {}), [override])
    (problem,) = refused.value.problems
    assert (problem.where, problem.key) == ("--set", key)


@pytest.mark.parametrize(
    ("transport", "why"),
    [
        ('"shm"', "'shm' does not reach from one host to another"),
        ('{ local = "zmq", remote = "inproc" }', "'inproc' does not reach from one host to another"),
        ('{ local = "zmq", remote = "ucx" }', "cannot sleep in one wait"),
    ],
)
def test_engines_that_cannot_span_hosts_are_refused(tmp_path: Path, transport: str, why: str) -> None:
    settings = [f"distribution.transport={transport}", "distribution.hosts=2"]
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path / "hosts.toml", {}), settings)
    assert why in str(caught.value)
    assert 'transport = { local = "shm", remote = "zmq" } would be right' in str(caught.value)
    load_config(write(tmp_path / "hosts.toml", {}), settings[:1])


def test_an_engine_that_there_is_not_is_named_once_though_hosts_are_to_be_spanned(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            write(tmp_path / "hosts.toml", {}), ["distribution.transport=zqm", "distribution.hosts=2"]
        )
    (problem,) = caught.value.problems
    assert "'zqm'" in str(problem)


@pytest.mark.parametrize(
    "transport", ['"zmq"', '"ucx"', '{ local = "shm", remote = "zmq" }', '{ local = "shm", remote = "ucx" }']
)
def test_engines_that_span_hosts_are_accepted(tmp_path: Path, transport: str) -> None:
    load_config(
        write(tmp_path / "hosts.toml", {}), [f"distribution.transport={transport}", "distribution.hosts=2"]
    )


@pytest.mark.parametrize(
    ("sections", "settings", "said"),
    [
        ('[agent]\ntype = "dqn"', ['model.type="mlp_actor_critic"'], "model.type: .*'dqn'; .* 'mlp_q'"),
        ('[agent]\ntype = "ppo"', ['model.type="mlp_q"'], "model.type: .*'ppo'; .* 'mlp_actor_critic'"),
        ('[agent]\ntype = "ppo"', ['training.type="dqn"'], "training.type: .*agent 'ppo'; .* 'ppo' would"),
        ('[agent]\ntype = "dqn"', ['training.type="ppo"'], "training.type: .*agent 'dqn'; .*= 'dqn' would"),
        ('[agent]\ntype = "impala"', ['training.type="ppo"'], "training.type: .*agent 'impala'; .*= 'imp"),
        ('[agent]\ntype = "ppo"', ['training.type="impala"'], "training.type: .*agent 'ppo'; .*= 'ppo' w"),
        ('[agent]\ntype = "impala"', ['model.type="mlp_q"'], "model.type: .*'impala'; .* 'mlp_actor_cri"),
        (
            '[agent]\ntype = "an_agent_a:Mine"\n[training]\ntype = "dqn"',
            ['model.type="mlp_actor_critic"'],
            "model.type: .*training 'dqn'; .* 'mlp_q' would be right",
        ),
    ],
)
def test_an_algorithm_in_parts_that_do_not_go_together_is_refused(
    tmp_path: Path, sections: str, settings: list[str], said: str
) -> None:
    (tmp_path / "an_agent_a.py").write_text(
        "from tianji_algos.core import Agent\n"
        "from tianji_algos.settings import NoSettings\n"
        "class Mine(Agent):\n"
        "    settings_type, default_model, default_embryo = NoSettings, 'mlp_q', 'dqn'\n"
    )
    rest = '[experiment]\nstop = { env_steps = 100_000 }\n[environment]\ntype = "gym"\nid = "CartPole-v1"\n'
    (tmp_path / "mixed.toml").write_text(rest + sections)
    with pytest.raises(ConfigError, match=rf"^--set: {said}[^\n]*$"):
        load_config(str(tmp_path / "mixed.toml"), settings)


def test_several_learners_or_groups_and_restarts_need_processes_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(CONFIG.format(**FITTING), encoding="utf-8")
    for key in ("distribution.learner.num", "distribution.groups", "environment.on_error"):
        setting = f"{key}={'restart' if key == 'environment.on_error' else 2}"
        with pytest.raises(ConfigError) as refused:
            load_config(str(path), [setting])
        (problem,) = refused.value.problems
        assert problem.key == key
        assert 'transport = "shm" would be right' in str(problem)
        load_config(str(path), [setting, "distribution.transport=shm"])


@pytest.mark.parametrize(
    ("learners", "mode", "actors", "right"),
    [(3, "async", 1, "1536"), (4, "sync", 3, "6144"), (2, "sync", 2, None), (2, "async", 3, None)],
)
def test_learners_share_a_rollout_in_whole_fragments(
    tmp_path: Path, learners: int, mode: str, actors: int, right: str | None
) -> None:
    path = tmp_path / "job.toml"
    values = FITTING | {"transport": "shm", "mode": mode, "actors": actors, "env_steps": 100_000}
    path.write_text(CONFIG.format(**values), encoding="utf-8")
    overrides = [f"distribution.learner.num={learners}"]
    if right is None:
        load_config(str(path), overrides)
        return
    with pytest.raises(ConfigError) as refused:
        load_config(str(path), overrides)
    assert f"rollout_steps = {right} would be right" in str(refused.value)
    load_config(str(path), [*overrides, f"training.rollout_steps={right}"])


def test_an_end_that_leaves_a_group_no_update_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(CONFIG.format(**FITTING | {"transport": "shm", "env_steps": 2048}), encoding="utf-8")
    load_config(str(path))
    with pytest.raises(ConfigError, match=r"of each of 2 groups.*should be more than 2048"):
        load_config(str(path), ["distribution.groups=2"])


TEAM = ["environment.type=matrix_game", "environment.id=two_step"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            TEAM,
            "'ppo' acts for a single agent, and two_step shows a team; maddpg, mappo or qmix would be right",
        ),
        (
            ["agent.type=mappo"],
            "'mappo' acts for a team, and CartPole-v1 shows a single agent; dqn, impala, ppo, r2d2",
        ),
    ],
)
def test_an_agent_that_acts_for_others_than_the_environment_shows_is_refused(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path / "bad.toml", {}), overrides)
    assert f"agent.type: {message}" in str(refused.value)


def test_whether_one_s_own_agent_or_environment_goes_with_the_other_is_left_to_their_workers(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "good.toml", {})
    own_environment = ['environment.type="cli.skirmish:SkirmishFactory"', 'environment.id=""']
    assert load_config(path, own_environment).agent.type == "ppo"
    load_config(path, [*TEAM, 'agent.type="cli.skirmish:Recruit"'])


@pytest.mark.parametrize(
    ("settings", "key", "why"),
    [
        (["actor.cores='1'", "pin_cores=false"], "actor.cores", "not tied to cores"),
        (["buffer.cores='1'"], "buffer.cores", "in the learner's process"),
        (["buffer.hosts=['a']"], "buffer.hosts", "in the learner's process"),
        (["transport='inproc'", "actor.cores='1'"], "actor.cores", "all roles of a group in one process"),
        (["transport='mpi'", "group_hosts=['a']"], "group_hosts", "an MPI launcher places the ranks"),
        (["actor.cores='9-2'"], "actor.cores", "neither a number nor a list of cores"),
        (["actor.hosts='a'"], "actor.hosts", "it should be"),
    ],
)
def test_a_place_that_a_role_cannot_have_is_refused(settings: list[str], key: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"distribution\.{key}: .*{why}"):
        load_config("configs/ppo_cartpole.toml", [f"distribution.{setting}" for setting in settings])


def test_named_cores_are_written_as_they_were_and_tie_processes_to_them() -> None:
    settings = ["actor.num=2", "actor.cores='2-3,5-6'", "learner.hosts=['a*']"]
    job = load_config("configs/ppo_cartpole.toml", [f"distribution.{setting}" for setting in settings])
    distribution = job.distribution
    assert (distribution.actor.cores, distribution.actor.core_list) == (2, (2, 3, 5, 6))
    assert distribution.pin_cores
    assert parse_config(dump_config(job)) == job
    assert 'cores = "2,3,5,6"' in dump_config(job)
    assert Campaign(range(64), job.cores_beside_others).at_once == 1, "each wants the same cores"


@pytest.mark.parametrize(
    ("settings", "section", "each"),
    [
        (["learner.cores='0-3'"], "learner", 4),
        (["learner.cores='0-3'", "learner.num=2"], "learner", 2),
        (["buffer.cores='0-3'", "buffer.colocate=false"], "buffer", 4),
        (["inference={cores='0-1'}"], "inference", 2),
        (["actor.cores='0-1'", "actor.num=4"], "actor", 1),
    ],
)
def test_a_list_of_cores_is_read_as_it_was_written(settings: list[str], section: str, each: int) -> None:
    job = load_config("configs/dqn_cartpole.toml", [f"distribution.{setting}" for setting in settings])
    assert parse_config(dump_config(job)) == job
    assert getattr(job.distribution, section).cores == each


def test_as_many_actors_share_a_list_of_cores_as_it_has_unless_the_config_says_how_many() -> None:
    job = load_config("configs/ppo_cartpole.toml", ["distribution.actor.cores='0-1'"])
    assert job.distribution.actor.cores == max(1, 2 // job.distribution.actor.num.max)
    assert parse_config(dump_config(job)) == job
