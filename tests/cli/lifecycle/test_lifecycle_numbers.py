"""Copies of an environment have numbers, each its own, and few are built that nobody trains in."""

from typing import Any

TOLD = """
import gymnasium, os

class Told(gymnasium.Wrapper):
    def __init__(self, index, port):
        super().__init__(gymnasium.make("CartPole-v1"))
        with open("built", "a") as file:
            print(index, os.environ["TIANJI_ACTOR"], os.environ["TIANJI_COPY"], port, file=file)
"""


def test_each_copy_has_a_number_and_what_is_only_looked_at_has_others(workplace: Any) -> None:
    workplace.module(TOLD)
    told = {"type": "my_env:Told", "id": "", "num_envs": 4, "options": {"port": "{port}"}}
    run = workplace.train({"environment": told, "distribution": {"actor": {"num": 2}}})
    run.finish()
    built = [tuple(map(int, line.split())) for line in (workplace.place / "built").read_text().splitlines()]
    acting = sorted(one for one in built if one[1] < 2)
    assert [one[:3] for one in acting] == [
        (4 * actor + copy, actor, copy) for actor in (0, 1) for copy in range(4)
    ]
    looked_at = [one for one in built if one not in acting]
    assert len(looked_at) == 2, "one before there is a run, and the learner's"
    assert all(index >= 8 for index, *_ in looked_at)
    assert len({port for *_, port in built}) == len(acting) + 1
