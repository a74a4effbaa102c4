"""`tianji report` over runs that the writers of real ones have left: what is on the page, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runs.comparison.left_runs import leave, rate, rises, several
from cli.runs.report.pages import Page, read_page
from cli.telemetry.conftest import OF_GROUPS, WITH_REPLAY, build_snapshot

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.main import main
from tianji_cli.telemetry.machine import note_session
from tianji_cli.telemetry.metrics import AppendOnlyFile
from tianji_cli.wire.reports import Evaluation

Capture = pytest.CaptureFixture[str]
PAGE = Path("page.html")
ACCOUNT = ("produced", "received", "in_flight", "lost", "dropped")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("experiments")


def reported(*words: object) -> Page:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, words), "--out", str(PAGE)])
    assert ended.value.code == 0
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []
    return read_page(PAGE)


def refused(capsys: Capture, *words: object, out: object = PAGE, status: int = 2) -> str:
    before = {path: path.read_bytes() for path in Path().glob("*.html")}
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, words), "--out", str(out)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (status, "")
    assert 1 <= len(said.err.splitlines()) <= 5
    assert {path: path.read_bytes() for path in Path().glob("*.html")} == before
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []
    return said.err


# -- one run ---------------------------------------------------------------------------------------------


def test_a_page_has_what_was_run_what_it_came_to_and_how_to_run_it_again(
    place: Path, capsys: Capture
) -> None:
    run = leave(place, rises(100), rate(0.5), evaluation=Evaluation(20, 99.0, 1.5))
    page = reported("quick")
    assert capsys.readouterr().out.startswith("page.html: 1 run, ")
    assert page.texts("h1") == ["quick"]
    assert {
        f"tianji train {run.config}",
        f"tensorboard --logdir {run.path}",
        "tianji report quick --out page.html",
    } <= set(page.commands)
    summary = json.loads(run.summary.read_text())
    assert [page.rows[name.replace("_", " ")][0] for name in ACCOUNT] == [
        str(summary[name]) for name in ACCOUNT
    ]
    assert page.rows["return"] == ["100.0 mean of the last 100 of 412 episodes, best 100.0"]
    assert page.rows["evaluation"] == ["99.0 mean of 20 greedy episodes, standard deviation 1.50"]
    assert page.rows["actor 2"][1] == "93 %"
    # The first of the two tables of keys is of those that differ.
    assert page.rows["training.learning_rate"] == ["0.5", "0.0003"]
    assert page.rows["distribution.actor.send_size"][0] == "16"
    assert page.rows["training.gamma"] == ["0.99", "0.99"]
    titles = page.texts("h3")
    assert titles[:5] == [
        "Return over env steps",
        "Return over time",
        "Policy",
        "Value",
        "Throughput",
    ]


def test_only_keys_that_are_not_what_they_would_be_are_marked(place: Path) -> None:
    leave(place, rises(100), rate(0.5), {"experiment": {"evaluation": {"every_s": 5.0}}})
    page = reported("quick")
    assert {heading for marked, heading, *_ in page.lines if marked == "differs"} == {
        *("experiment.name", "experiment.thresholds", "experiment.eval_episodes"),
        *("experiment.plots", "experiment.stop.env_steps", "experiment.evaluation.every_s"),
        *("environment.type", "environment.id", "environment.num_envs", "agent.type", "model.hidden"),
        *("training.learning_rate", "training.rollout_steps", "training.minibatch_size", "training.epochs"),
        "distribution.actor.send_size",
    }


def test_curves_have_evaluations_ratios_ages_and_the_roles_shares(place: Path) -> None:
    evaluated = {3.0: 20.0, 6.0: None, 9.0: 80.0}
    run = leave(place, rises(100), {"experiment": {"thresholds": [15.0, 70.0]}}, evaluated=evaluated)
    with run.metrics.open("a") as file:
        row = build_snapshot(
            11,
            **WITH_REPLAY,
            env_steps=11_000,
            by_group=OF_GROUPS["by_group"],
            win_rate=0.5,
            mean_length=87.5,
            losses={"approx_kl": 0.25, "cost in $a$ and $b_": 1.0, "broken": float("nan")},
        )
        file.write(json.dumps(row.metrics() | {"roles": None}) + "\n")
    page = reported("quick")
    titles = page.texts("h3")
    assert {"Won over env steps", "Sample age", "Busy over time", "Episode length"} <= set(titles)
    assert {"Policy", "Value", "Approx kl", "Cost in $a$ and $b", "Broken"} <= set(titles)
    assert "Losses and diagnostics" in page.texts("h2")
    noted = page.texts("figcaption")
    assert "Points are evaluations while training" in noted[0]
    assert "thresholds 15, 70." in noted[0]
    svgs = page.all("svg")
    assert any("It begins at 87.5, ends at 87.5" in svg.text for svg in svgs)
    assert any("cost in $a$ and $b" in svg.text for svg in svgs), "a name is no formula"
    assert any("evaluations" in svg.text and "each group" in svg.text for svg in svgs)
    assert any(all(kind in svg.text for kind in ("actor", "learner", "100%")) for svg in svgs)


@pytest.mark.parametrize("ends", ["stopped", "failed", None])
def test_a_run_that_did_not_finish_says_how_it_ended(place: Path, ends: str | None) -> None:
    run = leave(place, rises(100), ends=ends)
    (run.checkpoints / "last").mkdir()
    run.log("actor", 2).write_text("x\nTraceback (most recent call last):\n  <b>\nRuntimeError: the arm\n")
    page = reported("quick")
    status = ends or "killed"
    assert page.all("span", **{"class": f"status {status}"})
    assert f"tianji train --resume {run.path}" in page.commands
    assert any(one.endswith("RuntimeError: the arm") for one in page.commands)
    assert ("produced" in page.rows) is (ends is not None)
    assert "What it came to" in page.texts("h2")
    assert page.rows["return"][0].startswith("100.0 mean of ")


def test_a_run_that_goes_on_is_shown_as_it_stands(place: Path) -> None:
    run = leave(place, rises(100), ends=None)
    (run.checkpoints / "last").mkdir()
    held = AppendOnlyFile(run.metrics)
    try:
        page = reported("quick")
    finally:
        held.close()
    assert "How far it is" in page.texts("h2")
    assert "running: it goes on, and this is how it stood when the page was made" in page.texts("p")
    assert {f"tianji watch {run.path}", f"tianji stop {run.path}"} <= set(page.commands)
    assert "produced" not in page.rows
    assert page.rows["return"] == ["100.0 mean of 37 episodes, best 100.0"]
    assert page.rows["steps"][0].startswith("10.0 K env steps")
    assert "--resume" not in page.source


def test_a_run_that_has_not_begun_has_a_page_of_its_config(place: Path) -> None:
    run = leave(place, rises(100))
    for file in (run.metrics, run.summary):
        file.unlink()
    page = reported("quick")
    assert page.texts("h2") == ["What was run", "How far it is", "Machine and versions", "Config"]


def test_a_long_run_has_a_small_page(place: Path) -> None:
    run = leave(place, rises(100), seconds=[1.0])
    row, _ = run.metrics.read_text().splitlines(), run.metrics.write_text("")
    noise = np.random.default_rng(0).random((30_000, 4))
    with run.metrics.open("a") as file:
        for second, (mean, rate_, lag, ratio) in enumerate(noise, 1):
            spread = dict.fromkeys(("mean", "p50", "p95", "max"), lag)
            changes = {
                "train_s": second,
                "env_steps": 1000 * second,
                "returns.mean_100": mean,
                "staleness": spread,
            }
            changes |= {"produced_per_s": rate_, "received_per_s": lag, "replay_ratio.actual": ratio}
            file.write(json.dumps(json.loads(row[0]) | changes) + "\n")
    page = reported("quick")
    assert len(page.source) < 600_000
    assert "Curves are drawn through 400 of 30.0 K reports." in PAGE.read_text()


def test_nothing_that_a_run_says_becomes_a_part_of_the_page(place: Path) -> None:
    evil = '"><script>alert(1)</script>$x$'
    name = "<i>bold &amp; $x^{$<i>"
    run = leave(
        place, rises(100), {"environment": {"options": {"render_mode": evil}}, "distribution": {}}, name=name
    )
    for file in (run.summary,):
        document = json.loads(file.read_text())
        document |= {"reason": evil, "experiment": evil}
        document["roles"][2] |= {"host": evil, "role": evil}
        file.write_text(json.dumps(document))
    run.log("root", 0).write_text(f"2026-01-01 10:00:00 {evil}\n{evil}\n")
    run.sessions.write_text(
        json.dumps(
            {
                "begun": "2026-01-01T10:00:00Z",
                "env_steps": 0,
                "machine": {evil: evil},
                "versions": {evil: evil},
            }
        )
        + "\n"
    )
    with run.metrics.open("a") as file:
        row = json.loads(run.metrics.read_text().splitlines()[-1])
        file.write(json.dumps(row | {"train_s": 11.0, "busy": {f"{evil}-3": 0.5, "$x^{-4": 0.5}}) + "\n")
    page = reported(run.path)
    assert page.texts("h1") == [name]
    assert page.source.count("&lt;script&gt;") >= 6
    assert any(evil in svg.text for svg in page.all("svg"))
    # Groups that differ in much are called by where they are.
    much = {"training": {"gamma": 0.9, "epochs": 3}, "model": {"hidden": [8]}, "environment": {"num_envs": 4}}
    other = leave(place, rises(90), much, name=name)
    page = reported(run.path, other.path)
    assert any(name in svg.text for svg in page.all("svg"))


def test_of_a_session_like_the_one_before_only_the_time_is_said(place: Path) -> None:
    run = leave(place, rises(100))
    note_session(run, 0)
    first = json.loads(run.sessions.read_text())
    versions = first["versions"]
    more = [{"env_steps": 100}, {"env_steps": 200, "versions": versions | {"torch": "9.9"}}]
    more += [{"env_steps": 300, "versions": versions}] * 20
    run.sessions.write_text("".join(json.dumps(first | one) + "\n" for one in ({}, *more[:2])))
    said = [text for text in reported("quick").texts("p") if text.startswith("Session")]
    assert [text.partition("from ")[2] for text in said] == [
        *("0 env steps on:", "100 env steps on, likewise.", "200 env steps on:"),
    ]
    assert "torch\xa09.9" in PAGE.read_text().replace("&nbsp;", "\xa0")
    run.sessions.write_text("".join(json.dumps(first | one) + "\n" for one in ({}, *more)))
    page = reported("quick")
    assert "The last 20 of 23 sessions; experiments/quick/1/sessions.jsonl has all." in page.texts("p")
    assert len([text for text in page.texts("p") if text.startswith("Session")]) == 20


def test_events_that_are_too_many_for_a_page_are_not_left_out_in_silence(place: Path) -> None:
    run = leave(place, rises(100))
    for many in (200, 201):
        lines = (f"2026-01-01 10:00:00 event {number}\n" for number in range(many))
        run.log("root", 0).write_text("".join(lines))
        page = reported("quick")
        said = "The last 200 of it; experiments/quick/1/logs has all."
        assert (said in page.texts("p")) is (many > 200)
        assert page.texts("td")[-1]
        assert f"event {many - 1}" in page.texts("td")


# -- pictures that others leave --------------------------------------------------------------------------

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    'width="90pt" height="30pt">{}</svg>'
)


NESTED = "<path id='a0'/>" + "".join(
    f"<g id='a{level}'>" + f"<use href='#a{level - 1}'/>" * 10 + "</g>" for level in range(1, 9)
)
"""A few lines that draw a hundred million paths."""
OFTEN = "<g id='a'>" + "<path/>" * 1000 + "</g>" + "<use href='#a'/>" * 1000


def test_pictures_in_plots_are_in_the_page_without_what_acts_or_loads(place: Path) -> None:
    run = leave(place, rises(100))
    (run.plots / "timeline.svg").write_text(
        SVG.format(
            "<!-- who did what --><style>* { display: none }</style><script>alert(1)</script>"
            '<foreignObject><iframe src="https://x.org"/></foreignObject><a href="https://x.org"><text>link</text></a>'
            '<image href="https://x.org/a.png"/><image href="data:image/svg+xml;base64,AAAA"/>'
            '<image xlink:href="data:image/png;base64,iVBORw0KGgo="/>'
            '<g id="a" onclick="alert(1)" style="fill: url(https://x.org/a); stroke: #fff"><animate/></g>'
            r'<path style="fill: u\72l(https://x.org)" d="M 1.23456 2.00001 L 3 4"/>'
            '<rect fill="url(#b)" clip-path="URL(https://x.org)"/><linearGradient id="b"/>'
            '<use xlink:href="#a"/><use href="other.svg#a"/><text fill="#0072B2">an actor &lt;3</text>'
        )
    )
    (run.plots / "lineage.svg").write_text((run.plots / "timeline.svg").read_text())
    page = reported("quick")
    assert page.texts("h3").count("Timeline") == 1
    (timeline, lineage) = (svg for svg in page.all("svg") if "an actor <3" in svg.text)
    assert "link" not in timeline.text
    found = page.source[page.source.index('viewBox="0 0 90 30"') :]
    assert 'd="M 1.23 2 L 3 4"' in found
    assert found.count("<image") == found.count("data:image/png") == 2
    assert "var(--blue)" in found
    assert lineage.attributes["aria-labelledby"] == "lineage-title lineage-desc"


def test_gradients_that_name_another_one_are_drawn(place: Path) -> None:
    run = leave(place, rises(100))
    stops = '<linearGradient id="stops"/><linearGradient id="a" xlink:href="#stops"/>'
    run.plots.mkdir(exist_ok=True)
    (run.plots / "timeline.svg").write_text(SVG.format(f"{stops}<rect fill='url(#a)'/><text>drawn</text>"))
    assert any("drawn" in svg.text for svg in reported("quick").all("svg"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no svg", "it is no SVG"),
        ("<svg/>", "it is no SVG"),
        (SVG.format("<g>" * 50_000 + "</g>" * 50_000), "it is nested too deeply"),
        (SVG.format(NESTED), "its parts name one another too often"),
        (SVG.format(OFTEN), "its parts name one another too often"),
        (SVG.format('<g id="a"><use href="#a"/></g>'), "its parts name one another too often"),
        (SVG.format("").replace("90pt", "wide"), "it does not say how large it is"),
        ('<!DOCTYPE svg [<!ENTITY a "aaa">]>' + SVG.format("<text>&a;</text>"), "it has entities"),
        (SVG.format('<rect x="1" y="2" width="3"/>' * 30_000), "it has 900 KB, and a page takes 600 KB"),
        (SVG.format("<g/>" * 1_200_000), "it has more than 4194304 bytes"),
    ],
)
def test_a_picture_that_cannot_be_taken_over_is_named(place: Path, content: str, said: str) -> None:
    run = leave(place, rises(100))
    run.metrics.unlink()  # Nothing else is to be drawn.
    (run.plots / "timeline.svg").write_text(content)
    assert f"{run.plots}/timeline.svg is left out: {said}" in " ".join(reported("quick").texts("figcaption"))


def test_entities_do_not_hide_in_another_encoding(place: Path) -> None:
    run = leave(place, rises(100))
    run.metrics.unlink()
    content = '<!DOCTYPE svg [<!ENTITY a "aaa">]>' + SVG.format("<text>&a;</text>")
    (run.plots / "timeline.svg").write_text(content, encoding="utf-16")
    assert "is left out: it is no SVG in UTF-8" in " ".join(reported("quick").texts("figcaption"))


# -- several ---------------------------------------------------------------------------------------------


def test_several_runs_become_the_comparison_that_compare_makes(place: Path, capsys: Capture) -> None:
    several(place, [100, 101, 102, 103, 104], rate(1e-3))
    several(place, [200, 201, 202, 203, 204], rate(1e-4), name="slow")
    page = reported("experiments")
    assert page.texts("h1") == ["10 runs in gym CartPole-v1"]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["compare", "experiments", "--json", "-"])
    first, second = json.loads(capsys.readouterr().out)["rows"]
    name = "training.learning_rate=0.001"
    cells = page.rows[name]
    assert cells[:2] == [
        "5",
        f"{first['final']['iqm']:.1f} [{first['final']['low']:.1f}, {first['final']['high']:.1f}]",
    ]
    assert page.rows[second["name"]][-2] == "1.00 [1.00, 1.00]"
    assert f"{second['name']} is better than {name} in final returns" in page.texts("li")
    titles = ["Return over env steps", "Return over time", "Performance profile", "Intervals"]
    assert page.texts("h3")[:4] == titles
    runs = [f"experiments/{of}/{number}" for of in ("quick", "slow") for number in range(1, 6)]
    assert page.texts("h3")[4:] == runs
    assert all(f"tianji train {run}/config.toml" in page.commands for run in runs)
    assert ["", second["name"], "0.0001"] in page.lines


def test_what_differs_goes_down_the_page_where_it_is_more_than_groups(place: Path) -> None:
    leave(place, rises(100))
    leave(place, rises(90), {"training": {"gamma": 0.9, "epochs": 3}, "model": {"hidden": [8]}}, name="other")
    page = reported("experiments")
    names = [
        f"model.hidden={hidden}, training.epochs={epochs}, training.gamma={gamma}"
        for hidden, epochs, gamma in (([8], 3, 0.9), ([16], 2, 0.99))
    ]
    assert ["", "key", *names] in page.lines
    assert page.rows["training.gamma"] == ["0.9", "0.99"]
    leave(place, rises(90), rate(1e-4), name="third")
    assert ["", "group", "training.learning_rate"] in reported("quick", "third").lines


def test_of_many_groups_the_first_and_the_best_are_drawn(place: Path) -> None:
    for number in range(20):
        leave(place, rises(10 + number), rate((1 + number) / 100), name=f"g{number:02}")
    page = reported("experiments")
    assert len(page.all("details")) == 20
    assert "Of 20 groups the first and the 15 with the highest final returns." in page.texts("figcaption")[0]
    drawn = page.all("svg")[0].text
    assert all(f"learning_rate={rate_}" in drawn for rate_ in ("0.01", "0.06", "0.2"))
    assert "learning_rate=0.02" not in drawn


def test_runs_that_have_not_begun_are_named(place: Path) -> None:
    leave(place, rises(100), name="Quick")
    waiting = RunDirectory.create("Quick", place)
    for other in ([], [leave(place, rises(90), name="other").path]):
        assert f"not begun, and left out: {waiting.path}" in reported("experiments/Quick", *other).texts("li")


# -- what it refuses -------------------------------------------------------------------------------------


def test_a_page_replaces_the_one_that_was_there_and_a_failure_leaves_it(place: Path, capsys: Capture) -> None:
    leave(place, rises(100))
    PAGE.write_text("old")
    (place / "quick/1/metrics.jsonl").rename("kept")
    Path(place / "quick/1/metrics.jsonl").write_text("no\n")
    assert "line 1: not a JSON object" in refused(capsys, "quick", status=1)
    Path("kept").rename(place / "quick/1/metrics.jsonl")
    assert reported("quick").texts("h1") == ["quick"]


@pytest.mark.parametrize(
    ("out", "said"), [("none/page.html", "there is no directory none"), (".", "it is a directory")]
)
def test_a_place_where_no_page_can_be_is_refused_first(
    place: Path, capsys: Capture, out: str, said: str
) -> None:
    assert f"--out: cannot write {out}: {said}; a file such as report.html" in refused(
        capsys, "none", out=out
    )


def test_what_is_no_run_and_what_cannot_be_compared_is_refused(place: Path, capsys: Capture) -> None:
    leave(place, rises(100))
    assert "no run 'quik' (did you mean 'quick'?)" in refused(capsys, "quik")
    leave(place, lambda _second: None, name="silent")
    both = reported("quick", "silent")
    assert "no episode has ended, and left out: experiments/silent/1 (finished)" in both.source
    assert len(both.all("details")) == 2
    assert reported("silent").texts("h1") == ["silent"]
    capsys.readouterr()
    leave(place, rises(100), {"environment": {"id": "Acrobot-v1"}}, name="other")
    assert "different environments cannot be compared" in refused(capsys, "quick", "other")
    RunDirectory.create("waiting", place)
    assert "has not begun" in refused(capsys, "experiments/waiting")


def with_schema_3(text: str) -> str:
    return json.dumps(json.loads(text) | {"schema": 3})


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.toml", lambda _: "[experiment", "config.toml: TOMLDecodeError"),
        (
            "metrics.jsonl",
            lambda text: f"{text}{{}}\n",
            "not a JSON object of a run's (wall_s: Field required)",
        ),
        ("metrics.jsonl", lambda text: text.replace('"staleness"', '"gal"'), "rows that this version"),
        ("metrics.jsonl", lambda text: f"no\n{text}", "line 1: not a JSON object"),
        ("summary.json", lambda _: "{", "no summary that this version"),
        ("summary.json", with_schema_3, "is of schema 3: this version of tianji reads 2"),
    ],
)
def test_a_damaged_file_or_one_of_another_version_is_named(
    place: Path, capsys: Capture, file: str, content: Callable[[str], str], said: str
) -> None:
    run = leave(place, rises(100))
    path = run.path / file
    path.write_text(content(path.read_text()))
    assert said in refused(capsys, "quick", status=1)


def test_samples_that_are_unaccounted_for_are_a_warning(place: Path) -> None:
    run = leave(place, rises(100))
    summary: dict[str, Any] = json.loads(run.summary.read_text())
    run.summary.write_text(json.dumps(summary | {"produced": summary["produced"] + 3}))
    assert "unaccounted: 3 samples; do not trust this run's counts" in reported("quick").texts("li")


@pytest.mark.parametrize("what", ["logs", "logs/root-0.log", "plots", "plots/timeline.svg", "sessions.jsonl"])
def test_no_link_leads_out_of_a_run(place: Path, tmp_path: Path, capsys: Capture, what: str) -> None:
    run = leave(place, rises(100))
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "root-0.log").write_text("2026-01-01 00:00:00 token-of-mine\n")
    (secret / "timeline.svg").write_text(SVG.format("<text>token-of-mine</text>"))
    path = run.path / what
    if path.is_dir():
        path.rename(tmp_path / "before")
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(secret if "." not in what else secret / path.name)
    if what.startswith("plots"):
        assert "it is a link, and must not be" in " ".join(reported("quick").texts("figcaption"))
        assert "token-of-mine" not in PAGE.read_text()
    else:
        assert "it is a link, and must not be" in refused(capsys, "quick", status=1)


def test_beside_others_a_damaged_run_is_left_out_and_named(place: Path) -> None:
    leave(place, rises(100))
    (leave(place, rises(100)).path / "sessions.jsonl").unlink(missing_ok=True)
    (place / "quick/2/sessions.jsonl").symlink_to("/etc/passwd")
    page = reported("experiments/quick")
    assert "damaged, and left out: cannot read experiments/quick/2/sessions.jsonl" in page.source
