"""Learners stop when their buffers have said their last word, and nobody is named twice."""

from tianji_cli.cluster.plan import Plan, PlannedProcess
from tianji_cli.roles.stopping import StoppingOrder


def plan(*roles: tuple[str, ...]) -> Plan:
    processes = (PlannedProcess(rank, names, 0, "here", (), 1) for rank, names in enumerate(roles))
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


def test_only_the_buffer_is_late_while_the_learner_waits_for_it() -> None:
    order = StoppingOrder(PARTED)
    assert order.late({1, 2}, set()) == {1}
    assert order.late({1, 2}, {1}) == {1, 2}
    assert order.late({2}, set()) == {2}
