"""Who stops when: buffers, then those who hear from them; and nobody is named twice."""

from tianji_cli.cluster.plan import Plan, PlannedProcess
from tianji_cli.roles.ending import StoppingOrder


def plan(*roles: tuple[str, ...], groups: tuple[int | None, ...] = ()) -> Plan:
    of_rank = groups or (None, *(0 for _ in roles[1:]))
    processes = (
        PlannedProcess(rank, names, of_rank[rank], "here", (), 1) for rank, names in enumerate(roles)
    )
    return Plan(tuple(processes), "shm", "shm")


PARTED = plan(("root",), ("buffer",), ("learner",), ("actor",))
COLOCATED = plan(("root",), ("buffer", "learner"), ("actor",))


def test_a_learner_beside_its_buffer_stops_at_once() -> None:
    order = StoppingOrder(COLOCATED)
    assert order.next({1}, set()) == {1}
    assert order.next({1}, set()) == set()


def test_a_learner_stops_when_its_buffer_has_said_its_last_word_though_it_still_saves() -> None:
    order = StoppingOrder(PARTED)
    assert order.next({1, 2}, set()) == {1}
    assert order.next({1, 2}, set()) == set()
    assert order.next({1, 2}, {1}) == {2}
    assert order.next({1, 2}, {1}) == set()


def test_a_learner_whose_buffer_has_died_stops_too() -> None:
    order = StoppingOrder(PARTED)
    assert order.next({1, 2}, set()) == {1}
    assert order.next({2}, set()) == {2}


SEVERAL = plan(("root",), ("buffer", "learner"), ("follower",), ("recorder",), ("actor",))
TWO_GROUPS = plan(
    ("root",), ("buffer",), ("learner",), ("actor",), ("buffer",), ("learner",), ("actor",),
    groups=(None, 0, 0, 0, 1, 1, 1),
)  # fmt: skip


def test_followers_and_roles_of_the_user_stop_with_their_learner() -> None:
    order = StoppingOrder(SEVERAL)
    assert order.next({1, 2, 3}, set()) == {1, 2, 3}
    assert order.next({1, 2, 3}, {3}) == set()


def test_a_buffer_that_is_late_keeps_no_other_group_waiting() -> None:
    order = StoppingOrder(TWO_GROUPS)
    assert order.next({1, 2, 4, 5}, set()) == {1, 4}
    assert order.next({1, 2, 4, 5}, {1}) == {2}
    assert order.next({4, 5}, {1, 2, 4}) == {5}
