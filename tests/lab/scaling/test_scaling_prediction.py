"""Claims about the predictions beside the scaling experiments: which points, from what, what they assume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.profile.made_up_measurements import made_up
from lab.scaling.scaled import machines, study_of

from tianji_cli.errors import UsageError
from tianji_lab.profile.parts import Measured
from tianji_lab.profile.result import read_earlier
from tianji_lab.scaling.prediction import Machines, Predictions, predict_study, splits
from tianji_lab.scaling.study import Study

CONFIG = "configs/ppo_cartpole.toml"


@pytest.fixture
def earlier() -> Measured:
    return Measured(made_up(step_s=1e-5), {"CPU": "made up"})


def predicted(study: Study, machines: Machines, earlier: Measured) -> Predictions:
    return predict_study(study, machines, earlier, quiet=True)


def test_actors_go_up_to_a_thousand_and_include_what_is_trained() -> None:
    study = study_of(CONFIG, actors=(1, 3))
    actors = [split.actors for split in splits(study, machines())]
    assert actors == [1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1000]
    assert [split.actors for split in splits(study, machines(nodes=2, node_cores=20))][-1] == 32
    table = study_of(CONFIG, figure="table1", overrides=("distribution.actor.send_size=32",))
    assert splits(table, machines()) == [setting.split for setting in table.settings], "as it is trained"


def test_groups_fill_eight_nodes_of_forty_cores_and_none_is_on_two() -> None:
    study = study_of(CONFIG, figure="6c", actors=(3,))
    groups = [split.groups for split in splits(study, machines())]
    assert groups == [1, 2, 4, 8, 16, 32, 64, 80], "10 groups of 4 cores on each of 8 nodes"
    study = study_of(CONFIG, figure="6c", actors=(6,))
    assert splits(study, machines())[-1].groups == 8 * (40 // 7)
    for actors in (79, 49):
        wide = splits(study_of(CONFIG, figure="6c", actors=(actors,)), machines())
        assert [split.groups for split in wide] == [1, 2, 4], "each on two nodes, full or not"


def test_more_actors_help_until_the_learner_is_busy(earlier: Measured) -> None:
    found = predicted(study_of(CONFIG, actors=(1,)), machines(), earlier)
    rates = [point.prediction.throughput for point in found.points]
    assert len(rates) == 11
    assert rates[1] > rates[0]
    assert rates[-1] == rates[-2]
    assert [point.prediction.steps_per_s for point in found.points] == [rate / 4.0 for rate in rates]
    assert found.points[-1].nodes == 26
    assert found.rho == 4.0


def test_groups_multiply_what_one_of_them_does(earlier: Measured) -> None:
    found = predicted(study_of(CONFIG, figure="6c", actors=(2,)), machines(), earlier)
    one, most = found.points[0], found.points[-1]
    assert most.split.groups == 104
    of_a_group = [
        point.prediction.throughput / (point.split.groups * one.prediction.throughput)
        for point in found.points
    ]
    assert of_a_group == pytest.approx([1.0] * len(found.points))
    assert "groups are alike, and averaging their parameters holds none of them up" in found.assumes


def test_it_says_what_it_takes_for_granted(earlier: Measured) -> None:
    machines = Machines(nodes=1, node_cores=16, link_mb_per_s=125.0)
    found = predicted(study_of(CONFIG, actors=(1,)), machines, earlier)
    said = "\n".join(found.assumes)
    whats = ("a core of its own", "this machine, of 2 cores", "16 cores each", "125 MB/s", "not predicted")
    assert all(what in said for what in whats), said
    assert "groups" not in said, "there is one"


def test_roles_that_share_a_thread_are_not_predicted(earlier: Measured) -> None:
    study = study_of(CONFIG, actors=(1,), overrides=("distribution.transport='inproc'",))
    found = predicted(study, machines(), earlier)
    assert found.points == ()
    assert "inproc" in found.warnings[0]


def test_measurements_are_taken_from_a_profile_or_an_earlier_result(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    written = {"environment": {"CPU": "made up"}, "measurements": made_up().model_dump(mode="json")}
    path.write_text(json.dumps(written))
    study = study_of(CONFIG, actors=(1,))
    assert read_earlier(path, study.job).measurements == made_up()
    with pytest.raises(UsageError, match="for other settings"):
        read_earlier(path, study_of(CONFIG, figure="6b").job)
