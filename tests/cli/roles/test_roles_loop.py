from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from tianji_cli.roles.role import CHECK_EVERY_S, SLEEP_S, Role, RoleError, Trigger, run_in_turns


class Noted(Role):
    """Writes down what is asked of it; works as often as ``work`` says."""

    def __init__(self, name: str, notes: list[str], work: Sequence[bool] = ()) -> None:
        self.name, self.notes, self.work = name, notes, list(work)
        self.due = self.triggered = False

    @property
    def triggers(self) -> Sequence[Trigger]:
        return (Trigger(when=lambda: self.due, do=self.pull),)

    def pull(self) -> bool:
        self.notes.append(f"{self.name} triggers")
        return self.triggered

    def turn(self) -> bool:
        self.notes.append(f"{self.name} turns")
        return self.work.pop(0) if self.work else False


class Rounds:
    """Ends the loop the ``number``-th time it is asked."""

    def __init__(self, notes: list[str], number: int) -> None:
        self.notes, self.left = notes, number

    def handle(self) -> bool:
        self.notes.append("handle")
        self.left -= 1
        return self.left > 0


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def sleep(notes: list[str]) -> Callable[[float], None]:
    return lambda seconds: notes.append(f"sleep {seconds:g}")


def test_roles_take_turns_in_their_order(notes: list[str], sleep: Callable[[float], None]) -> None:
    run_in_turns([Noted("a", notes), Noted("b", notes)], Rounds(notes, 2), sleep)
    one_round = ["a turns", "b turns", "handle"]
    assert notes == [*one_round, f"sleep {SLEEP_S:g}", *one_round]


def test_nobody_sleeps_while_anybody_works(notes: list[str], sleep: Callable[[float], None]) -> None:
    run_in_turns([Noted("a", notes), Noted("b", notes, [True] * 50)], Rounds(notes, 100), sleep)
    first_sleep = notes.index(f"sleep {SLEEP_S:g}")
    assert notes[:first_sleep].count("b turns") == 51


def test_control_is_handled_before_every_sleep(notes: list[str], sleep: Callable[[float], None]) -> None:
    run_in_turns([Noted("a", notes, [False, True, False])], Rounds(notes, 5), sleep)
    assert f"sleep {SLEEP_S:g}" in notes
    for before, after in pairwise(notes):
        assert not after.startswith("sleep") or before == "handle"


def test_a_busy_process_still_handles_control(notes: list[str], sleep: Callable[[float], None]) -> None:
    class Busy(Noted):
        def turn(self) -> bool:
            return True

    assert CHECK_EVERY_S < SLEEP_S
    run_in_turns([Busy("a", notes)], Rounds(notes, 3), sleep)
    assert notes == ["handle"] * 3


def test_triggers_that_are_due_come_before_the_turn(notes: list[str], sleep: Callable[[float], None]) -> None:
    due, idle = Noted("due", notes), Noted("idle", notes)
    due.due = True
    run_in_turns([idle, due], Rounds(notes, 1), sleep)
    assert notes == ["idle turns", "due triggers", "due turns", "handle"]


@pytest.mark.parametrize("did", [True, False])
def test_a_trigger_that_did_something_is_work(
    notes: list[str], sleep: Callable[[float], None], did: bool
) -> None:
    role = Noted("a", notes)
    role.due, role.triggered = True, did
    role_rounds = Rounds(notes, 3)
    run_in_turns([role], role_rounds, sleep)
    assert (f"sleep {SLEEP_S:g}" in notes) == (not did)
    assert (role.busy_s > 0) == did


def test_what_a_role_raises_ends_the_loop_and_says_whose_it_is(
    notes: list[str], sleep: Callable[[float], None]
) -> None:
    class Broken(Noted):
        def turn(self) -> bool:
            raise RuntimeError("broken")

    broken = Broken("a", notes)
    with pytest.raises(RoleError, match="a raised RuntimeError") as caught:
        run_in_turns([broken, Noted("b", notes)], Rounds(notes, 3), sleep)
    assert caught.value.role is broken
    assert str(caught.value.__cause__) == "broken"
    assert notes == []
