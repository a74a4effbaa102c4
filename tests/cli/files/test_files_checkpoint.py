import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tianji_algos import registry
from tianji_algos.core import Model, Spaces, build_model
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_cli.files import saved as sums
from tianji_cli.files.checkpoint import CheckpointWriter, TrainingState, load_parameters, load_training
from tianji_cli.files.saved import MODEL, CheckpointError, seal

SPACES = Spaces(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2))


def network(*hidden: int) -> Model:
    settings = MLPActorCriticSettings(hidden=hidden)
    return build_model(registry.load("model", "mlp_actor_critic"), SPACES, settings, 1)


@pytest.fixture(scope="module")
def model() -> Model:
    return network(8)


def state(model: Model, env_steps: int, *, value: float | None = None, **changes: Any) -> TrainingState:
    """A state all of whose numbers say which it is."""
    number = float(env_steps) if value is None else value
    filled = TrainingState(
        parameters=np.full(model.parameter_count, number, np.float32),
        best_parameters=None,
        tensors={"adam.mean": torch.full((model.parameter_count,), number)},
        rest={"number": number, "rng": {"state": 2**100}},
        progress={"env_steps": env_steps, "updates": 3},
        episodes={"best_mean": None, "time_to": [[475.0, None]]},
    )
    return dataclasses.replace(filled, **changes)


@pytest.fixture
def last(tmp_path: Path, model: Model) -> Path:
    """A checkpoint of one env step."""
    CheckpointWriter(tmp_path, model, keep=1).write(state(model, 1))
    return tmp_path / "last"


def number_in(directory: Path, model: Model) -> float:
    """Read a checkpoint and say which it is; its three files agree."""
    tensors, document = load_training(directory)
    number = float(document["embryo"]["number"])
    assert (load_parameters(directory, model) == number).all()
    assert (tensors["adam.mean"] == number).all()
    return number


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_checkpoint_gives_back_what_was_written(tmp_path: Path, model: Model) -> None:
    parameters = np.random.default_rng(1).standard_normal(model.parameter_count).astype(np.float32)
    best = -parameters
    written = state(model, 96, parameters=parameters, best_parameters=best)
    CheckpointWriter(tmp_path, model, keep=3).write(written)
    for name in ("last", "000000000096"):
        np.testing.assert_array_equal(load_parameters(tmp_path / name, model), parameters)
        tensors, document = load_training(tmp_path / name)
        assert torch.equal(tensors["adam.mean"], written.tensors["adam.mean"])
        assert document["embryo"] == written.rest
        assert document["progress"] == written.progress
        assert document["episodes"] == written.episodes
    np.testing.assert_array_equal(load_parameters(tmp_path / "best", model), best)


def test_parameters_are_saved_under_the_names_the_model_gives_them(tmp_path: Path) -> None:
    model = network(8)
    flat = np.zeros(model.parameter_count, np.float32)
    model.write_parameters(flat)
    CheckpointWriter(tmp_path, model, keep=1).write(state(model, 0, parameters=flat))
    other = network(8)
    for tensor in other.parameters():
        tensor.data.zero_()
    other.load_state_dict(load_file(tmp_path / "last" / "model.safetensors"))
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_newest_k_stay(tmp_path: Path, model: Model) -> None:
    writer = CheckpointWriter(tmp_path, model, keep=3)
    for env_steps in range(0, 70, 10):
        writer.write(state(model, env_steps))
    kept = [f"{env_steps:012d}" for env_steps in (40, 50, 60)]
    assert names(tmp_path) == [*kept, "best", "best-000000000060", "last"]
    assert os.readlink(tmp_path / "last") == kept[-1]
    assert number_in(tmp_path / "last", model) == 60


def test_what_is_removed_is_hidden_first(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CheckpointWriter(tmp_path, model, keep=1)
    removed = []
    for env_steps in (10, 20, 20):
        monkeypatch.setattr("shutil.rmtree", lambda place, **_: removed.append(place))
        writer.write(state(model, env_steps))
        monkeypatch.undo()
    assert len(removed) > 4
    assert all(place.name.startswith(".") for place in removed)
    assert names(tmp_path)[-4:] == ["000000000020", "best", "best-000000000020", "last"]
    CheckpointWriter(tmp_path, model, keep=1)
    assert names(tmp_path) == ["000000000020", "best", "best-000000000020", "last"]


@pytest.mark.parametrize("keep", [0, 1])
def test_the_last_stays_even_if_older_numbers_are_higher(tmp_path: Path, model: Model, keep: int) -> None:
    """A kill between a checkpoint and its link leaves one that is newer than ``last``."""
    CheckpointWriter(tmp_path, model, keep=1).write(state(model, 500))
    (tmp_path / "last").unlink()
    CheckpointWriter(tmp_path, model, keep).write(state(model, 400))
    assert number_in(tmp_path / "last", model) == 400


def test_a_checkpoint_at_the_same_step_replaces_the_former(tmp_path: Path, model: Model) -> None:
    writer = CheckpointWriter(tmp_path, model, keep=3)
    for value in (1.0, 2.0, 3.0):
        writer.write(state(model, 64, value=value))
        assert number_in(tmp_path / "last", model) == value
        assert (load_parameters(tmp_path / "best", model) == value).all()
    assert names(tmp_path) == ["000000000064", "best", "best-000000000064", "last"]


def test_the_best_stays_the_best(tmp_path: Path, model: Model) -> None:
    writer = CheckpointWriter(tmp_path, model, keep=1)
    best = np.full(model.parameter_count, 7, np.float32)
    for env_steps in (1, 2, 3):
        writer.write(state(model, env_steps, best_parameters=best))
    assert (writer.best_parameters() == 7).all()
    assert number_in(tmp_path / "last", model) == 3


WRITER = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, {folder!r})
from test_files_checkpoint import CheckpointWriter, network, state
model = network(8)

