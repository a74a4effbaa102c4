import numpy as np
import pytest

from tianji_cli.wire.parameters import POLICY_HEADER_BYTES, PublishedPolicy, policy_layout


@pytest.mark.parametrize("count", [5, 1000])
def test_a_policy_is_read_as_it_was_written(count: int) -> None:
    memory = memoryview(bytearray(policy_layout(count).nbytes))
    written = PublishedPolicy(memory)
    written.parameters[...] = np.arange(count) + 0.5
    written.header["env_steps"] = 2**40 + 3
    read = PublishedPolicy(memoryview(bytes(memory)))
    assert read.env_steps == 2**40 + 3
    np.testing.assert_array_equal(read.parameters, np.arange(count, dtype=np.float32) + 0.5)


def test_the_step_count_and_the_parameters_are_views_that_share_nothing() -> None:
    memory = memoryview(bytearray(policy_layout(3).nbytes))
    policy = PublishedPolicy(memory)
    policy.parameters[...] = np.nan
    assert policy.env_steps == 0
    policy.header["env_steps"] = -1
    assert np.isnan(policy.parameters).all()
    assert memory.nbytes == POLICY_HEADER_BYTES + 3 * 4
    memory[:] = bytes(memory.nbytes)
    assert not policy.parameters.any()


def test_a_model_may_have_no_parameters() -> None:
    policy = PublishedPolicy(memoryview(bytearray(policy_layout(0).nbytes)))
    assert policy.parameters.shape == (0,)
