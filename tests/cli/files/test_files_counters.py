import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.files.counters import RING, ProductionFile, ProductionPage

WRITER = """
from pathlib import Path
from tianji_cli.files.counters import ProductionFile, ProductionPage

def write(path, actor, steps):
    page = ProductionPage(ProductionFile(Path(path)), int(actor))
    page.begin(1)
    step = 0
    while True:
        page.count(1 + step % 7)
        step += 1
        if step % int(steps) == 0:
            page.push()
"""


def samples(steps: int) -> int:
    """Samples that the writer has counted after ``steps``."""
    return sum(1 + step % 7 for step in range(steps % 7)) + 28 * (steps // 7)


@pytest.mark.parametrize("steps", [1, 5])
def test_counts_are_exact_wherever_their_writer_was_killed(
    nursery: Callable[[str], Any], moments: Iterator[float], tmp_path: Path, steps: int
) -> None:
    file = ProductionFile(tmp_path / "production.bin", pages=3)
    writers, last = nursery(WRITER), 0
    for incarnation in range(40):
        file.begin(1, incarnation)
        writers.kill_a_writer(next(moments), file.path, 1, steps)
        read = file.read(1)
        assert read.incarnation == incarnation
        assert read.finished == samples(read.pushed * steps)
        in_fragment = [samples(read.pushed * steps + n) - read.finished for n in range(steps + 1)]
        assert read.unfinished in in_fragment
        assert read.produced == read.finished + read.unfinished
        assert not read.dropped
        last = max(last, read.pushed)
    assert last > 10 * RING
    assert file.read(0).produced == file.read(2).produced == 0


ROLE = """
from pathlib import Path
from tianji_cli.files.counters import ProductionFile, ProductionPage

def write(path):
    page = ProductionPage(ProductionFile(Path(path)), 1)
    page.lose()
    for number in range(10**9):
        page.claim(number // 10, 3)
        if number % 3 == 0:
            page.drop(3)
        elif number % 3 == 1:
            page.push(3)
        else:
            page.lose(3)
"""


def test_a_page_of_a_role_is_exact_wherever_it_was_killed_and_the_next_process_goes_on_with_it(
    nursery: Callable[[str], Any], moments: Iterator[float], tmp_path: Path
) -> None:
    file = ProductionFile(tmp_path / "production.bin", pages=2)
    writers, before, claimed = nursery(ROLE), file.read(1), 0
    for _ in range(40):
        writers.kill_a_writer(next(moments), file.path)
        read = file.read(1)
        claimed = (read.produced - before.produced) // 3
        assert read.produced == before.produced + 3 * claimed
        assert read.finished == 3 * read.pushed
        dropped, pushed = read.dropped - before.dropped, read.pushed - before.pushed
        # The last one may have been claimed and not dropped or pushed yet.
        assert dropped // 3 - (claimed + 2) // 3 in {0, -1}
        assert pushed - (claimed + 1) // 3 in {0, -1}
        assert read.unfinished in {0, 3}
        assert read.recent in {0, 3, 6}
        before = read
    assert before.produced > 3 * 10 * RING
    assert file.read(0).produced == 0


def test_a_page_counts_for_as_long_as_an_actor_lives(tmp_path: Path) -> None:
    file = ProductionFile(tmp_path / "production.bin", pages=1)
    page = ProductionPage(file, 0)
    produced = 0
    for fragment in range(3 * 256 + 1):
        for step in range(fragment % 3):
            page.count(step + 1)
            produced += step + 1
            assert file.read(0).produced == produced
        unfinished = sum(range(fragment % 3 + 1))
        assert (file.read(0).pushed, file.read(0).unfinished) == (fragment, unfinished)
        page.push()
        assert (file.read(0).finished, file.read(0).unfinished) == (produced, 0)


def test_a_new_incarnation_begins_at_zero(tmp_path: Path) -> None:
    file = ProductionFile(tmp_path / "production.bin", pages=2)
    for actor, incarnation in itertools.product(range(2), range(2)):
        file.begin(actor, incarnation)
        page = ProductionPage(file, actor)
        page.begin(10 + incarnation)
        page.begin(99)
        page.count(3)
        page.push()
        page.count(2)
        page.drop()
        read = file.read(actor)
        assert (read.number, read.incarnation, read.first_step_ns) == (actor, incarnation, 10 + incarnation)
        assert (read.produced, read.unfinished, read.pushed, read.dropped) == (5, 0, 1, 2)


def test_the_root_and_an_actor_see_the_same_page(tmp_path: Path) -> None:
    root = ProductionFile(tmp_path / "production.bin", pages=2)
    ProductionPage(ProductionFile(root.path), 1).count(4)
    assert [root.read(actor).produced for actor in range(2)] == [0, 4]
    root.remove()
    assert not root.path.exists()
    assert root.read(1).produced == 4


def test_pages_of_another_run_are_not_taken_over(tmp_path: Path) -> None:
    ProductionFile(tmp_path / "production.bin", pages=1)
    with pytest.raises(FileExistsError):
        ProductionFile(tmp_path / "production.bin", pages=1)


def test_a_full_disk_is_an_error_at_the_start(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(60 << 10))
    with pytest.raises(OSError, match="No space left"):
        ProductionFile(small_disk / "production.bin", pages=1000)
