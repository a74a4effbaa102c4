"""A probe answers, whatever it is asked, and ends when nobody is there any more."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from select import select

import numpy as np
import pytest
import torch
from cli.boom import BOOM
from cli.sessions import PATIENCE_S
from cli.warm import WarmCommands
from lab.profile.probing import COMMAND, DQN, PPO, SLOW, Asked, preparation, run, write_config

from tianji_cli.config.loader import load_config
from tianji_lab.profile.probe.protocol import Failed
from tianji_lab.profile.probe.server import ActorSide


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory, warm_commands: WarmCommands) -> Iterator[Asked]:
    with Asked(tmp_path_factory.mktemp("probe"), warm_commands) as asked:
        yield asked


def failure(answer: object) -> str:
    assert isinstance(answer, Failed), answer
    return answer.cause


def test_garbage_is_answered_and_the_probe_goes_on(probe: Asked, tmp_path: Path) -> None:
    for garbage in (b"", b"{", b"\xff\xfe", b'{"step": "dance"}', b'{"step": "run", "key": "x"}', b"null"):
        probe.say(garbage)
        assert "no step of the protocol" in failure(probe.hear())
    assert probe.prepared("actor", write_config(tmp_path / "ppo.toml", PPO)).parameters > 0


def test_a_key_that_nobody_prepared_is_refused(probe: Asked) -> None:
    assert failure(probe.ask(run("nobody"))) == "nothing was prepared as 'nobody'"


def test_a_config_that_cannot_be_run_is_the_answer(probe: Asked, tmp_path: Path) -> None:
    config = write_config(tmp_path / "ppo.toml", PPO)
    answer = probe.ask(preparation("actor", config, ["training.rollout_steps=200"], tmp_path))
    assert "a rollout of 200 steps is no whole number of fragments of 128" in failure(answer)


def test_what_a_role_raises_is_the_answer_and_other_keys_live_on(probe: Asked, tmp_path: Path) -> None:
    fine = write_config(tmp_path / "ppo.toml", PPO)
    (tmp_path / "booms.py").write_text(BOOM)
    broken = write_config(tmp_path / "boom.toml", PPO, environment={"type": "booms:Boom", "id": None})
    probe.prepared("actor-fine", fine)
    probe.prepared("actor-boom", broken)
    assert "the boom" in failure(probe.ask(run("actor-boom", window_s=10.0)))
    assert all(window.fragments >= 1 for window in probe.acted("actor-fine"))


def test_an_environment_may_print_and_read_and_be_found_beside_its_config(
    probe: Asked, tmp_path: Path
) -> None:
    (tmp_path / "quick_ones.py").write_text(SLOW)
    config = write_config(tmp_path / "own.toml", PPO, environment={"type": "quick_ones:Slow", "id": None})
    probe.prepared("actor-own", config)
    probe.prepared("learner-own", config)
    assert probe.acted("actor-own")[0].samples > 0
    assert probe.learned("learner-own")[0].updates > 0


def test_a_fragment_that_takes_too_long_is_filled_up_with_its_first_steps(
    probe: Asked, tmp_path: Path
) -> None:
    (tmp_path / "slow_ones.py").write_text(SLOW)
    environment = {"type": "slow_ones:Slow", "id": None, "num_envs": 2, "options": {"step_s": 0.03}}
    settings = {"rollout_steps": 64, "minibatch_size": 16}
    config = write_config(tmp_path / "slow.toml", PPO, environment=environment, training=settings)
    overrides = ("distribution.actor.send_size=32",)
    probe.prepared("learner-slow", config, overrides=overrides)
    window = probe.learned("learner-slow")[0]
    assert window.updates == window.versions * 2 * 64 // 16
    probe.prepared("actor-slow", config, overrides=overrides)
    window = probe.acted("actor-slow", windows=1, window_s=0.0)[0]
    assert (window.fragments, window.samples) == (1, 32 * 2)


def test_a_probe_ends_with_its_input(tmp_path: Path) -> None:
    config = write_config(tmp_path / "dqn.toml", DQN)
    with Asked(tmp_path / "probe") as probe:
        probe.prepared("learner", config)
        probe.process.send_signal(signal.SIGINT)  # Somebody's Ctrl-C is not the probe's business.
        assert probe.learned("learner")[0].updates > 0
    assert probe.process.returncode == 0


def test_a_probe_ends_with_its_parent_while_it_measures(tmp_path: Path) -> None:
    config = write_config(tmp_path / "ppo.toml", PPO)
    lines = [
        preparation("actor", config, (), tmp_path).model_dump_json(),
        run("actor", warm_s=0.0, windows=1, tail_s=0.0).model_dump_json(),
        run("actor", warm_s=1000.0).model_dump_json(),
    ]
    # Somebody else holds the other end of its input, so that it is its parent's death alone that ends it.
    reading, writing = os.pipe()
    os.write(writing, "".join(f"{line}\n" for line in lines).encode())
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *COMMAND],
        stdin=reading,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert parent.stdout is not None
    with parent.stdout as said:
        pid = int(said.readline())
        assert b"prepared" in said.readline()
        assert b"acted" in said.readline()
        with os.fdopen(os.pidfd_open(pid), "rb") as probe:
            parent.kill()
            parent.wait()
            assert select([probe], [], [], PATIENCE_S)[0]
    os.close(reading)
    os.close(writing)


def test_all_threads_of_a_probe_are_pinned_to_the_cores_of_a_run(probe: Asked, tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    (tmp_path / "threaded_ones.py").write_text(SLOW)
    config = write_config(
        tmp_path / "own.toml", PPO, environment={"type": "threaded_ones:Threaded", "id": None}
    )
    probe.prepared("actor", config)
    for chosen in ((cores[0],), tuple(cores), (cores[-1],)):
        probe.acted("actor", cores=chosen, threads=len(chosen))
        threads = [int(place.name) for place in Path(f"/proc/{probe.process.pid}/task").iterdir()]
        assert len(threads) > 1
        assert all(os.sched_getaffinity(thread) == set(chosen) for thread in threads)
    probe.prepared("actor", write_config(tmp_path / "ppo.toml", PPO))  # It ends the threads.


PARENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:])
print(child.pid, flush=True)
child.wait()
"""


def test_two_measurements_of_a_setting_draw_the_same_random_numbers(tmp_path: Path) -> None:
    config = load_config(str(write_config(tmp_path / "ppo.toml", PPO)))
    draws = []
    for _ in range(2):
        side = ActorSide(config, tmp_path)
        side.close()
        draws.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert draws[0] == draws[1]