def write(path, number, operations):
    left = int(operations)

    def die_at_the_last(event, _arguments):
        nonlocal left
        left -= event.startswith(("os.", "shutil.", "open"))
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(die_at_the_last)
    CheckpointWriter(Path(path), model, keep=1).write(state(model, int(number), value=2.0))
    Path(path, "done").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory where nothing waits for a disk, if this machine has one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as directory:
        yield Path(directory)


@pytest.mark.parametrize("number", [64, 65], ids=["at the same step", "at a later step"])
def test_a_kill_at_any_file_operation_leaves_a_whole_last_and_best(
    nursery: Callable[[str], Any], memory_disk: Path, model: Model, number: int
) -> None:
    writers, operations = nursery(WRITER.format(folder=str(Path(__file__).parent))), 0
    while not (memory_disk / str(operations) / "done").exists():
        operations += 1
        directory = memory_disk / str(operations)
        CheckpointWriter(directory, model, keep=1).write(state(model, 64, value=1.0))
        writers.await_a_writer_s_death(directory, number, operations)
        assert number_in(directory / "last", model) in {1.0, 2.0}
        assert set(load_parameters(directory / "best", model)) <= {1.0, 2.0}
        # A resumed run clears away what is left, and keeps what is in use.
        resumed = CheckpointWriter(directory, model, keep=1)
        assert number_in(directory / "last", model) in {1.0, 2.0}
        assert set(resumed.best_parameters()) <= {1.0, 2.0}
        resumed.write(state(model, 64, value=3.0))
        assert number_in(directory / "last", model) == 3.0
        assert set(resumed.best_parameters()) == {3.0}
        assert not [name for name in names(directory) if name.startswith(".")]
    assert operations > 20


@pytest.mark.parametrize("room", range(7), ids=lambda room: f"room for {room} of 7 files")
def test_a_full_disk_is_an_error_and_leaves_the_former_whole(
    small_disk: Path, model: Model, room: int
) -> None:
    writer = CheckpointWriter(small_disk / "checkpoints", model, keep=5)
    writer.write(state(model, 1))
    disk = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes((disk.f_bavail - room) * disk.f_frsize))
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*000000000002"):
        writer.write(state(model, 2))
    (small_disk / "filler").unlink()
    assert number_in(small_disk / "checkpoints" / "last", model) == (2 if room >= 4 else 1)
    assert (writer.best_parameters() == 1).all()
    assert not [name for name in names(small_disk / "checkpoints") if name.startswith(".")]
    writer.write(state(model, 2, value=3.0))
    assert number_in(small_disk / "checkpoints" / "last", model) == 3


def test_another_model_s_checkpoint_names_the_tensor_that_does_not_fit(last: Path, model: Model) -> None:
    wider, deeper = network(16), network(8, 8)
    shape = r"is of another model: 'policy\.\S+' has shape \[8, 4\] there; the config's model has \[16, 4\]"
    with pytest.raises(CheckpointError, match=shape):
        load_parameters(last, wider)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is of another model: 'policy"):
        load_parameters(last, deeper)


def resealed(directory: Path) -> None:
    """Write the sums of the files as they are."""
    seal(directory, [path.name for path in directory.iterdir() if path.name != "SHA256SUMS"])


GARBAGE = [b"", b"garbage", b"\x00" * 100, b"\xff" * 100, b"[]", b'{"schema": 2}', b'{"schema": 1}', b"null"]


@pytest.mark.parametrize("content", GARBAGE)
@pytest.mark.parametrize("file", ["state.json", "training.safetensors", "model.safetensors"])
@pytest.mark.parametrize("right_sum", [False, True])
def test_garbage_is_an_error_that_names_the_checkpoint(
    last: Path, model: Model, file: str, content: bytes, right_sum: bool
) -> None:
    (last / file).write_bytes(content)
    if right_sum:
        resealed(last)
    with pytest.raises(CheckpointError, match="last"):
        number_in(last, model)


