"""The lineage of a population, read again by the next session."""

import json
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.errors import UsageError
from tianji_cli.files.lineage import LINEAGE, REPLACED, ROUND, START, Lineage


def member(group: int, source: int | None) -> dict[str, Any]:
    return {"group": group, "env_steps": 10, "score": 1.0, "from": source, "hyperparameters": {}}


def test_the_next_session_knows_who_went_on_from_whom(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path)
    lineage.add(START, metric="mean_100", members=[{"group": 0, "hyperparameters": {}}])
    lineage.add(ROUND, round=1, members=[member(0, None), member(1, 0)])
    lineage.add(REPLACED, **{"group": 0, "from": 1, "hyperparameters": {}})
    lineage.add(REPLACED, **{"group": 1, "from": None, "hyperparameters": {}})
    found = Lineage.of_run(tmp_path)
    assert list(found.origins()) == [(ROUND, 1, 0), (REPLACED, 0, 1)]
    assert (found.rounds, found.metric) == (1, "mean_100")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({}, "it has no 'kind'"),
        ({"kind": ROUND, "members": [{"group": 0}]}, "it has no 'from'"),
        ({"kind": ROUND, "members": [3]}, "not subscriptable"),
        ({"kind": REPLACED, "from": 0, "group": "one"}, "invalid literal"),
    ],
)
def test_what_is_no_lineage_is_refused_in_words(tmp_path: Path, entry: dict[str, Any], why: str) -> None:
    (tmp_path / LINEAGE).write_text(json.dumps({"schema": 1, "entries": [entry]}))
    with pytest.raises(UsageError, match=f"cannot go on with .*{LINEAGE}: .*{why}"):
        Lineage.of_run(tmp_path)
