"""A split adds up to the cores it takes."""

from __future__ import annotations

from tianji_cli.throughput.split import Split


def test_all_cores_are_those_of_learners_with_their_buffers_and_of_actors() -> None:
    split = Split(learners=2, learner_cores=4, actors=5, num_envs=8, groups=3, actor_cores=2, buffer_cores=1)
    assert split.cores_of_learners == 3 * (2 * 4 + 1)
    assert split.cores_of_actors == 3 * 5 * 2
    assert split.cores == 57


def test_a_name_is_as_the_paper_writes_it() -> None:
    assert Split(2, 4, 8, 64).name == "L2A8"
    assert Split(2, 4, 8, 64, groups=4).name == "4 x L2A8"