@pytest.mark.parametrize("file", ["training.safetensors", "model.safetensors"])
def test_a_truncated_file_is_an_error(last: Path, model: Model, file: str) -> None:
    whole = (last / file).read_bytes()
    (last / file).write_bytes(whole[:-10])
    with pytest.raises(CheckpointError, match="is damaged"):
        number_in(last, model)


def test_standard_tools_can_check_what_was_written(tmp_path: Path, last: Path, model: Model) -> None:
    for name, files in (("last", 3), ("best", 2)):
        command = ["sha256sum", "--strict", "-c", "SHA256SUMS"]
        checked = subprocess.run(command, cwd=tmp_path / name, capture_output=True, text=True, check=True)
        assert checked.stdout.count(": OK\n") == files == len(names(tmp_path / name)) - 1


@pytest.mark.parametrize("place", ["last", "best"])
def test_a_single_flipped_bit_is_found_and_the_way_out_named(
    tmp_path: Path, model: Model, place: str
) -> None:
    writer = CheckpointWriter(tmp_path, model, keep=2)
    writer.write(state(model, 1))
    writer.write(state(model, 2))
    path = tmp_path / place / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged: its SHA-256") as damaged:
        load_parameters(tmp_path / place, model)
    whole = 1 if place == "last" else 2
    message, _, command = str(damaged.value).partition(", to go on with: ")
    assert message.endswith(f"\n{whole:012d} beside it is whole")
    subprocess.run(command, shell=True, check=True)
    assert (load_parameters(tmp_path / place, model) == whole).all()


@pytest.mark.parametrize("file", ["training.safetensors", "model.safetensors"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(last: Path, model: Model, file: str, value: float) -> None:
    tensors = load_file(last / file)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[-1] = value
    save_file(tensors, last / file)
    resealed(last)
    with pytest.raises(CheckpointError, match=rf"{file} is of no use: '{name}' has numbers that are not"):
        number_in(last, model)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda tensors: {name: tensor.double() for name, tensor in tensors.items()},
            r"is torch\.float64 there and not torch\.float32",
        ),
        (
            lambda tensors: {**tensors, "more": torch.zeros(1)},
            r"is of another model: the config's has no 'more'",
        ),
    ],
    ids=["of another type", "one more"],
)
def test_tensors_that_the_model_does_not_have_are_refused(
    last: Path, model: Model, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], why: str
) -> None:
    save_file(change(load_file(last / MODEL)), last / MODEL)
    resealed(last)
    with pytest.raises(CheckpointError, match=why):
        load_parameters(last, model)


def test_a_checkpoint_of_an_earlier_version_is_refused_with_what_lets_it_in(
    tmp_path: Path, model: Model
) -> None:
    CheckpointWriter(tmp_path, model, keep=1).write(state(model, 7))
    (tmp_path / "last/SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match="has no SHA256SUMS") as refused:
        load_parameters(tmp_path / "last", model)
    command = str(refused.value).partition("if you know it to be good: ")[2]
    subprocess.run(["sh", "-c", command], check=True)
    assert number_in(tmp_path / "last", model) == 7


def test_a_checkpoint_that_is_not_there_is_an_error(tmp_path: Path, model: Model) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        load_training(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="nowhere"):
        load_parameters(tmp_path / "nowhere", model)


def test_links_survive_a_move_of_the_run(tmp_path: Path, model: Model) -> None:
    CheckpointWriter(tmp_path / "a", model, keep=1).write(state(model, 5))
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert number_in(tmp_path / "b" / "last", model) == 5
    assert json.loads((tmp_path / "b" / "last" / "state.json").read_text())["schema"] == 1


@pytest.mark.parametrize("next_steps", [7, 8], ids=["under its own name", "under another name"])
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_not_taken_for_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model, next_steps: int
) -> None:
    writer = CheckpointWriter(tmp_path, model, keep=1)
    writer.write(state(model, 7))
    newer = [state(model, next_steps, value=9.0)]
    look_up = sums._sums

    def replace_first(directory: Path) -> dict[str, str]:
        if newer:
            writer.write(newer.pop())
        return look_up(directory)

    monkeypatch.setattr(sums, "_sums", replace_first)
    assert (load_parameters(tmp_path / "best", model) == 9.0).all()


@pytest.mark.parametrize("which", ["best", "last", "000000000007"])
def test_a_policy_of_another_schema_is_refused(tmp_path: Path, model: Model, which: str) -> None:
    CheckpointWriter(tmp_path, model, keep=1).write(state(model, 7))
    place = tmp_path / which
    document = json.loads((place / "state.json").read_text())
    (place / "state.json").write_text(json.dumps(document | {"schema": 2}))
    resealed(place)
    with pytest.raises(CheckpointError, match=r"state\.json is not of schema 1"):
        load_parameters(place, model)
