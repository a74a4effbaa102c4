from pathlib import Path

import numpy as np
import pytest

from tianji_cli.files.role_state import STATE, read_state, write_state
from tianji_cli.files.saved import CheckpointError


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = {"count": np.array(3), "mean": np.linspace(0, 1, 5), "flags": np.array([[True], [False]])}
    write_state(tmp_path, state)
    read = read_state(tmp_path)
    assert read.keys() == state.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape


def test_numbers_and_lists_do_as_arrays(tmp_path: Path) -> None:
    write_state(tmp_path, {"count": 3, "means": [0.5, 1.5]})
    assert read_state(tmp_path)["means"].tolist() == [0.5, 1.5]


@pytest.mark.parametrize("wrong", ["a text", [None], [{"a": 1}]])
def test_a_state_of_anything_but_numbers_is_refused(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(ValueError, match=r"'learnt' is .*, and a state has arrays of numbers"):
        write_state(tmp_path, {"learnt": wrong})  # type: ignore[dict-item]


def test_a_state_that_has_changed_is_not_read(tmp_path: Path) -> None:
    write_state(tmp_path, {"count": np.arange(9)})
    file = tmp_path / STATE
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"state\.safetensors"):
        read_state(tmp_path)
