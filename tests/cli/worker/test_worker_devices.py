"""Devices of networks: keys of the config, and messages where there is no such device."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from tianji_cli.commands.train import train
from tianji_cli.config.checks import check_devices
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError, UsageError
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import Host, Plan, make_plan
from tianji_cli.worker.builder import Builder
from tianji_lab.profile.run import Options, profile

CONFIG = "configs/ppo_cartpole.toml"
KEYS = ("distribution.device", "distribution.actor.device")


@pytest.mark.parametrize("key", KEYS)
def test_a_device_that_torch_has_no_word_for_is_refused_with_those_it_has(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(CONFIG, [f'{key}="gpu"'])
    assert key in str(refused.value)
    assert '"cuda:1"' in str(refused.value)


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is built without CUDA."""
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.9.0+cpu" if name == "torch" else version(name))


@pytest.mark.usefixtures("without_cuda")
@pytest.mark.parametrize("key", KEYS)
def test_a_training_that_wants_cuda_is_refused_where_torch_is_built_without(key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="built without CUDA") as refused:
        train(CONFIG, overrides=[f'{key}="cuda"'], out=tmp_path)
    assert str(refused.value).startswith(f"{key}: 'cuda' is not there")
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_torchs_version_is_not_read_where_no_gpu_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(CONFIG)
    monkeypatch.delattr(metadata, "version")
    check_devices(config)


@pytest.mark.usefixtures("without_cuda")
@pytest.mark.parametrize(("key", "gpus"), [(KEYS[0], 1), (KEYS[1], None)])
def test_a_profile_that_would_have_to_measure_cuda_is_refused_where_torch_is_built_without(
    key: str, gpus: int | None
) -> None:
    with pytest.raises(UsageError, match=rf"^{key}: 'cuda' is not there: .* built without CUDA"):
        profile(Options(CONFIG, [f'{key}="cuda"'], gpus=gpus))


def test_a_dry_run_shows_where_each_process_computes(tmp_path: Path) -> None:
    written = tmp_path / "plan.json"
    settings = ['distribution.device="cuda"', "distribution.actor={ num = 2, device = 'cuda' }"]
    assert train(CONFIG, overrides=settings, dry_run=True, json_to=str(written)) == 0
    rows = json.loads(written.read_text())["processes"]
    assert [row["device"] for row in rows] == ["cpu", "cuda", "cuda:0", "cuda:1", "cuda"]


def planned(config: JobConfig, directory: Path, rank: int, plan: Plan | None = None) -> Builder:
    plan = plan or make_plan(config, [Host("here", (0, 1))])
    return Builder(Job("devices", "", plan, directory, directory), config, plan.processes[rank], 0)


@pytest.mark.parametrize(("key", "rank"), [(KEYS[0], 1), (KEYS[1], 2)])
def test_where_there_is_no_such_gpu_the_role_that_wants_it_names_the_key(
    key: str, rank: int, tmp_path: Path
) -> None:
    builder = planned(load_config(CONFIG, [f'{key}="cuda:99"']), tmp_path, rank)
    build: Any = builder.trained_embryo if rank == 1 else builder.acting_model
    with pytest.raises(UsageError) as refused:
        build()
    assert str(refused.value).startswith(f"{key}: 'cuda:99' cannot be used on {socket.gethostname()}")


@pytest.mark.parametrize(("gpus", "found"), [(1, "cuda:0"), (2, "cuda:1"), (8, "cuda:5"), (0, "cuda:5")])
@pytest.mark.parametrize("rank", [1, 2])
def test_numbers_that_the_plan_gave_go_round_the_gpus_that_there_are(
    rank: int, gpus: int, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    config = load_config(CONFIG, [f'{key}="cuda"' for key in KEYS])
    plan = make_plan(config, [Host("here", (0, 1))])
    processes = tuple(replace(process, device="cuda:5") for process in plan.processes)
    builder = planned(config, tmp_path, rank, replace(plan, processes=processes))
    assert builder.device == found


def test_a_number_in_the_config_is_taken_at_its_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    settings = ['distribution.device="cuda:1"', 'distribution.actor.device="cuda:3"']
    config = load_config(CONFIG, settings)
    assert [planned(config, tmp_path, rank).device for rank in (0, 1, 2)] == ["cpu", "cuda:1", "cuda:3"]


def test_with_a_learner_in_their_process_actors_have_a_device_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(CONFIG, ['distribution.transport="inproc"'])
    plan = make_plan(config, [Host("here", (0, 1))])
    processes = tuple(replace(process, device="cuda") for process in plan.processes)
    builder = planned(config, tmp_path, 1, replace(plan, processes=processes))
    assert builder.device == "cuda"
    assert next(builder.acting_model().parameters()).device.type == "cpu"
