"""The page on a real run, that was resumed."""

import json

from cli.lifecycle.conftest import ACCOUNTS, Workplace
from cli.runs.report.pages import read_page


def test_a_resumed_run_has_a_page_with_both_sessions_and_the_account_of_the_last(
    workplace: Workplace,
) -> None:
    run = workplace.train()
    first = run.finish()
    resumed = workplace.resume(run, "--set", "experiment.stop.env_steps=6144")
    summary = resumed.finish()
    workplace.command("report", str(run.path), "--out", "page.html").wait(0)
    page = read_page(workplace.place / "page.html")
    sessions = [json.loads(line) for line in (run.path / "sessions.jsonl").read_text().splitlines()]
    assert [session["env_steps"] for session in sessions] == [0, first["env_steps"]]
    assert page.texts("h2")[-2:] == ["Machine and versions", "Config"]
    assert sum(text.startswith("Session begun") for text in page.texts("p")) == 2
    for name in ("produced", *ACCOUNTS):
        assert int(page.rows[name.replace("_", " ")][0]) == summary[name]
    assert page.rows["busy"][0].startswith("buffer ")
    assert f"tianji eval {run.path}" in page.commands
    assert "Throughput" in page.texts("h3")
