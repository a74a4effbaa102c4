"""The page on a real run, that was resumed."""

from cli.lifecycle.conftest import Workplace
from cli.runs.report.pages import read_page

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.machine import read_sessions


def test_a_resumed_run_has_a_page_with_both_sessions_and_the_account_of_the_last(
    workplace: Workplace,
) -> None:
    run = workplace.train()
    first = run.finish()
    resumed = workplace.resume(run, "--set", "experiment.stop.env_steps=6144")
    summary = resumed.finish()
    workplace.command("report", str(run.path), "--out", "page.html").wait(0)
    page = read_page(workplace.place / "page.html")
    assert [one.env_steps for one in read_sessions(RunDirectory(run.path))] == [0, first["env_steps"]]
    assert page.texts("h2")[-2:] == ["Machine and versions", "Config"]
    assert sum(text.startswith("Session begun") for text in page.texts("p")) == 2
    assert [int(page.rows[name][0]) for name in ("produced", "received", "in flight", "lost", "dropped")] == [
        summary[name] for name in ("produced", "received", "in_flight", "lost", "dropped")
    ]
    assert page.rows["busy"][0].startswith("buffer ")
    assert f"tianji eval {run.path}" in page.commands
    assert "Throughput" in page.texts("h3")
