import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_cli.roles.buffer.replay.samplers import FANOUT, TOP, SumTree

SIZES = [1, 2, FANOUT, FANOUT + 1, TOP, TOP + 1, TOP * FANOUT + 3]


def leaf_of(values: np.ndarray, prefix: float) -> int:
    """The first leaf with a larger sum up to its end."""
    return int(np.searchsorted(np.cumsum(values), prefix, side="right"))


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([*SIZES, 100, 5000]),
    changes=st.lists(
        st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 9)), min_size=1, max_size=20), max_size=8
    ),
    fractions=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=10),
)
def test_a_prefix_is_found_in_the_leaf_in_which_it_ends(
    size: int, changes: list[list[tuple[int, int]]], fractions: list[float]
) -> None:
    tree, values = SumTree(size), np.zeros(size)
    for change in changes:
        indices = [index % size for index, _ in change]
        for index, (_, value) in zip(indices, change, strict=True):
            values[index] = value
        tree.set(np.array(indices), np.array([value for _, value in change]))
    np.testing.assert_array_equal(tree.leaves[:size], values)
    assert tree.total == values.sum()
    if tree.total:
        # Whole numbers have exact sums, so that the edges between leaves are exact as well.
        prefixes = np.floor(np.array(fractions) * tree.total)
        leaves, found = tree.find(prefixes.copy())
        assert leaves.tolist() == [leaf_of(values, prefix) for prefix in prefixes]
        np.testing.assert_array_equal(found, values[leaves])


@pytest.mark.parametrize("size", SIZES)
def test_a_range_is_set_like_its_leaves_one_by_one(size: int) -> None:
    rng = np.random.default_rng(size)
    at_once, one_by_one = SumTree(size), SumTree(size)
    for _ in range(5):
        first = int(rng.integers(0, size))
        values = rng.integers(0, 9, min(40, size - first)).astype(np.float64)
        at_once.set_range(first, values)
        one_by_one.set(np.arange(first, first + values.size), values)
        np.testing.assert_array_equal(at_once.leaves, one_by_one.leaves)
        assert at_once.total == one_by_one.total == one_by_one.leaves.sum()


def test_sums_do_not_drift() -> None:
    rng = np.random.default_rng(3)
    tree = SumTree(20_000)
    for _ in range(2000):
        tree.set(rng.integers(0, 20_000, 64), rng.random(64) * 10.0 ** rng.integers(-6, 6))
    np.testing.assert_allclose(tree.total, tree.leaves.sum(dtype=np.float64), rtol=1e-12)
    tree.set(np.arange(20_000), np.zeros(20_000))
    assert tree.total == 0.0


def test_what_is_zero_is_never_found_whatever_is_rounded() -> None:
    rng = np.random.default_rng(5)
    size = 3 * TOP
    tree = SumTree(size)
    values = rng.random(size) * 10.0 ** rng.integers(-9, 9, size)
    values[rng.random(size) < 0.7] = 0.0
    tree.set(np.arange(size), values)
    ends = np.cumsum(tree.leaves[:size], dtype=np.float64)
    prefixes = np.concatenate([ends, np.nextafter(ends, 0), np.nextafter(ends, np.inf), [0.0, tree.total]])
    leaves, found = tree.find(prefixes)
    assert leaves.min() >= 0
    assert (found > 0).all()
    np.testing.assert_array_equal(found, tree.leaves[leaves])


def test_the_last_leaf_of_a_group_is_found_although_sums_are_rounded_in_another_order() -> None:
    rng = np.random.default_rng(7)
    tree = SumTree(TOP * FANOUT * FANOUT)
    for _ in range(300):
        # A range so wide that sums of float32 are not exact in float64.
        tree.set(np.arange(FANOUT), rng.random(FANOUT) * 10.0 ** rng.integers(-9, 9, FANOUT))
        leaves, _ = tree.find(np.array([np.nextafter(tree.total, 0), tree.total]))
        assert leaves.max() < FANOUT


def test_leaves_that_are_small_among_large_ones_are_found() -> None:
    tree = SumTree(TOP)
    values = np.ones(TOP)
    values[4000:] = 2.5e-5
    tree.set(np.arange(TOP), values)
    assert tree.total == tree.leaves.sum(dtype=np.float64) > 4000
    edges = np.cumsum(tree.leaves, dtype=np.float64)
    leaves, _ = tree.find(edges - tree.leaves / 2)
    assert leaves.tolist() == list(range(TOP))


def test_sums_of_leaves_written_directly_are_added_up() -> None:
    tree = SumTree(1000)
    tree.leaves[:1000] = np.arange(1000)
    tree.add_up()
    assert tree.total == 499_500
    assert tree.find(np.array([499_499.0]))[0].tolist() == [999]


@pytest.mark.parametrize("size", SIZES)
def test_its_size_is_what_was_predicted(size: int) -> None:
    assert sum(level.nbytes for level in SumTree(size)._levels) == SumTree.bytes_for(size)


def test_a_tree_needs_leaves() -> None:
    with pytest.raises(ValueError, match="needs leaves"):
        SumTree(0)
